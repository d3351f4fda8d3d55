"""STEP_TOLERANCE comes from the reference alone: Gymnasium's own code run in float32 and float64.

CartPole-v1 computes in the dtype of its state, so handing it a float32 state runs its float32
version. No port takes part, and nothing here has to be changed when a port changes.
"""

import gymnasium
import numpy as np
import pytest

from envs.cartpole import contract as c
from tests.envs.cartpole.matched import FLOATS, synthesised

COUNT = 4000


def own_steps(states, actions, dtype):
    """Gymnasium's states after one step, computed in this dtype; float64 ``[n, 4]``."""
    core = gymnasium.make("CartPole-v1").unwrapped
    after = []
    for state, action in zip(states.astype(dtype), actions, strict=True):
        core.reset()
        core.state = state
        core.step(int(action))
        after.append(core.state)
    return np.array(after, np.float64)


@pytest.fixture(scope="module")
def rounding():
    """|float32 - float64| / (1 + |float64|) of every field, ``[n, 4]``."""
    fields = synthesised(COUNT, 5)
    states = np.stack([fields[name] for name in FLOATS], axis=1)
    actions = np.random.default_rng(5).integers(0, 2, COUNT)
    exact = own_steps(states, actions, np.float64)
    return abs(own_steps(states, actions, np.float32) - exact) / (1 + abs(exact))


def test_float32_run_of_the_reference_does_compute_in_float32(rounding):
    assert (rounding.max(axis=0) > 0).all()


def test_tolerance_is_a_small_multiple_of_the_references_own_rounding(rounding):
    worst = rounding.max()
    assert 2 * worst <= c.STEP_TOLERANCE.rel <= 10 * worst
    assert c.STEP_TOLERANCE.abs == 0.0
    assert c.STEP_TOLERANCE.pass_rate == 1.0


def test_tolerance_sees_a_constant_that_is_wrong_in_the_fourth_digit():
    """What the tolerance can tell apart: gravity 9.801 instead of 9.8, from typical states."""
    rng = np.random.default_rng(6)
    states = rng.uniform(-1, 1, (200, 4)) * [c.X_LIMIT, 1.0, c.THETA_LIMIT, 1.0]
    core = gymnasium.make("CartPole-v1").unwrapped
    gaps = []
    for state in states:
        after = []
        for gravity in (c.GRAVITY, 9.801):
            core.reset()
            core.gravity, core.state = gravity, state
            core.step(1)
            after.append(core.state)
        gaps.append(abs(after[1] - after[0]) / (1 + abs(after[0])))
    assert (np.array(gaps) > c.STEP_TOLERANCE.rel).any(axis=1).mean() > 0.9
