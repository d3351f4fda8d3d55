"""BatchedEnv -> gymnasium.Env (one environment) and gymnasium.vector.VectorEnv.

To give them a name in Gymnasium's registry, which also sets ``env.spec``::

    gymnasium.register("twinrl/CartPole-v1", entry_point="envs.registry:make",
                       kwargs=dict(name="cartpole", interface="gymnasium"))
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from envs.batched import BatchedEnv
from envs.core import Decision, EnvSpec, LifecycleError, Observation, Outcome


def require_single_agent(spec: EnvSpec, interface: str) -> None:
    """ValueError where the interface has no place for several agents."""
    if spec.num_agents != 1:
        raise ValueError(
            f"{spec.name} has {spec.num_agents} agents, {interface} serves one; "
            "fill the other seats first (envs.adapters.opponent)"
        )


def row_observation(space: spaces.Space, observation: Observation, row: int) -> Any:
    """One row's observation as a member of the space, never a view of the batch."""
    if isinstance(space, spaces.Dict):
        return {key: row_observation(s, observation[key], row) for key, s in space.items()}
    if isinstance(space, spaces.Discrete):
        return np.int64(observation[row])
    return np.array(observation[row])


def final_observation(env: BatchedEnv, outcome: Outcome, row: int) -> Any | None:
    """The last observation of the episode that ended in this row, or None where the backend
    can't give it (it may for terminations, see ``Capabilities.final_on_termination``)."""
    known = outcome.truncated[row] or env.capabilities.final_on_termination
    if outcome.final is None or not known:
        return None
    return row_observation(env.spec.observation_space, outcome.final.observation, row)


def episode_info(outcome: Outcome, row: int) -> dict[str, Any]:
    """``{"metrics": {...}}`` of the episode that ended in this row; empty without metrics."""
    if not outcome.metrics:
        return {}
    return {"metrics": {name: values[row].item() for name, values in outcome.metrics.items()}}


def _checked_options(spec: EnvSpec, options: dict[str, Any] | None) -> None:
    if options:
        raise ValueError(
            f"{spec.name}: reset takes no options, got {sorted(options)}; "
            "rule parameters are chosen in envs.make"
        )


class GymnasiumEnv(gymnasium.Env):
    """One environment as a ``gymnasium.Env``; the auto-reset inside is hidden.

    - The ``step`` that ends an episode returns the ended episode's last observation. A backend
      that can't give it for terminations returns the next episode's first one there.
    - ``reset()`` after an end hands out the episode that is already open; elsewhere it starts a
      new one from a seed drawn from ``np_random``. ``reset(seed=s)`` always restarts.
    - ``info`` holds ``action_mask`` (int8 ``[n]``, as ``Discrete.sample`` wants it) where the
      spec has legal actions, and ``metrics`` at the end of an episode where it has metrics.

    Raises:
        ValueError: more than one environment or agent.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - Gymnasium's own declaration

    def __init__(self, env: BatchedEnv) -> None:
        require_single_agent(env.spec, "gymnasium.Env")
        if env.num_envs != 1:
            raise ValueError(f"gymnasium.Env needs num_envs=1, got {env.num_envs}")
        self.batched = env
        self.observation_space = env.spec.observation_space
        self.action_space = env.spec.action_space
        self._decision: Decision | None = None  # of an episode that nobody was given yet
        self._running = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """First observation of an episode, and its info.

        Raises:
            ValueError: a seed outside [0, 2**32), or options (there are none).
            LifecycleError: after ``close``.
        """
        super().reset(seed=seed)
        _checked_options(self.batched.spec, options)
        decision = self._decision
        if decision is None or seed is not None:
            drawn = int(self.np_random.integers(2**32)) if seed is None else seed
            decision = self.batched.reset(drawn)
        self._decision, self._running = None, True
        return self._observation(decision), self._info(decision)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One step.

        Raises:
            LifecycleError: before ``reset``, after the end of an episode, or after ``close``.
            ActionError: the action is outside the space or illegal; nothing was stepped then.
        """
        if not self._running:
            raise LifecycleError(
                f"{self.batched.spec.name}: step without an open episode "
                "(before reset, after an end, or after close)"
            )
        decision, outcome = self.batched.step(np.asarray(action)[None])
        terminated, truncated = bool(outcome.terminated[0]), bool(outcome.truncated[0])
        observation, info = None, self._info(decision)
        if terminated or truncated:
            self._decision, self._running = decision, False
            observation = final_observation(self.batched, outcome, 0)
            info = episode_info(outcome, 0)
        if observation is None:
            observation = self._observation(decision)
        return observation, float(outcome.reward[0]), terminated, truncated, info

    def close(self) -> None:
        """Release the environment; safe to call again."""
        self._running = False
        self.batched.close()

    def _observation(self, decision: Decision) -> Any:
        return row_observation(self.observation_space, decision.observation, 0)

    def _info(self, decision: Decision) -> dict[str, Any]:
        if decision.legal_actions is None:
            return {}
        return {"action_mask": decision.legal_actions[0].astype(np.int8)}


