"""The plain build: PufferLib's vector environment with its own draws."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import threading

import numpy as np
import pytest

import envs
from envs.core import LifecycleError
from envs.pong import native_build
from tests.envs.pong.tables import BOTH, SPEC, bits

LIBC = ctypes.CDLL(None)


def play(env, steps, seed=0):
    """Observations and rewards of random play after ``env.reset(seed)``."""
    rng = np.random.default_rng(5)
    seen = [env.reset(seed).observation.tobytes()]
    for _ in range(steps):
        decision, outcome = env.step(rng.integers(0, 3, env.num_envs))
        seen.append(decision.observation.tobytes() + outcome.reward.tobytes())
    return seen


def c_stream(seed, count):
    """glibc's next ``count`` draws of 0 or 1 after srand(seed)."""
    LIBC.srand(ctypes.c_uint(seed % 2**32))
    return [LIBC.rand() % 2 for _ in range(count)]


@pytest.mark.parametrize(
    ("num_envs", "frameskip", "max_score", "seed"), [(5, 8, 21, 3), (64, 8, 2, 0), (64, 1, 1, 7)]
)
def test_tape_build_is_the_same_game(num_envs, frameskip, max_score, seed):
    """Fed with glibc's own stream, in the C code's order, the tape build repeats the plain one."""
    rules = dict(frameskip=frameskip, max_score=max_score)
    plain = envs.make("pong", "reference", num_envs, **rules)
    tape = envs.make("pong", "reference", num_envs, interface="simulator", **rules)
    spec = plain.spec
    first = [c_stream(i + seed * num_envs, 1)[0] for i in range(num_envs)]
    later = iter(c_stream(num_envs - 1 + seed * num_envs, 20_000)[1:])
    expected = plain.reset(seed)
    got = tape.reset(spec.ResetNoise(np.array(first, np.int32)))
    np.testing.assert_array_equal(bits(got.observation), bits(expected.observation))
    rng = np.random.default_rng(1)
    draws = games = 0
    for _ in range(1500):
        actions = rng.integers(0, 3, num_envs)
        expected, outcome = plain.step(actions)
        scored = abs(outcome.reward) == 1
        serve = np.zeros(num_envs, np.int32)
        serve[scored] = [next(later) for _ in range(scored.sum())]
        got, same = tape.step(actions, spec.StepNoise(serve), spec.ResetNoise(serve))
        np.testing.assert_array_equal(bits(got.observation), bits(expected.observation))
        np.testing.assert_array_equal(bits(same.reward), bits(outcome.reward))
        np.testing.assert_array_equal(same.terminated, outcome.terminated)
        np.testing.assert_array_equal(tape.taps()["draws"], scored)
        for name, values in outcome.metrics.items():
            ended = outcome.terminated
            np.testing.assert_array_equal(same.metrics[name][ended], values[ended], name)
        draws += scored.sum()
        games += outcome.terminated.sum()
    inside, outside = plain._games.read(), tape.get_state()
    assert all((bits(inside[name]) == bits(outside[name])).all() for name in spec.state)
    assert draws > 50
    assert games > 5
    plain.close(), tape.close()


def test_same_seed_same_play():
    with envs.make("pong", "reference", 32) as env, envs.make("pong", "reference", 32) as other:
        first = play(env, 200, seed=4)
        assert play(env, 200, seed=4) == first
        assert play(other, 200, seed=4) == first
        assert play(env, 200, seed=5) != first


def test_environments_in_one_process_share_the_stream():
    with envs.make("pong", "reference", 32) as env, envs.make("pong", "reference", 32) as other:
        alone = play(env, 200, seed=4)
        env.reset(4)
        other.reset(4)
        rng = np.random.default_rng(5)
        together = []
        for _ in range(200):
            actions = rng.integers(0, 3, 32)
            decision, outcome = env.step(actions)
            together.append(decision.observation.tobytes() + outcome.reward.tobytes())
            other.step(actions)
        assert together != alone[1:]


def test_creating_an_environment_reseeds_the_stream():
    with envs.make("pong", "reference", 32) as env:
        env.reset(4)
        undisturbed = [LIBC.rand() for _ in range(3)]
        env.reset(4)
        envs.make("pong", "reference", 8).close()
        assert [LIBC.rand() for _ in range(3)] != undisturbed


