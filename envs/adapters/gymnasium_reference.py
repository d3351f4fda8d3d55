"""Gymnasium environments as references: N instances driven as they are, one after another.

Row i of a batch that is reset with a seed gets ``row_seeds(seed, N)[i]``. A room says where its
environment keeps its state by a StateAccess; everything else is here.
"""

from __future__ import annotations

import abc
import json
from typing import Any

import gymnasium
import numpy as np
from gymnasium.wrappers import TimeLimit

from envs.batched import BatchedEnv
from envs.core import Capabilities, Decision, EnvSpec, Outcome
from envs.sealing import seal, unseal
from envs.simulator import Simulator


def row_seeds(seed: int, count: int) -> list[int]:
    """What each row's Gymnasium environment is seeded with: 32-bit words that NumPy's
    SeedSequence makes of the seed. Neighbouring seeds share no rows, and row i has the same seed
    whatever the count is."""
    return np.random.SeedSequence(seed).generate_state(count).tolist()


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
        """The canonical fields, as exactly as the environment holds them: numbers or arrays.

        A snapshot is these, the time limit's counter and the generator, so they must be all that
        its future depends on.
        """

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
    """Trained on and timed with Gymnasium's own generators, seeded by :func:`row_seeds`."""

    capabilities = Capabilities(set_state=False, snapshot=False)

    def __init__(self, spec: EnvSpec, num_envs: int, access: StateAccess) -> None:
        super().__init__(spec, num_envs)
        self._rows = _Rows(spec, num_envs, access)

    def _reset(self, seed: int) -> Decision:
        seeds = row_seeds(seed, self.num_envs)
        return self._rows.decision(
            [env.reset(seed=s)[0] for env, s in zip(self._rows.envs, seeds, strict=True)]
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
        rows = [_row_to_json(self._access, env) for env in self._rows.envs]
        return seal(self._identity(), json.dumps(rows).encode())

    def _restore(self, data: bytes) -> Decision:
        try:
            rows = [_row_from_json(row) for row in json.loads(unseal(self._identity(), data))]
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{self.spec.name}: {error}") from error
        for env, (fields, elapsed, generator) in zip(self._rows.envs, rows, strict=True):
            env.reset()
            self._access.write(env, fields)
            self._access.set_elapsed(env, elapsed)
            env.unwrapped.np_random = generator
        return self._rows.decision([self._access.observe(env) for env in self._rows.envs])

    def _identity(self) -> str:
        return f"{self.spec.digest} gymnasium {gymnasium.__version__} {self.num_envs}"

    def _close(self) -> None:
        self._rows.close()


def _row_to_json(access: StateAccess, env: gymnasium.Env) -> dict[str, Any]:
    """One row of a snapshot; JSON's numbers hold every float64 and any integer exactly."""
    fields = {name: np.asarray(value) for name, value in access.read(env).items()}
    return dict(
        fields={name: [array.dtype.str, array.tolist()] for name, array in fields.items()},
        elapsed=access.elapsed(env),
        generator=env.unwrapped.np_random.bit_generator.state,
    )


def _row_from_json(row: dict[str, Any]) -> tuple[dict[str, Any], int, np.random.Generator]:
    """Canonical fields, steps taken, and a generator in the state that was saved."""
    fields = {name: np.array(values, dtype) for name, (dtype, values) in row["fields"].items()}
    bits = np.random.PCG64()  # the one that Gymnasium makes
    bits.state = row["generator"]
    return fields, int(row["elapsed"]), np.random.Generator(bits)
