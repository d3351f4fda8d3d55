"""Whole episodes of port and reference under the same starts and actions, and the time limit."""

import gymnasium
import numpy as np
import pytest

import envs
from envs.adapters.gymnasium_reference import row_seeds
from envs.cartpole import contract as c
from tests.envs.cartpole.matched import (
    SPEC,
    assert_close,
    assert_same_step,
    near_a_limit,
    pair,
    starts,
    step_from,
)

EPISODES = 200
BACKENDS = ("reference", "jax")


@pytest.fixture(scope="module")
def simulators():
    return pair(EPISODES)


def balance(observation):
    """A linear controller that keeps the pole up for whole episodes."""
    return (observation @ np.array([0.1, 0.5, 1.0, 1.0], np.float32) > 0).astype(np.int32)


def test_teacher_forced_episodes_agree_at_every_step(simulators):
    """Every step starts from the reference's state, through episodes and their restarts."""
    reference, port = simulators
    rng = np.random.default_rng(0)
    reference.reset(starts(EPISODES))
    ended, doubtful = 0, 0
    for t in range(60):
        port.set_state(reference.get_state())
        actions, fresh = rng.integers(0, 2, EPISODES), starts(EPISODES, step=t + 1)
        decision, expected = reference.step(actions, SPEC.StepNoise(), fresh)
        port_decision, got = port.step(actions, SPEC.StepNoise(), fresh)
        near = near_a_limit(expected.final)
        assert_same_step(expected, got, ~near)
        assert_close(decision.observation[~near], port_decision.observation[~near])
        ended += expected.terminated.sum()
        doubtful += near.sum()
    assert ended > 2 * EPISODES
    assert doubtful <= 2


def first_episodes(simulator, choose):
    """Lengths, last observations and reasons ``[N]`` of each row's first episode, free-running."""
    decision = simulator.reset(starts(simulator.num_envs, seed=8))
    length = np.zeros(simulator.num_envs, int)
    last = np.zeros((simulator.num_envs, 4), np.float32)
    truncated = np.zeros(simulator.num_envs, bool)
    for t in range(1, c.MAX_EPISODE_STEPS + 1):
        actions = choose(decision.observation, t)
        decision, outcome = simulator.step(
            actions, SPEC.StepNoise(), starts(simulator.num_envs, seed=9)
        )
        ending = (outcome.terminated | outcome.truncated) & (length == 0)
        length[ending] = t
        last[ending] = outcome.final.observation[ending]
        truncated[ending] = outcome.truncated[ending]
        if (length > 0).all():
            return length, last, truncated
    raise AssertionError("an episode went past the limit")


def test_free_running_random_episodes_have_the_same_lengths(simulators):
    actions = np.random.default_rng(4).integers(0, 2, (c.MAX_EPISODE_STEPS + 1, EPISODES))
    results = [first_episodes(s, lambda _, t: actions[t]) for s in simulators]
    (length, last, _), (port_length, port_last, _) = results
    same = length == port_length
    assert same.mean() >= 0.99
    # Rounding grows over an episode: 3e-5 at worst in these, two hundred times one step's.
    np.testing.assert_allclose(port_last[same], last[same], atol=1e-4)
    assert length.min() < 12 < 30 < length.max()


def test_balanced_episodes_are_truncated_at_step_500_exactly(simulators):
    for simulator in simulators:
        length, _, truncated = first_episodes(simulator, lambda o, t: balance(o))
        assert truncated.all()
        np.testing.assert_array_equal(length, c.MAX_EPISODE_STEPS)


def test_the_limit_is_counted_from_the_state_given(simulators):
    steps = np.resize([0, 497, 498, 499], EPISODES).astype(np.int32)
    fields = {name: np.zeros(EPISODES, f.dtype) for name, f in SPEC.state.items()}
    for simulator in simulators:
        outcome, after = step_from(simulator, dict(fields, steps=steps), np.ones(EPISODES, int))
        np.testing.assert_array_equal(outcome.truncated, steps == 499)
        np.testing.assert_array_equal(outcome.events[:, 4], steps == 499)
        np.testing.assert_array_equal(after["steps"], np.where(steps == 499, 0, steps + 1))
        assert not outcome.terminated.any()


def test_terminated_wins_when_a_pole_falls_in_the_last_step(simulators):
    fields = {name: np.zeros(EPISODES, f.dtype) for name, f in SPEC.state.items()}
    fields["steps"][:] = 499
    fields["x"][:], fields["x_dot"][:] = 2.39, 2.0
    for simulator in simulators:
        outcome, _ = step_from(simulator, fields, np.ones(EPISODES, int))
        assert outcome.terminated.all()
        assert not outcome.truncated.any()
        assert outcome.events[:, [1, 4]].all()


def test_gymnasium_itself_reports_both_in_that_step():
    env = gymnasium.make("CartPole-v1", max_episode_steps=1)
    env.reset(seed=0)
    env.unwrapped.state = np.array([2.39, 2.0, 0.0, 0.0])
    _, _, terminated, truncated, _ = env.step(1)
    assert (terminated, truncated) == (True, True)


def test_reference_face_is_gymnasium_driven_by_hand():
    count, seed, rng = 3, 17, np.random.default_rng(1)
    by_hand = [gymnasium.make("CartPole-v1") for _ in range(count)]
    seeds = row_seeds(seed, count)
    expected = np.stack([e.reset(seed=s)[0] for e, s in zip(by_hand, seeds, strict=True)])
    with envs.make("cartpole", "reference", count, interface="batched") as batched:
        np.testing.assert_array_equal(batched.reset(seed).observation, expected)
        for _ in range(100):
            actions = rng.integers(0, 2, count)
            decision, outcome = batched.step(actions)
            for i, env in enumerate(by_hand):
                observation, reward, terminated, truncated, _ = env.step(int(actions[i]))
                np.testing.assert_array_equal(outcome.final.observation[i], observation)
                assert outcome.reward[i] == reward
                assert outcome.terminated[i] == terminated
                assert outcome.truncated[i] == truncated
                if terminated or truncated:
                    observation, _ = env.reset()
                np.testing.assert_array_equal(decision.observation[i], observation)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_next_episode_starts_from_the_reset_noise(backend):
    simulator = envs.make("cartpole", backend, 4, interface="simulator")
    simulator.reset(starts(4))
    fields = simulator.get_state()
    fields["theta"][:2] = 0.3  # two rows fall at once, two go on
    simulator.set_state(fields)
    fresh = starts(4, seed=5)
    decision, outcome = simulator.step(np.ones(4, int), SPEC.StepNoise(), fresh)
    np.testing.assert_array_equal(outcome.terminated, [True, True, False, False])
    np.testing.assert_array_equal(decision.observation[:2], fresh.start[:2])
    np.testing.assert_array_equal(simulator.get_state()["steps"], [0, 0, 1, 1])
    np.testing.assert_array_equal(decision.observation[2:], outcome.final.observation[2:])
