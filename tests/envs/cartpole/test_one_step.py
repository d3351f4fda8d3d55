"""One transition of the port against Gymnasium's, from visited and from synthesised states."""

import numpy as np
import pytest

from envs.cartpole import contract as c
from envs.cartpole.jax_port import largest_float32
from tests.envs.cartpole.matched import (
    FLOATS,
    LIMITS,
    SPEC,
    assert_close,
    assert_same_step,
    near_a_limit,
    pair,
    starts,
    step_from,
    synthesised,
)

N = 500


@pytest.fixture(scope="module")
def simulators():
    return pair(N)


def state(**changes):
    """N equal rows: at rest in the middle, but for the changes (scalars or [N])."""
    values = {name: changes.get(name, 0) for name in SPEC.state}
    return {
        name: np.broadcast_to(np.asarray(value, SPEC.state[name].dtype), (N,))
        for name, value in values.items()
    }


def test_step_from_visited_states_agrees(simulators):
    reference, port = simulators
    rng = np.random.default_rng(1)
    reference.reset(starts(N))
    doubtful, ended = 0, 0
    for _ in range(30):
        fields = reference.get_state()
        actions = rng.integers(0, 2, N)
        expected, fields_after = step_from(reference, fields, actions)
        got, port_after = step_from(port, fields, actions)
        near = near_a_limit(expected.final)
        assert_same_step(expected, got, ~near)
        for name in FLOATS:
            assert_close(fields_after[name][~near], port_after[name][~near])
        np.testing.assert_array_equal(fields_after["steps"][~near], port_after["steps"][~near])
        doubtful += near.sum()
        ended += expected.terminated.sum()
    assert ended > N // 2
    assert doubtful <= 3


def test_step_from_synthesised_states_agrees(simulators):
    reference, port = simulators
    rng = np.random.default_rng(2)
    doubtful, disagreeing, events = 0, 0, np.zeros(len(SPEC.events), int)
    for seed in range(20):
        fields, actions = synthesised(N, seed), rng.integers(0, 2, N)
        expected, _ = step_from(reference, fields, actions)
        got, _ = step_from(port, fields, actions)
        near = near_a_limit(expected.final)
        doubtful += near.sum()
        disagreeing += (got.terminated != expected.terminated).sum()
        assert_same_step(expected, got, ~near)
        assert not (expected.terminated & expected.truncated).any()
        events += expected.events.sum(axis=0)
    assert (events > 100).all(), dict(zip(SPEC.events, events, strict=True))
    # One row in ten was put at an edge on purpose; only those may be in doubt.
    assert 0 < doubtful <= 0.15 * 20 * N
    assert disagreeing <= 0.005 * 20 * N


@pytest.mark.parametrize("name", LIMITS)
def test_port_ends_on_the_right_side_of_each_limit(simulators, name):
    """Just outside the doubtful band, and at rest (no rounding) with the float32 neighbours of
    the limit itself, termination is the reference's exactly."""
    limit, dtype = LIMITS[name], np.float32
    band = c.STEP_TOLERANCE.rel * (1 + limit)
    inside = largest_float32(limit)
    places = [limit - 2 * band, inside, np.nextafter(inside, dtype(9)), limit + 2 * band]
    side = np.resize([1.0, -1.0], N)
    fields = state(**{name: side * np.resize(np.repeat(places, 2), N)})
    for action in (0, 1):
        outcomes = [step_from(s, fields, np.full(N, action))[0] for s in simulators]
        np.testing.assert_array_equal(outcomes[1].terminated, outcomes[0].terminated)
        np.testing.assert_array_equal(outcomes[1].events, outcomes[0].events)
    np.testing.assert_array_equal(outcomes[0].terminated, np.resize([0, 0, 0, 0, 1, 1, 1, 1], N))


@pytest.mark.parametrize("name", LIMITS)
@pytest.mark.parametrize("sign", [-1, 1])
def test_port_ends_on_the_right_side_when_moving(simulators, name, sign):
    """Moving towards the limit, one step ends twice the tolerance before or behind it."""
    limit = LIMITS[name]
    band = c.STEP_TOLERANCE.rel * (1 + limit)
    speed = np.linspace(0.1, 5.0, N, dtype=np.float32)
    before = np.arange(N) % 2 == 0
    target = limit + np.where(before, -2, 2) * band
    place = target - c.TIME_STEP * speed.astype(np.float64)
    fields = state(**{name: sign * place, f"{name}_dot": sign * speed})
    for simulator in simulators:
        outcome, _ = step_from(simulator, fields, np.ones(N, int))
        np.testing.assert_array_equal(outcome.terminated, ~before)


def test_mirrored_state_and_action_give_the_mirrored_step(simulators):
    _, port = simulators
    fields, actions = synthesised(N, 77), np.random.default_rng(3).integers(0, 2, N)
    mirrored = {name: -v if name in FLOATS else v for name, v in fields.items()}
    one, _ = step_from(port, fields, actions)
    other, _ = step_from(port, mirrored, 1 - actions)
    np.testing.assert_array_equal(other.final.observation, -one.final.observation)
    np.testing.assert_array_equal(other.events, one.events[:, [1, 0, 3, 2, 4]])


@pytest.mark.parametrize("index", [0, 1])
def test_positions_move_with_the_old_velocities(simulators, index):
    """Explicit Euler, as Gymnasium does it: the force acts on the velocities only."""
    fields = state(x=0.5, x_dot=1.0, theta=0.1, theta_dot=-1.0)
    left, right = (step_from(simulators[index], fields, np.full(N, a))[0].final for a in (0, 1))
    np.testing.assert_array_equal(left.observation[:, [0, 2]], right.observation[:, [0, 2]])
    np.testing.assert_allclose(left.observation[0, [0, 2]], [0.52, 0.08], rtol=1e-6)
    assert (right.observation[:, 1] > left.observation[:, 1]).all()
    assert (right.observation[:, 3] < left.observation[:, 3]).all()


@pytest.mark.parametrize("index", [0, 1])
def test_reward_is_one_in_the_failing_step_too(simulators, index):
    outcome, _ = step_from(simulators[index], state(x=2.39, x_dot=5.0), np.ones(N, int))
    assert outcome.terminated.all()
    np.testing.assert_array_equal(outcome.reward, np.ones(N, np.float32))


@pytest.mark.parametrize("index", [0, 1])
def test_failing_observation_lies_in_the_space_and_is_not_clipped(simulators, index):
    fields = state(x=2.4, x_dot=5.0, theta=0.2, theta_dot=5.0)
    outcome, _ = step_from(simulators[index], fields, np.ones(N, int))
    assert outcome.terminated.all()
    assert (abs(outcome.final.observation[:, 0]) > c.X_LIMIT).all()
    assert all(SPEC.observation_space.contains(row) for row in outcome.final.observation)


def test_largest_float32_is_not_above_its_limit_and_the_next_is():
    for limit in (c.X_LIMIT, c.THETA_LIMIT, 0.5, 1 / 3):
        got = largest_float32(limit)
        assert got.dtype == np.float32
        assert float(got) <= limit < float(np.nextafter(got, np.float32(9)))
