"""BatchedEnv -> Stable-Baselines3 VecEnv."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np

from envs.adapters.gymnasium_env import episode_info, final_observation, require_single_agent
from envs.batched import BatchedEnv
from envs.core import Decision, LifecycleError, MissingDependency, Observation

try:
    from stable_baselines3.common.vec_env import VecEnv
except ImportError as error:
    raise MissingDependency(
        f"Stable-Baselines3 and torch are not installed ({error}); run `make setup-torch`"
    ) from error

Indices = int | Sequence[int] | None


class SB3VecEnv(VecEnv):
    """N environments for Stable-Baselines3's algorithms.

    Infos are those of its ``DummyVecEnv``: ``TimeLimit.truncated`` in every row, and
    ``terminal_observation`` where an episode ended (missing where the backend can't give it);
    besides, ``metrics`` of the ended episode where the spec has metrics. The rows share one
    batched environment, so attributes can be read by row but not set, and the one method by row
    is ``action_masks`` (bool ``[n]``; what sb3-contrib's MaskablePPO asks for).

    ``seed(s)`` takes effect at the next ``reset``; a reset without one goes on from seeds drawn
    after the last one.

    Raises:
        ValueError: more than one agent.
    """

    def __init__(self, env: BatchedEnv) -> None:
        require_single_agent(env.spec, "Stable-Baselines3")
        self.batched = env
        self._decision: Decision | None = None
        self._actions: np.ndarray | None = None
        self._seeder = np.random.default_rng()
        super().__init__(env.num_envs, env.spec.observation_space, env.spec.action_space)

    def reset(self) -> Observation:
        """First observations ``[N, ...]`` of new episodes in all rows.

        Raises:
            ValueError: a seed outside [0, 2**32), or options (there are none).
        """
        if any(self._options):
            raise ValueError(f"{self.batched.spec.name}: reset takes no options")
        given = self._seeds[0]
        seed = int(self._seeder.integers(2**32)) if given is None else given
        self._decision = self.batched.reset(seed)
        if given is not None:
            self._seeder = np.random.default_rng(given)
        self._reset_seeds()
        self._actions = None
        return self._observation()

    def step_async(self, actions: np.ndarray) -> None:
        """Keep the actions ``[N, ...]``; the step is made by :meth:`step_wait`."""
        self._actions = actions

    def step_wait(self) -> tuple[Observation, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        """Observations, rewards float32 ``[N]``, ends bool ``[N]``, N infos.

        Raises:
            LifecycleError: no ``step_async`` before, or the environment is not reset or closed.
            ActionError: see :func:`envs.checks.check_actions`; nothing was stepped then.
        """
        if self._actions is None:
            raise LifecycleError(f"{self.batched.spec.name}: step_wait without step_async")
        actions, self._actions = self._actions, None
        self._decision, outcome = self.batched.step(actions)
        infos: list[dict[str, Any]] = [
            {"TimeLimit.truncated": limit} for limit in outcome.truncated.tolist()
        ]
        ended = outcome.ended
        for row in np.flatnonzero(ended).tolist():
            infos[row].update(episode_info(outcome, row))
            final = final_observation(self.batched, outcome, row)
            if final is not None:
                infos[row]["terminal_observation"] = final
        return self._observation(), np.array(outcome.reward), ended, infos

    def close(self) -> None:
        """Release the environments; safe to call again."""
        self.batched.close()

    def action_masks(self) -> np.ndarray:
        """bool ``[N, n]``: the legal actions at the open decision.

        Raises:
            AttributeError: the environment has no legal actions, or before ``reset``.
        """
        if self._decision is None or self._decision.legal_actions is None:
            raise AttributeError(f"{self.batched.spec.name} has no action masks here")
        return self._decision.legal_actions

    def get_attr(self, attr_name: str, indices: Indices = None) -> list[Any]:
        """The batched environment's attribute, once for each row asked for."""
        if attr_name == "render_mode":
            return [None for _ in self._get_indices(indices)]
        if attr_name == "action_masks" and self.batched.spec.has_legal_actions:
            return [lambda row=row: self.action_masks()[row] for row in self._get_indices(indices)]
        value = getattr(self.batched, attr_name)
        return [value for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Indices = None) -> None:
        """Refused: rows have no attributes of their own.

        Raises:
            AttributeError: always.
        """
        raise AttributeError(
            f"cannot set {attr_name}: the rows share one batched environment; "
            "rule parameters are chosen in envs.make"
        )

    def env_method(
        self, method_name: str, *method_args: Any, indices: Indices = None, **method_kwargs: Any
    ) -> list[Any]:
        """``action_masks`` of the rows asked for.

        Raises:
            AttributeError: any other method.
        """
        if method_name != "action_masks" or not self.batched.spec.has_legal_actions:
            raise AttributeError(f"rows of {self.batched.spec.name} have no method {method_name}")
        methods = self.get_attr(method_name, indices)
        return [method(*method_args, **method_kwargs) for method in methods]

    def env_is_wrapped(
        self, wrapper_class: type[gymnasium.Wrapper], indices: Indices = None
    ) -> list[bool]:
        """False for every row: Gymnasium wrappers don't apply to a batch."""
        return [False for _ in self._get_indices(indices)]

    def _observation(self) -> Observation:
        """The open decision's observations as the caller's own arrays.

        Stable-Baselines3 stores them after the next step, when a view would have changed.
        """
        assert self._decision is not None
        observation = self._decision.observation
        if isinstance(observation, dict):
            return {key: np.array(values) for key, values in observation.items()}
        return np.array(observation)
