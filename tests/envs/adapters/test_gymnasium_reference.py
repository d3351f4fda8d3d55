import pickle

import gymnasium
import numpy as np
import pytest

import envs
from envs.adapters.gymnasium_reference import row_seeds
from envs.core import LifecycleError
from envs.noise import draw_reset_noise, draw_step_noise
from tests.envs.adapters import tiny

N = 3
ROWS = np.arange(N, dtype=np.uint32)


@pytest.fixture
def simulator():
    with envs.make("cartpole", "reference", N, interface="simulator") as simulator:
        yield simulator


def tape(spec, seed, step):
    return (
        draw_step_noise(spec, seed, step, ROWS),
        draw_reset_noise(spec, seed, step + 1, ROWS),
    )


def run(simulator, first, last):
    actions = np.random.default_rng(0).integers(0, 2, (last, N))
    return [simulator.step(actions[t], *tape(simulator.spec, 0, t)) for t in range(first, last)]


def start(simulator):
    return simulator.reset(draw_reset_noise(simulator.spec, 0, 0, ROWS))


def test_the_batch_is_gymnasium_itself_with_the_row_seeds():
    batched = envs.make("cartpole", "reference", N, interface="batched")
    plain = [gymnasium.make("CartPole-v1") for _ in range(N)]
    first = batched.reset(11)
    np.testing.assert_array_equal(
        first.observation,
        [env.reset(seed=s)[0] for env, s in zip(plain, row_seeds(11, N), strict=True)],
    )
    actions = np.random.default_rng(0).integers(0, 2, (120, N))
    ends = 0
    for action in actions:
        decision, outcome = batched.step(action)
        for i, env in enumerate(plain):
            observation, reward, terminated, truncated, _ = env.step(action[i])
            np.testing.assert_array_equal(outcome.final.observation[i], observation)
            assert (reward, terminated, truncated) == (
                outcome.reward[i],
                outcome.terminated[i],
                outcome.truncated[i],
            )
            if terminated or truncated:
                observation, _ = env.reset()
                ends += 1
            np.testing.assert_array_equal(decision.observation[i], observation)
    assert ends > N


def test_neighbouring_seeds_share_no_rows():
    seeds = [s for seed in range(20) for s in row_seeds(seed, 64)]
    assert len(set(seeds)) == len(seeds)
    with envs.make("cartpole", "reference", 64, interface="batched") as batched:
        rows = [row.tobytes() for seed in (0, 1) for row in batched.reset(seed).observation]
    assert len(set(rows)) == 2 * 64


def test_a_rows_seed_does_not_depend_on_the_number_of_rows():
    assert row_seeds(7, 64)[:5] == row_seeds(7, 5)


def test_an_episode_is_cut_by_gymnasiums_own_limit_which_counts_from_the_field(simulator):
    start(simulator)
    fields = simulator.get_state()
    zero = {name: np.zeros_like(values) for name, values in fields.items()}
    simulator.set_state(dict(zero, steps=np.array([499, 498, 0], np.int32)))
    _, outcome = simulator.step([0, 0, 0], *tape(simulator.spec, 0, 0))
    np.testing.assert_array_equal(outcome.truncated, [True, False, False])
    np.testing.assert_array_equal(outcome.events[:, -1], [True, False, False])
    np.testing.assert_array_equal(simulator.get_state()["steps"], [0, 499, 1])


def test_a_row_that_falls_at_the_limit_is_terminated_only(simulator):
    start(simulator)
    zero = {name: np.zeros_like(values) for name, values in simulator.get_state().items()}
    simulator.set_state(
        dict(zero, x=np.full(N, 2.399, np.float32), x_dot=np.full(N, 2, np.float32),
             steps=np.full(N, 499, np.int32))
    )  # fmt: skip
    _, outcome = simulator.step([1, 1, 1], *tape(simulator.spec, 0, 0))
    assert outcome.terminated.all()
    assert not outcome.truncated.any()


def test_episodes_start_where_the_noise_says(simulator):
    noise = draw_reset_noise(simulator.spec, 0, 0, ROWS)
    np.testing.assert_array_equal(simulator.reset(noise).observation, noise.start)
    for t, (decision, outcome) in enumerate(run(simulator, 0, 60)):
        ended = outcome.terminated
        fresh = tape(simulator.spec, 0, t)[1].start
        np.testing.assert_array_equal(decision.observation[ended], fresh[ended])


