import dataclasses

import jax
import numpy as np
import pytest
from gymnasium import spaces

from envs.adapters.frame_stack import FrameStack, stacked_spec
from envs.adapters.numpy_faces import FunctionalBatched, FunctionalSimulator
from envs.adapters.vectorize import vectorize
from envs.core import EnvSpec
from tests.envs.adapters import tiny

N, K = 5, 3

GAMES = {
    "one agent": lambda: tiny.walk(N),
    "a dict": lambda: tiny.walk(N, dict_observation=True),
    "two agents": lambda: tiny.game(N, simultaneous=False),
}
games = pytest.mark.parametrize("make", GAMES.values(), ids=GAMES)


@pytest.fixture(scope="module")
def stacked():
    return FrameStack(tiny.walk(N), K)


def row(observation, *where):
    return jax.tree.map(lambda x: np.asarray(np.asarray(x)[where]), observation)


def stack(history, k):
    """The last k of one seat's observations, the first one repeated where there are fewer."""
    padded = [history[0]] * (k - len(history)) + history[-k:]
    return jax.tree.map(lambda *xs: np.stack(xs), *padded)


@games
@pytest.mark.parametrize("k", [1, K])
def test_stacks_are_the_last_observations_of_the_same_episode(make, k):
    inner = make()
    env = FrameStack(inner, k)
    seats = list(np.ndindex(*inner.spec.rows(N)))
    reset, step, _ = tiny.jitted(inner)
    stacked_step, stacked_observe = jax.jit(env.step), jax.jit(env.observe)
    state, plain = reset(tiny.reset_noise(inner, 7))
    stacked, decision = jax.jit(env.reset)(tiny.reset_noise(inner, 7))
    histories = {seat: [row(plain.observation, *seat)] for seat in seats}
    ends = 0
    for t, action in enumerate(tiny.actions(inner, 7, 20)):
        for seat in seats:
            tiny.assert_equal(row(decision.observation, *seat), stack(histories[seat], k))
        tiny.assert_equal(stacked_observe(stacked), decision)
        inputs = (action, *tiny.noise(inner, 7, t))
        state, plain, outcome = step(state, *inputs)
        stacked, decision, stacked_outcome = stacked_step(stacked, *inputs)
        # Nothing else than the observations is changed.
        assert_equal_but_observations(decision, plain)
        tiny.assert_equal(
            tiny.masked(stacked_outcome)._replace(final=None),
            tiny.masked(outcome)._replace(final=None),
        )
        ended = np.asarray(outcome.terminated | outcome.truncated)
        final = tiny.rows_of(outcome.final, ended)
        stacked_final = tiny.rows_of(stacked_outcome.final, ended)
        assert_equal_but_observations(stacked_final, final)
        for seat in seats:
            if ended[seat[0]]:
                ends += 1
                histories[seat].append(row(outcome.final.observation, *seat))
                last = row(stacked_outcome.final.observation, *seat)
                tiny.assert_equal(last, stack(histories[seat], k))
                histories[seat] = []
            histories[seat].append(row(plain.observation, *seat))
    assert ends > N
    tiny.assert_equal(stacked.inner, state)


def assert_equal_but_observations(a, b):
    tiny.assert_equal(a._replace(observation=0), b._replace(observation=0))


@games
def test_the_spec_describes_the_stacks(make):
    inner = make()
    env = FrameStack(inner, K)
    spec = env.spec
    assert spec.parameters == {**inner.spec.parameters, "frame_stack": K}
    assert spec.digest not in (inner.spec.digest, FrameStack(inner, K + 1).spec.digest)
    assert spec == EnvSpec.from_json(spec.to_json())
    assert (spec.name, spec.state, spec.reset_noise) == (
        inner.spec.name,
        inner.spec.state,
        inner.spec.reset_noise,
    )
    _, decision = jax.jit(env.reset)(tiny.reset_noise(inner, 0))
    for seat in np.ndindex(*inner.spec.rows(N)):
        observation = row(decision.observation, *seat)
        assert spec.observation_space.contains(observation)


