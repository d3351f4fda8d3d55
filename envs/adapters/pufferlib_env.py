"""BatchedEnv -> PufferLib's native vector interface (PufferLib 3, where it is installed).

For PufferLib's own workers, hand :func:`make_puffer` to ``pufferlib.vector.make``::

    vecenv = pufferlib.vector.make(make_puffer, backend="PufferEnv",
                                   env_args=["cartpole"], env_kwargs=dict(num_envs=1024))
"""

from __future__ import annotations

import contextlib
import tempfile
from typing import Any

import numpy as np
from gymnasium import spaces

from envs.batched import BatchedEnv
from envs.core import Decision, MissingDependency
from envs.registry import make

try:
    # Importing PufferLib leaves a link named "resources" in the working directory.
    with tempfile.TemporaryDirectory() as scratch, contextlib.chdir(scratch):
        from pufferlib import PufferEnv
except ImportError as error:
    raise MissingDependency(
        f"PufferLib is not installed ({error}); its metadata conflicts with this project's "
        "versions, so install pufferlib 3.0.0 with --no-deps into an environment of your own"
    ) from error

Infos = list[dict[str, Any]]
Step = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, Infos]


class PufferVecEnv(PufferEnv):
    """N environments of A agents as ``num_agents = N * A`` rows that share PufferLib's buffers.

    ``observations``, ``rewards``, ``terminals``, ``truncations`` and ``masks`` (which rows are
    acting) are written in place. Every agent of an environment gets its ends. ``infos`` is empty,
    or one dict with the metrics of the episodes that ended in this step, a list for each.
    PufferLib has no place for an ended episode's last observation, nor for legal actions.

    Args:
        buf: PufferLib's shared buffers, or None to own them.
        seed: of a ``reset`` without one, the first; later ones go on from it.

    Raises:
        ValueError: observations are not a Box, actions not Discrete, MultiDiscrete or a Box, or
            the environment has legal actions.
    """

    def __init__(self, env: BatchedEnv, buf: Any = None, seed: int = 0) -> None:
        spec = env.spec
        if not isinstance(spec.observation_space, spaces.Box):
            raise ValueError(f"{spec.name}: PufferLib needs Box observations")
        kinds = (spaces.Discrete, spaces.MultiDiscrete, spaces.Box)
        if not isinstance(spec.action_space, kinds):
            raise ValueError(f"{spec.name}: PufferLib has no {spec.action_space} actions")
        if spec.has_legal_actions:
            raise ValueError(f"{spec.name} has legal actions, which PufferLib can't be told")
        self.batched = env
        self.single_observation_space = spec.observation_space
        self.single_action_space = spec.action_space
        self.num_agents = self.agents_per_batch = env.num_envs * spec.num_agents
        self._seed: int | None = seed
        self._seeder = np.random.default_rng(seed)
        super().__init__(buf)

    def reset(self, seed: int | None = None) -> tuple[np.ndarray, Infos]:
        """New episodes in all rows; (observations, infos).

        Raises:
            ValueError: a seed outside [0, 2**32).
            LifecycleError: after ``close``.
        """
        given = self._seed if seed is None else seed
        drawn = int(self._seeder.integers(2**32)) if given is None else given
        self._write(self.batched.reset(drawn))
        if given is not None:
            self._seeder = np.random.default_rng(given)
        self._seed = None
        self.rewards[:] = 0
        self.terminals[:] = self.truncations[:] = False
        return self.observations, []

    def step(self, actions: np.ndarray) -> Step:
        """Observations, rewards, terminals, truncations (all in the buffers), infos.

        Raises:
            LifecycleError, ActionError: see :meth:`envs.batched.BatchedEnv.step`.
        """
        spec = self.batched.spec
        per_row = np.asarray(actions)
        if per_row.shape[:1] == (self.num_agents,):  # else the shape is named as it came
            per_row = per_row.reshape(*spec.rows(self.batched.num_envs), *per_row.shape[1:])
        decision, outcome = self.batched.step(per_row)
        self._write(decision)
        self.rewards[:] = outcome.reward.reshape(-1)
        self.terminals[:] = outcome.terminated.repeat(spec.num_agents)
        self.truncations[:] = outcome.truncated.repeat(spec.num_agents)
        ended = outcome.ended
        infos = []
        if outcome.metrics and ended.any():
            infos = [{k: v[ended].reshape(-1).tolist() for k, v in outcome.metrics.items()}]
        return self.observations, self.rewards, self.terminals, self.truncations, infos

    def notify(self) -> None:
        """PufferLib's signal to its environments; there is nothing to do."""

    def close(self) -> None:
        """Release the environments; safe to call again."""
        self.batched.close()

    def _write(self, decision: Decision) -> None:
        rows = (self.num_agents, *self.single_observation_space.shape)
        self.observations[:] = decision.observation.reshape(rows)
        self.masks[:] = decision.acting.reshape(-1)


def make_puffer(
    name: str,
    backend: str = "generated",
    num_envs: int = 1,
    *,
    buf: Any = None,
    seed: int = 0,
    **parameters: Any,
) -> PufferVecEnv:
    """``envs.make`` in the form that PufferLib's creators have."""
    return PufferVecEnv(
        make(name, backend, num_envs, interface="batched", **parameters), buf=buf, seed=seed
    )
