"""What every backend of CartPole obeys. Rules and constants: Gymnasium's CartPole-v1."""

from __future__ import annotations

import math

import numpy as np
from gymnasium import spaces

from envs.core import EnvSpec, Field, NoiseSite, Tolerance

GRAVITY = 9.8  # m/s^2
CART_MASS = 1.0  # kg
POLE_MASS = 0.1  # kg
HALF_LENGTH = 0.5  # m, half the pole
FORCE = 10.0  # N, to the right for action 1 and to the left for action 0
TIME_STEP = 0.02  # s
X_LIMIT = 2.4  # m
THETA_LIMIT = 12 * 2 * math.pi / 360  # rad
START_RANGE = 0.05
MAX_EPISODE_STEPS = 500

# Gymnasium's own code run in float32 is up to 1.0e-7 * (1 + |value|) off its float64 run (180,000
# states; tests/envs/cartpole/test_tolerance.py repeats it with 4,000). Four times that leaves
# room for other sine and cosine routines and for fused multiply-adds.
STEP_TOLERANCE = Tolerance(rel=4e-7)


def make_spec() -> EnvSpec:
    """CartPole has no rule parameters."""
    # Twice the limits, so that the observation of a failing step is still inside.
    high = np.array([2 * X_LIMIT, np.inf, 2 * THETA_LIMIT, np.inf], np.float32)

    def real(limit: float, special: tuple[float, ...] = ()) -> Field:
        return Field((), "float32", STEP_TOLERANCE, -limit, limit, (0.0, *special))

    return EnvSpec(
        name="cartpole",
        version="1",
        observation_space=spaces.Box(-high, high, dtype=np.float32),
        action_space=spaces.Discrete(2),
        truncates=True,
        max_episode_steps=MAX_EPISODE_STEPS,
        events=("cart_left", "cart_right", "pole_left", "pole_right", "limit"),
        reset_noise={"start": NoiseSite("uniform", (4,), -START_RANGE, START_RANGE)},
        state={
            "x": real(X_LIMIT, (-X_LIMIT, X_LIMIT)),
            "x_dot": real(5.0),
            "theta": real(THETA_LIMIT, (-THETA_LIMIT, THETA_LIMIT)),
            "theta_dot": real(5.0),
            "steps": Field(
                (), "int32", low=0, high=MAX_EPISODE_STEPS - 1, special=(0, MAX_EPISODE_STEPS - 1)
            ),
        },
    )