def test_a_snapshot_in_mid_episode_continues_exactly(simulator):
    start(simulator)
    before = run(simulator, 0, 7)
    data = simulator.snapshot()
    expected = run(simulator, 7, 60)
    start(simulator)
    tiny.assert_equal(simulator.restore(data), before[-1][0])
    tiny.assert_equal(run(simulator, 7, 60), expected)


def test_fields_continue_as_exactly_as_float32_holds_them(simulator):
    start(simulator)
    before = run(simulator, 0, 7)
    fields = simulator.get_state()
    np.testing.assert_array_equal(fields["steps"], [7, 7, 7])
    expected = run(simulator, 7, 8)
    start(simulator)
    tiny.assert_equal(simulator.set_state(fields), before[-1][0])
    tiny.assert_equal(simulator.get_state(), fields)
    np.testing.assert_allclose(
        run(simulator, 7, 8)[0][0].observation, expected[0][0].observation, atol=1e-6
    )


def test_a_state_written_after_an_end_starts_a_live_episode(simulator):
    start(simulator)
    zero = {name: np.zeros_like(values) for name, values in simulator.get_state().items()}
    simulator.set_state(dict(zero, x=np.full(N, 5, np.float32)))
    _, outcome = simulator.step([0, 0, 0], *tape(simulator.spec, 0, 0))
    assert outcome.terminated.all()
    simulator.set_state(zero)
    _, outcome = simulator.step([0, 0, 0], *tape(simulator.spec, 0, 0))
    assert not outcome.terminated.any()
    np.testing.assert_array_equal(outcome.reward, [1, 1, 1])


def test_a_snapshot_holds_float64_and_the_generators_exactly(simulator):
    def inside():
        cores = [env.unwrapped for env in simulator._rows.envs]
        states = [np.array(core.state).tobytes() for core in cores]
        return states, [core.np_random.bit_generator.state for core in cores]

    start(simulator)
    run(simulator, 0, 7)
    expected, data = inside(), simulator.snapshot()
    assert any(value != np.float32(value) for value in simulator._rows.envs[0].unwrapped.state)
    run(simulator, 7, 60)
    assert inside() != expected
    simulator.restore(data)
    assert inside() == expected
    assert simulator.snapshot() == data


def snapshot_of(num_envs):
    with envs.make("cartpole", "reference", num_envs, interface="simulator") as other:
        other.reset(draw_reset_noise(other.spec, 0, 0, np.arange(num_envs, dtype=np.uint32)))
        return other.snapshot()


BAD_SNAPSHOTS = {
    "nothing": lambda good: b"",
    "noise": lambda good: b"\x00garbage" * 9,
    "half": lambda good: good[: len(good) // 2],
    "a digit of the state": lambda good: good[:70] + bytes([good[70] ^ 1]) + good[71:],
    "other num_envs": lambda good: snapshot_of(N + 1),
    "a pickle": lambda good: pickle.dumps([1, 2, 3]),
}


@pytest.mark.parametrize("spoil", BAD_SNAPSHOTS.values(), ids=BAD_SNAPSHOTS)
def test_a_bad_snapshot_is_refused_and_changes_nothing(simulator, spoil):
    start(simulator)
    run(simulator, 0, 3)
    before = simulator.get_state()
    with pytest.raises(ValueError, match="cartpole: the snapshot is damaged, or of another"):
        simulator.restore(spoil(simulator.snapshot()))
    tiny.assert_equal(simulator.get_state(), before)


def test_the_trained_on_face_declares_that_it_keeps_its_generators_to_itself():
    batched = envs.make("cartpole", "reference", N, interface="batched")
    assert not batched.capabilities.set_state
    assert not batched.capabilities.snapshot
    assert batched.capabilities.final_on_termination


def test_the_lifecycle_of_the_simulator(simulator):
    with pytest.raises(LifecycleError, match="no state yet"):
        simulator.step([0, 0, 0], *tape(simulator.spec, 0, 0))
    start(simulator)
    simulator.close()
    simulator.close()
    with pytest.raises(LifecycleError, match="used after close"):
        start(simulator)