def test_bounds_are_those_of_one_observation():
    box = spaces.Box(np.array([-1, -2], np.float32), np.array([3, 4], np.float32))
    spec = dataclasses.replace(tiny.walk_spec(), observation_space=box)
    space = stacked_spec(spec, 3).observation_space
    assert space == spaces.Box(np.tile(box.low, (3, 1)), np.tile(box.high, (3, 1)))


def test_scan_is_the_loop(stacked):
    steps = 12
    states, decisions, outcomes = zip(*tiny.play(stacked, 2, steps), strict=True)

    def body(state, inputs):
        state, decision, outcome = stacked.step(state, *inputs)
        return state, (decision, outcome)

    def together(*trees):
        return jax.tree.map(lambda *xs: np.stack(xs), *trees)

    tapes = together(*(tiny.noise(stacked, 2, t) for t in range(steps)))
    first, _ = tiny.jitted(stacked)[0](tiny.reset_noise(stacked, 2))
    inputs = (tiny.actions(stacked, 2, steps), *tapes)
    state, (decision, outcome) = jax.jit(lambda s, x: jax.lax.scan(body, s, x))(first, inputs)
    tiny.assert_equal(state, states[-1])
    tiny.assert_equal(decision, together(*decisions))
    tiny.assert_equal(tiny.masked(outcome), tiny.masked(together(*outcomes)))


def test_donated_frames_leave_the_decisions_alone(stacked):
    copies, views = FunctionalBatched(stacked), FunctionalBatched(stacked, copy=False)
    tiny.assert_equal(views.reset(1), copies.reset(1))
    kept = []
    for _ in range(10):
        frames = views._state.frames
        kept.append((views.step(np.full(N, 2)), copies.step(np.full(N, 2))))
        assert frames.is_deleted()
    for mine, expected in kept:
        tiny.assert_equal(mine, expected)


def test_canonical_fields_are_the_inner_ones_and_open_a_stack_of_one_moment(stacked):
    simulator = FunctionalSimulator(stacked)
    simulator.reset(tiny.reset_noise(stacked, 0))
    for t in range(2):
        decision, _ = simulator.step(np.full(N, 1), *tiny.noise(stacked, 0, t))
    assert np.unique(decision.observation[:, :, 1]).tolist() == [0, 1, 2]
    again = simulator.set_state(simulator.get_state())
    newest = decision.observation[:, -1:]
    np.testing.assert_array_equal(again.observation, np.repeat(newest, K, axis=1))


def test_a_snapshot_keeps_the_frames(stacked):
    simulator = FunctionalSimulator(stacked)
    simulator.reset(tiny.reset_noise(stacked, 0))
    decision, _ = simulator.step(np.full(N, 1), *tiny.noise(stacked, 0, 0))
    data = simulator.snapshot()
    expected = simulator.step(np.full(N, 2), *tiny.noise(stacked, 0, 1))
    tiny.assert_equal(simulator.restore(data), decision)
    tiny.assert_equal(simulator.step(np.full(N, 2), *tiny.noise(stacked, 0, 1)), expected)


def test_a_snapshot_belongs_to_the_port_inside(stacked):
    class Port(tiny.Walk):
        """Another implementation of the same contract."""

    simulator = FunctionalSimulator(stacked)
    simulator.reset(tiny.reset_noise(stacked, 0))
    other = FunctionalSimulator(FrameStack(vectorize(Port(tiny.walk_spec()), N), K))
    assert other.spec == simulator.spec
    with pytest.raises(ValueError, match="the snapshot is of another"):
        other.restore(simulator.snapshot())


@pytest.mark.parametrize("k", [0, -2, 2.0, "3", None])
def test_bad_numbers_of_frames(k):
    with pytest.raises(ValueError, match="k must be a positive integer, got"):
        FrameStack(tiny.walk(N), k)


def test_a_stack_of_stacks_is_refused(stacked):
    with pytest.raises(ValueError, match="walk is stacked already"):
        FrameStack(stacked, 2)
