"""Gymnasium environments as references: N instances driven as they are, one after another.

A room says where its environment keeps its state by a StateAccess; everything else is here.
"""

from __future__ import annotations

import abc
import pickle
from typing import Any

import gymnasium
import numpy as np
from gymnasium.wrappers import TimeLimit

from envs.batched import BatchedEnv
from envs.core import Capabilities, Decision, EnvSpec, Outcome
from envs.simulator import Simulator


class StateAccess(abc.ABC):
    """How to reach inside one Gymnasium environment."""

    @abc.abstractmethod
    def make(self) -> gymnasium.Env:
        """A new instance, its TimeLimit wrapper included."""

    @abc.abstractmethod
    def start(self, env: gymnasium.Env, noise: Any) -> None:
        """Right after ``env.reset()``: put it where this row's ResetNoise says."""

    @abc.abstractmethod
    def read(self, env: gymnasium.Env) -> dict[str, Any]:
        """The canonical fields."""

    @abc.abstractmethod
    def write(self, env: gymnasium.Env, fields: dict[str, Any]) -> None:
        """Continue from these canonical fields."""

    @abc.abstractmethod
    def observe(self, env: gymnasium.Env) -> np.ndarray:
        """The observation at the present state."""

    @abc.abstractmethod
    def events(self, env: gymnasium.Env) -> np.ndarray:
        """Which of the spec's events fired in the step that led to the present state."""

    @staticmethod
    def time_limit(env: gymnasium.Env) -> TimeLimit:
        while not isinstance(env, TimeLimit):
            env = env.env
        return env

    def elapsed(self, env: gymnasium.Env) -> int:
        return int(self.time_limit(env)._elapsed_steps or 0)

    def set_elapsed(self, env: gymnasium.Env, steps: int) -> None:
        self.time_limit(env)._elapsed_steps = steps


class _Rows:
    """N instances and their buffers; resetting a row is left to the two faces below."""

    def __init__(self, spec: EnvSpec, num_envs: int, access: StateAccess) -> None:
        self.spec, self.access = spec, access
        self.envs = [access.make() for _ in range(num_envs)]

    def decision(self, observations: list[np.ndarray]) -> Decision:
        dtype = self.spec.observation_space.dtype
        return Decision(np.stack(observations).astype(dtype), np.ones(len(self.envs), bool))

    def step(self, actions: np.ndarray, restart: Any) -> tuple[Decision, Outcome]:
        """``restart(i)`` resets row i and returns its first observation."""
        count = len(self.envs)
        observations, finals = [], []
        reward = np.zeros(count, np.float32)
        terminated, truncated = np.zeros(count, bool), np.zeros(count, bool)
        events = np.zeros((count, len(self.spec.events)), bool)
        for i, env in enumerate(self.envs):
            action = actions[i].item() if actions[i].ndim == 0 else actions[i]
            observation, reward[i], terminated[i], limit, _ = env.step(action)
            truncated[i] = limit and not terminated[i]
            events[i] = self.access.events(env)
            finals.append(observation)
            observations.append(restart(i) if terminated[i] or truncated[i] else observation)
        outcome = Outcome(
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            metrics={},
            invalid=np.zeros(count, bool),
            final=self.decision(finals),
            events=events,
        )
        return self.decision(observations), outcome

    def close(self) -> None:
        for env in self.envs:
            env.close()


class GymnasiumBatched(BatchedEnv):
    """Trained on and timed with Gymnasium's own generators: row i is seeded with seed + i."""

    capabilities = Capabilities(set_state=False, snapshot=False)

    def __init__(self, spec: EnvSpec, num_envs: int, access: StateAccess) -> None:
        super().__init__(spec, num_envs)
        self._rows = _Rows(spec, num_envs, access)

    def _reset(self, seed: int) -> Decision:
        return self._rows.decision(
            [env.reset(seed=seed + i)[0] for i, env in enumerate(self._rows.envs)]
        )

    def _step(self, actions: np.ndarray) -> tuple[Decision, Outcome]:
        return self._rows.step(actions, lambda i: self._rows.envs[i].reset()[0])

    def _close(self) -> None:
        self._rows.close()


class GymnasiumSimulator(Simulator):
    """The same environments with every draw from outside, by set_state right after reset."""

    def __init__(self, spec: EnvSpec, num_envs: int, access: StateAccess) -> None:
        super().__init__(spec, num_envs)
        self._access = access
        self._rows = _Rows(spec, num_envs, access)

    def _reset(self, reset_noise: Any) -> Decision:
        return self._rows.decision([self._restart(i, reset_noise) for i in range(self.num_envs)])

    def _restart(self, row: int, reset_noise: Any) -> np.ndarray:
        env = self._rows.envs[row]
        env.reset()
        self._access.start(env, type(reset_noise)(*(site[row] for site in reset_noise)))
        return self._access.observe(env)

    def _step(
        self, actions: np.ndarray, step_noise: Any, reset_noise: Any
    ) -> tuple[Decision, Outcome]:
        return self._rows.step(actions, lambda i: self._restart(i, reset_noise))

    def _get_state(self) -> dict[str, np.ndarray]:
        rows = [self._access.read(env) for env in self._rows.envs]
        return {name: np.stack([np.asarray(row[name]) for row in rows]) for name in self.spec.state}

    def _set_state(self, fields: dict[str, np.ndarray]) -> Decision:
        for i, env in enumerate(self._rows.envs):
            env.reset()
            self._access.write(env, {name: values[i] for name, values in fields.items()})
        return self._rows.decision([self._access.observe(env) for env in self._rows.envs])

    def _snapshot(self) -> bytes:
        return pickle.dumps((self.spec.digest, self.num_envs, self._rows.envs))

    def _restore(self, data: bytes) -> Decision:
        try:
            digest, count, environments = pickle.loads(data)
        except Exception as error:
            raise ValueError(f"{self.spec.name}: not a readable snapshot ({error})") from error
        if (digest, count) != (self.spec.digest, self.num_envs):
            raise ValueError(f"{self.spec.name}: the snapshot is of another kind or num_envs")
        self._rows.envs = environments
        return self._rows.decision([self._access.observe(env) for env in environments])

    def _close(self) -> None:
        self._rows.close()
