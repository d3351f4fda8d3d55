"""Gymnasium's CartPole-v1 itself, driven as it is."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from envs.adapters.gymnasium_reference import GymnasiumBatched, GymnasiumSimulator, StateAccess
from envs.cartpole import contract as c
from envs.core import EnvSpec

_FIELDS = ("x", "x_dot", "theta", "theta_dot")


class CartPoleAccess(StateAccess):
    """Where CartPole-v1 keeps its state: four float64 and the time limit's counter."""

    def make(self) -> gymnasium.Env:
        return gymnasium.make("CartPole-v1", disable_env_checker=True)

    def start(self, env: gymnasium.Env, noise: Any) -> None:
        env.unwrapped.state = np.asarray(noise.start, np.float64)

    def read(self, env: gymnasium.Env) -> dict[str, Any]:
        values = dict(zip(_FIELDS, env.unwrapped.state, strict=True))
        return dict(values, steps=self.elapsed(env))

    def write(self, env: gymnasium.Env, fields: dict[str, Any]) -> None:
        env.unwrapped.state = np.array([fields[name] for name in _FIELDS], np.float64)
        env.unwrapped.steps_beyond_terminated = None
        self.set_elapsed(env, int(fields["steps"]))

    def observe(self, env: gymnasium.Env) -> np.ndarray:
        return np.array(env.unwrapped.state, np.float32)

    def events(self, env: gymnasium.Env) -> np.ndarray:
        x, _, theta, _ = env.unwrapped.state
        fallen = [x < -c.X_LIMIT, x > c.X_LIMIT, theta < -c.THETA_LIMIT, theta > c.THETA_LIMIT]
        return np.array([*fallen, self.elapsed(env) >= c.MAX_EPISODE_STEPS])


def make_batched(spec: EnvSpec, num_envs: int) -> GymnasiumBatched:
    return GymnasiumBatched(spec, num_envs, CartPoleAccess())


def make_simulator(spec: EnvSpec, num_envs: int) -> GymnasiumSimulator:
    return GymnasiumSimulator(spec, num_envs, CartPoleAccess())