def test_seed_zero_starts_the_first_two_rows_alike():
    assert c_stream(0, 40) == c_stream(1, 40)
    assert c_stream(1, 40) != c_stream(2, 40)
    with envs.make("pong", "reference", 64) as env:
        observation = env.reset(0).observation
    np.testing.assert_array_equal(bits(observation[0]), bits(observation[1]))
    flat = [c_stream(row, 1) == [1] for row in range(64)]  # each row's seed is its number here
    np.testing.assert_array_equal(observation[:, 5] == 0.5, flat)


def test_seeds_that_agree_after_overflow_play_alike():
    """The C code seeds row i with i + seed * N in 32 bits."""
    with envs.make("pong", "reference", 2**16) as env:
        first = env.reset(1).observation.tobytes()
        assert env.reset(1 + 2**16).observation.tobytes() == first
        assert env.reset(2).observation.tobytes() != first


def test_difference_at_the_end_is_won_minus_lost():
    """The scores are gone when the C step returns; they must match the points that were paid."""
    with envs.make("pong", "reference", 64, max_score=5) as env:
        decision = env.reset(0)
        left, right = np.zeros(64, int), np.zeros(64, int)
        rng = np.random.default_rng(0)
        winners = set()
        for _ in range(3000):
            above = decision.observation[:, 3] - decision.observation[:, 1]
            follow = np.where(above > 0.02, 1, np.where(above < -0.02, 2, 0))
            anything = rng.integers(0, 3, 64)
            decision, outcome = env.step(np.where(rng.random(64) < 0.875, follow, anything))
            right += outcome.reward == 1
            left += outcome.reward == -1
            ended = outcome.terminated
            metrics = {name: values[ended] for name, values in outcome.metrics.items()}
            np.testing.assert_array_equal(metrics["score_difference"], (right - left)[ended])
            np.testing.assert_array_equal(metrics["score_right"], right[ended])
            np.testing.assert_array_equal(metrics["score_left"], left[ended])
            winners |= set(np.sign(metrics["score_difference"]).tolist())
            left[ended] = right[ended] = 0
        assert winners == {1, -1}


def test_plain_build_has_no_final_decision():
    with envs.make("pong", "reference", 64, max_score=1) as env:
        assert not env.capabilities.final_on_termination
        env.reset(0)
        ended = 0
        for _ in range(60):
            _, outcome = env.step(np.zeros(64, int))
            assert outcome.final is None
            ended += outcome.terminated.sum()
        assert ended > 0


@pytest.mark.parametrize("interface", ["batched", "simulator"])
def test_the_c_code_truncates_nothing(interface):
    with envs.make("pong", "reference", 64, interface=interface, max_score=1) as env:
        env._games.truncations[:] = 7  # so that a 0 would show as well
        zero = np.zeros(64, np.int32)
        start = (0,) if interface == "batched" else (env.spec.ResetNoise(zero),)
        rest = () if interface == "batched" else (env.spec.StepNoise(zero), *start)
        env.reset(*start)
        ended = sum(env.step(np.full(64, 2), *rest)[1].terminated.sum() for _ in range(200))
        assert ended > 64
        assert (env._games.truncations == 7).all()


def test_reset_leaves_old_rewards_in_the_buffers():
    with envs.make("pong", "reference", 64, max_score=1) as env:
        env.reset(0)
        while not env.step(np.full(64, 2))[1].terminated.any():
            pass
        rewards, terminals = env._games.rewards.copy(), env._games.terminals.copy()
        env.reset(1)
        np.testing.assert_array_equal(env._games.rewards, rewards)
        np.testing.assert_array_equal(env._games.terminals, terminals)
        assert not env.step(np.zeros(64, int))[1].terminated.any()


def test_c_code_takes_an_unknown_action_as_still():
    with envs.make("pong", "reference", 3, frameskip=1) as env:
        env.reset(0)
        for action in (7.0, 0.5, -1.0):
            env._games.actions[:] = action
            env._module.vec_step(env._games.handle)
            assert (env._games.read()["paddle_yr"] == 285).all()


@BOTH
def test_half_of_the_games_start_flat(backend):
    with envs.make("pong", backend, 4096, interface="batched") as env:
        speeds = env.reset(9).observation[:, 5]
        assert set(speeds.tolist()) == {0.5, float(np.float32(12 / 26))}
        assert 0.45 < (speeds == 0.5).mean() < 0.55