class GymnasiumVectorEnv(VectorEnv):
    """N environments as a ``gymnasium.vector.VectorEnv`` with ``AutoresetMode.SAME_STEP``.

    Infos follow ``gymnasium.vector.SyncVectorEnv``: where episodes ended, ``final_obs`` is an
    object array with the last observations, ``final_info`` holds the episodes' ``metrics``, and
    ``_final_obs``, ``_final_info`` say in which rows. A row whose last observation the backend
    can't give is missing from ``final_obs`` only. ``action_mask`` (int8 ``[N, n]``) is there
    where the spec has legal actions.

    Raises:
        ValueError: more than one agent.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 - Gymnasium's own declaration
        "render_modes": [],
        "autoreset_mode": AutoresetMode.SAME_STEP,
    }

    def __init__(self, env: BatchedEnv) -> None:
        require_single_agent(env.spec, "gymnasium.vector.VectorEnv")
        self.batched = env
        self.num_envs = env.num_envs
        self.single_observation_space = env.spec.observation_space
        self.single_action_space = env.spec.action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """New episodes in all rows: observations ``[N, ...]`` and infos.

        Args:
            seed: one integer for all rows; None draws it from ``np_random``.

        Raises:
            ValueError: a list of seeds, a seed outside [0, 2**32), or options (single rows can't
                be reset from outside, so ``reset_mask`` is refused as well).
        """
        if seed is not None and np.ndim(seed) != 0:
            raise ValueError(f"{self.batched.spec.name}: one integer seeds all rows, got {seed!r}")
        super().reset(seed=seed)
        _checked_options(self.batched.spec, options)
        drawn = int(self.np_random.integers(2**32)) if seed is None else seed
        decision = self.batched.reset(drawn)
        return decision.observation, self._infos(decision, {})

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Observations, rewards (float64 ``[N]``), terminations, truncations (``[N]``), infos.

        Raises:
            LifecycleError, ActionError: see :meth:`envs.batched.BatchedEnv.step`.
        """
        decision, outcome = self.batched.step(actions)
        infos: dict[str, Any] = {}
        for row in np.flatnonzero(outcome.ended).tolist():
            ended: dict[str, Any] = {"final_info": episode_info(outcome, row)}
            final = final_observation(self.batched, outcome, row)
            if final is not None:
                ended = {"final_obs": final, **ended}
            infos = self._add_info(infos, ended, row)
        rewards = outcome.reward.astype(np.float64)
        infos = self._infos(decision, infos)
        return decision.observation, rewards, outcome.terminated, outcome.truncated, infos

    def close_extras(self, **kwargs: Any) -> None:
        """Release the environments."""
        self.batched.close()

    def _infos(self, decision: Decision, infos: dict[str, Any]) -> dict[str, Any]:
        if decision.legal_actions is not None:
            infos["action_mask"] = decision.legal_actions.astype(np.int8)
            infos["_action_mask"] = np.ones(self.num_envs, bool)
        return infos
