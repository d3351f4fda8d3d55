"""CartPole in JAX, float32. The rules first, the shell that the contract asks for below."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from envs.cartpole import contract as c
from envs.core import Array, Decision, FunctionalEnv, Outcome


def largest_float32(limit: float) -> np.float32:
    """The largest float32 that is not above a positive limit.

    A float32 is past this exactly when it is past the float64 limit, which the nearest float32
    (2.4000001 for 2.4) does not give.
    """
    nearest = np.float32(limit)
    return nearest if float(nearest) <= limit else np.nextafter(nearest, np.float32(0))


X_LIMIT, THETA_LIMIT = largest_float32(c.X_LIMIT), largest_float32(c.THETA_LIMIT)


class CartPoleState(NamedTuple):
    x: Array  # m
    x_dot: Array  # m/s
    theta: Array  # rad, 0 is upright
    theta_dot: Array  # rad/s
    steps: Array  # int32, steps of this episode so far


def move(state: CartPoleState, force: Array) -> CartPoleState:
    """One explicit Euler step of the cart and pole (Barto, Sutton and Anderson 1983)."""
    cos, sin = jnp.cos(state.theta), jnp.sin(state.theta)
    mass, pole_moment = c.CART_MASS + c.POLE_MASS, c.POLE_MASS * c.HALF_LENGTH
    push = (force + pole_moment * state.theta_dot**2 * sin) / mass
    theta_acc = (c.GRAVITY * sin - cos * push) / (
        c.HALF_LENGTH * (4.0 / 3.0 - c.POLE_MASS * cos**2 / mass)
    )
    x_acc = push - pole_moment * theta_acc * cos / mass
    return CartPoleState(
        x=state.x + c.TIME_STEP * state.x_dot,
        x_dot=state.x_dot + c.TIME_STEP * x_acc,
        theta=state.theta + c.TIME_STEP * state.theta_dot,
        theta_dot=state.theta_dot + c.TIME_STEP * theta_acc,
        steps=state.steps + 1,
    )


class CartPole(FunctionalEnv):
    State = CartPoleState

    def init(self, reset_noise: Any) -> CartPoleState:
        x, x_dot, theta, theta_dot = reset_noise.start
        return CartPoleState(x, x_dot, theta, theta_dot, jnp.int32(0))

    def observe(self, state: CartPoleState) -> Decision:
        observation = jnp.stack([state.x, state.x_dot, state.theta, state.theta_dot])
        return Decision(observation, acting=jnp.bool_(True))

    def advance(
        self, state: CartPoleState, action: Array, step_noise: Any
    ) -> tuple[CartPoleState, Outcome]:
        state = move(state, jnp.where(action == 1, c.FORCE, -c.FORCE).astype(jnp.float32))
        fallen = jnp.stack(
            [
                state.x < -X_LIMIT,
                state.x > X_LIMIT,
                state.theta < -THETA_LIMIT,
                state.theta > THETA_LIMIT,
            ]
        )
        terminated = fallen.any()
        limit = state.steps >= c.MAX_EPISODE_STEPS
        return state, Outcome(
            reward=jnp.float32(1.0),
            terminated=terminated,
            truncated=limit & ~terminated,
            metrics={},
            invalid=jnp.bool_(False),
            events=jnp.append(fallen, limit),
        )