def test_handed_out_arrays_are_copies_unless_asked_for():
    with envs.make("pong", "reference", 4) as env:
        before = env.reset(0).observation
        kept = before.copy()
        env.step(np.ones(4, int))
        np.testing.assert_array_equal(before, kept)
        before[:] = 7
        assert (env.step(np.ones(4, int))[0].observation < 7).all()
        env.copy = False
        view, outcome = env.step(np.ones(4, int))
        again, _ = env.step(np.ones(4, int))
        assert np.shares_memory(view.observation, again.observation)
        assert not view.observation.flags.writeable
        assert not outcome.metrics["score_difference"].flags.writeable


def test_buffers_are_aligned():
    for num_envs in (1, 3, 1005):
        with envs.make("pong", "reference", num_envs) as env:
            games = env._games
            for name in ("observation", "actions", "rewards", "terminals", "truncations"):
                assert getattr(games, name).ctypes.data % 64 == 0


@pytest.mark.parametrize("num_envs", [1, 2**16])
def test_smallest_and_largest(num_envs):
    with envs.make("pong", "reference", num_envs) as env:
        env.reset(0)
        decision, outcome = env.step(np.full(num_envs, 2))
        assert decision.observation.shape == (num_envs, 8)
        assert outcome.reward.shape == (num_envs,)
        np.testing.assert_array_equal(decision.observation[:, 1], np.float32((285 - 64 + 35) / 640))


@pytest.mark.parametrize("interface", ["batched", "simulator"])
def test_closed_is_closed(interface):
    env = envs.make("pong", "reference", 4, interface=interface)
    zero = np.zeros(4, np.int32)
    start = (0,) if interface == "batched" else (SPEC.ResetNoise(zero),)
    rest = () if interface == "batched" else (SPEC.StepNoise(zero), SPEC.ResetNoise(zero))
    env.reset(*start)
    env.close()
    env.close()
    for use in (lambda: env.reset(*start), lambda: env.step(zero, *rest)):
        with pytest.raises(LifecycleError, match="used after close"):
            use()


class ClosesMeanwhile:
    """Actions during whose conversion another thread closes the environment."""

    def __init__(self, env):
        self.env = env

    def __array__(self, dtype=None, copy=None):
        thread = threading.Thread(target=self.env.close)
        thread.start()
        thread.join()
        return np.zeros(self.env.num_envs, np.int32)


@pytest.mark.parametrize("interface", ["batched", "simulator"])
def test_a_step_that_is_under_way_when_another_thread_closes_touches_nothing(interface):
    env = envs.make("pong", "reference", 4, interface=interface)
    zero = np.zeros(4, np.int32)
    env.reset(*((0,) if interface == "batched" else (SPEC.ResetNoise(zero),)))
    rest = () if interface == "batched" else (SPEC.StepNoise(zero), SPEC.ResetNoise(zero))
    with pytest.raises(LifecycleError, match="pong: used after close"):
        env.step(ClosesMeanwhile(env), *rest)


def test_two_threads_step_and_close():
    for _ in range(20):
        env = envs.make("pong", "reference", 256, interface="batched")
        env.reset(0)
        stepping, ended = threading.Event(), []

        def step_until_closed(env=env, stepping=stepping, ended=ended):
            with contextlib.suppress(LifecycleError):
                while True:
                    env.step(np.zeros(256, int))
                    stepping.set()
            ended.append(True)

        thread = threading.Thread(target=step_until_closed)
        thread.start()
        assert stepping.wait(30)
        env.close()
        thread.join(30)
        assert ended


@pytest.mark.parametrize("interface", ["batched", "simulator"])
@pytest.mark.parametrize("close", [True, False])
def test_many_environments_leak_nothing(interface, close):
    """Each holds about a megabyte; 150 that were not freed would show."""

    def resident():
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

    def make_and_drop(count):
        for _ in range(count):
            env = envs.make("pong", "reference", 4096, interface=interface)
            if close:
                env.close()
            del env
        gc.collect()

    make_and_drop(10)
    before = resident()
    make_and_drop(150)
    assert resident() - before < 40


def test_what_is_not_built_names_the_command(tmp_path, monkeypatch):
    monkeypatch.setattr(native_build, "BUILD_DIRECTORY", tmp_path)
    for interface in ("batched", "simulator"):
        native_build.binding.cache_clear()
        native_build.driver.cache_clear()
        with pytest.raises(envs.MissingDependency, match=r"run `make pong`$"):
            envs.make("pong", "reference", 4, interface=interface)
