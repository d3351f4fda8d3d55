import io
import warnings

import jax
import numpy as np
import pytest

import envs
from envs.adapters.numpy_faces import FunctionalBatched, FunctionalSimulator
from envs.adapters.vectorize import vectorize
from envs.core import ActionError, LifecycleError
from tests.envs.adapters import tiny

N = 5


@pytest.fixture(scope="module")
def walk():
    return FunctionalBatched(tiny.walk(N))


@pytest.fixture(scope="module")
def views():
    return FunctionalBatched(tiny.walk(N), copy=False)


@pytest.fixture(scope="module")
def game():
    return FunctionalBatched(tiny.game(N, simultaneous=False))


@pytest.fixture(scope="module")
def simulator():
    return FunctionalSimulator(tiny.walk(N))


def legal_actions(env, seed, steps):
    """Random legal actions, chosen from the open decision."""
    rng = np.random.default_rng(seed)
    decision = env.reset(seed)
    for _ in range(steps):
        legal = decision.legal_actions
        action = (rng.random(legal.shape) * legal).argmax(-1)
        decision, outcome = env.step(action)
        yield action, decision, outcome


def assert_close(a, b):
    """Integers and flags exactly, floats to the last bits of a normal draw (see envs.noise)."""
    assert jax.tree.structure(a) == jax.tree.structure(b)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-7), a, b)


@pytest.mark.parametrize("face", ["walk", "game"])
def test_the_numpy_face_is_the_pure_environment_with_noise_counted_from_the_seed(face, request):
    env = request.getfixturevalue(face)
    pure = tiny.walk(N) if face == "walk" else tiny.game(N, simultaneous=False)
    reset, step, _ = tiny.jitted(pure)
    state, first = reset(tiny.reset_noise(pure, 9))
    assert_close(env.reset(9), first)
    ends = 0
    for t, (action, decision, outcome) in enumerate(legal_actions(env, 9, 20)):
        state, *expected = step(state, action.astype(np.int32), *tiny.noise(pure, 9, t))
        assert_close((decision, tiny.masked(outcome)), (expected[0], tiny.masked(expected[1])))
        assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves((decision, outcome)))
        ends += (outcome.terminated | outcome.truncated).sum()
    assert ends > N


def test_the_same_seed_gives_the_same_episodes_and_another_seed_others(walk):
    runs = [list(legal_actions(walk, seed, 10)) for seed in (1, 1, 2)]
    tiny.assert_equal(runs[0], runs[1])
    with pytest.raises(AssertionError):
        tiny.assert_equal(runs[0], runs[2])


def test_default_results_are_the_callers_own(walk):
    env, expected = walk, list(legal_actions(walk, 3, 6))
    decision = env.reset(3)
    for action, *results in expected:
        for leaf in jax.tree.leaves(decision):
            leaf[...] = 1  # were it the environment's buffer, legality would change
        decision, outcome = env.step(action)
        tiny.assert_equal([decision, outcome], results)


def test_views_are_read_only_and_equal_to_the_copies(walk, views):
    env, expected = views, list(legal_actions(walk, 3, 6))
    decision = env.reset(3)
    for action, *results in expected:
        for leaf in jax.tree.leaves(decision):
            with pytest.raises(ValueError, match="read-only"):
                leaf[...] = 0
        decision, outcome = env.step(action)
        tiny.assert_equal([decision, outcome], results)
        assert not any(leaf.flags.writeable for leaf in jax.tree.leaves(outcome))


def test_the_state_is_donated_and_no_result_lives_in_it(walk):
    env, played = FunctionalBatched(tiny.walk(N), copy=False), list(legal_actions(walk, 3, 8))
    kept = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # JAX warns of donated buffers that it couldn't use
        env.reset(3)
        for action, *_ in played:
            old = env._state
            kept.append(list(env.step(action)))
            assert old.position.is_deleted()
            assert old.tilt.is_deleted()
    tiny.assert_equal(kept, [results for _, *results in played])


# --- bad input and lifecycle, for every kind of BatchedEnv --------------------------------------

CARTPOLES = ["reference", "jax"]


@pytest.fixture(params=CARTPOLES)
def cartpole(request):
    with envs.make("cartpole", request.param, 3, interface="batched") as env:
        yield env


BAD_SEEDS = [-1, 2**32, 1.5, "1", None]


@pytest.mark.parametrize("seed", BAD_SEEDS)
def test_seeds_outside_their_range(cartpole, seed):
    with pytest.raises(ValueError, match=r"seed must be an integer in \[0, 2\*\*32\)"):
        cartpole.reset(seed)


def test_the_largest_seed_is_a_seed(cartpole):
    assert np.isfinite(cartpole.reset(2**32 - 1).observation).all()


BAD_ACTIONS = {
    "too few": ([0, 1], r"shape \(2,\), expected \(3,\)"),
    "a scalar": (0, r"shape \(\), expected \(3,\)"),
    "one axis too many": ([[0, 1, 1]], r"shape \(1, 3\), expected \(3,\)"),
    "real": ([0.0, 1.0, 1.0], "dtype float64, expected an integer"),
    "bool": ([True, False, True], "dtype bool, expected an integer"),
    "words": (["0", "1", "1"], "expected an integer"),
    "below": ([0, -1, 1], r"action -1 of row 1 is outside Discrete\(2\)"),
    "above": ([0, 1, 2], r"action 2 of row 2 is outside Discrete\(2\)"),
    "above in another dtype": (
        np.array([2**40, 1, 1]),
        r"action 1099511627776 of row 0 is outside Discrete\(2\)",
    ),
}


@pytest.mark.parametrize(("action", "words"), BAD_ACTIONS.values(), ids=BAD_ACTIONS)
def test_a_bad_action_is_named_and_nothing_is_stepped(cartpole, action, words):
    cartpole.reset(0)
    expected = [cartpole.step([0, 1, 0]), cartpole.step([1, 1, 0])]
    cartpole.reset(0)
    got = [cartpole.step([0, 1, 0])]
    with pytest.raises(ActionError, match=words):
        cartpole.step(action)
    got.append(cartpole.step([1, 1, 0]))
    tiny.assert_equal(got, expected)


def test_an_illegal_action_is_named_with_the_legal_ones(walk):
    seed = next(s for s in range(50) if (walk.reset(s).observation[:, 0] == 0).any())
    row = int((walk.reset(seed).observation[:, 0] == 0).argmax())
    action = np.ones(N, int)
    action[row] = 0
    with pytest.raises(ActionError, match=rf"action 0 of row {row} is not legal; .*: \[1, 2\]"):
        walk.step(action)


def test_a_seat_that_is_not_acting_may_send_anything(game):
    results = []
    for anything in (-5, 0, 77):
        decision = game.reset(0)
        results.append(game.step(np.where(decision.acting, 2, anything)))
    tiny.assert_equal(results[0], results[1])
    tiny.assert_equal(results[0], results[2])


def test_a_bad_action_of_one_seat_is_named_by_row_and_seat(game):
    decision = game.reset(0)
    seat = int(decision.acting[2].argmax())
    action = np.zeros((N, 2), int)
    action[2, seat] = 4
    with pytest.raises(ActionError, match=rf"action 4 of row \(2, {seat}\) is outside"):
        game.step(action)


def test_lifecycle(cartpole):
    with pytest.raises(LifecycleError, match="cartpole: step before reset"):
        cartpole.step([0, 0, 0])
    cartpole.reset(0)
    cartpole.close()
    cartpole.close()
    with pytest.raises(LifecycleError, match="cartpole: used after close"):
        cartpole.step([0, 0, 0])
    with pytest.raises(LifecycleError, match="cartpole: used after close"):
        cartpole.reset(0)


# --- the simulator -------------------------------------------------------------------------------


def run(simulator, first, last, seed=0):
    pure, results = tiny.walk(N), []
    for t in range(first, last):
        action = np.clip(tiny.actions(pure, seed, last)[t], 1, 2)
        results.append(simulator.step(action, *tiny.noise(pure, seed, t)))
    return results


def test_a_snapshot_in_mid_episode_continues_exactly(simulator):
    simulator.reset(tiny.reset_noise(tiny.walk(N), 0))
    run(simulator, 0, 4)
    data = simulator.snapshot()
    expected = run(simulator, 4, 15)
    simulator.reset(tiny.reset_noise(tiny.walk(N), 1))
    decision = simulator.restore(data)
    assert (decision.observation[:, 1] > 0).any()  # somewhere in mid-episode
    tiny.assert_equal(run(simulator, 4, 15), expected)
    other = FunctionalSimulator(tiny.walk(N))  # a new process, as it were
    tiny.assert_equal(other.restore(data), decision)
    tiny.assert_equal(run(other, 4, 15), expected)


def test_fields_read_and_written_continue_exactly(simulator):
    simulator.reset(tiny.reset_noise(tiny.walk(N), 0))
    before = run(simulator, 0, 4)
    fields = simulator.get_state()
    assert {k: (v.shape[1:], str(v.dtype)) for k, v in fields.items()} == {
        k: (f.shape, f.dtype) for k, f in simulator.spec.state.items()
    }
    expected = run(simulator, 4, 15)
    simulator.reset(tiny.reset_noise(tiny.walk(N), 1))
    tiny.assert_equal(simulator.set_state(fields), before[-1][0])
    tiny.assert_equal(run(simulator, 4, 15), expected)


def test_results_of_the_simulator_are_the_callers_own(simulator):
    decision = simulator.reset(tiny.reset_noise(tiny.walk(N), 0))
    assert all(leaf.flags.writeable for leaf in jax.tree.leaves(decision))
    fields = simulator.get_state()
    before = jax.tree.map(np.array, fields)
    for leaf in fields.values():
        leaf[...] = 7
    tiny.assert_equal(simulator.get_state(), before)


def saved(array):
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def snapshot(simulator):
    simulator.reset(tiny.reset_noise(tiny.walk(N), 0))
    return simulator.snapshot()


def snapshot_of(env):
    other = FunctionalSimulator(env)
    other.reset(tiny.reset_noise(env, 0))
    return other.snapshot()


class AnotherWalk(tiny.Walk):
    """Another port of the same contract: its states need not mean the same."""

    def __init__(self) -> None:
        super().__init__(tiny.walk_spec())


BAD_SNAPSHOTS = {
    "nothing": (lambda good: b"", "not a readable snapshot"),
    "noise": (lambda good: b"\x00\x01garbage" * 9, "not a readable snapshot"),
    "half": (lambda good: good[: len(good) // 2], "not a readable snapshot"),
    "a flipped bit": (
        lambda good: good[:200] + bytes([good[200] ^ 1]) + good[201:],
        "not a readable snapshot",
    ),
    "another file": (lambda good: saved(np.arange(3)), "not a readable snapshot"),
    "other num_envs": (lambda good: snapshot_of(tiny.walk(N + 1)), "of another"),
    "other implementation": (lambda good: snapshot_of(vectorize(AnotherWalk(), N)), "of another"),
    "other environment": (lambda good: snapshot_of(tiny.game(N, simultaneous=False)), "of another"),
    "other parameters": (
        lambda good: snapshot_of(tiny.walk(N, dict_observation=True)),
        "of another",
    ),
}


@pytest.mark.parametrize(("spoil", "words"), BAD_SNAPSHOTS.values(), ids=BAD_SNAPSHOTS)
def test_a_bad_snapshot_is_refused_and_changes_nothing(simulator, snapshot, spoil, words):
    simulator.restore(snapshot)
    before = simulator.get_state()
    with pytest.raises(ValueError, match=f"walk: .*{words}"):
        simulator.restore(spoil(snapshot))
    tiny.assert_equal(simulator.get_state(), before)


def changed(noise, **sites):
    return noise._replace(**sites)


BAD_NOISE = {
    "no record": (lambda noise: tuple(noise), "must be a ResetNoise with the sites"),
    "too few rows": (lambda noise: changed(noise, start=noise.start[1:]), r"start is int32\(4,\)"),
    "another dtype": (lambda noise: changed(noise, start=noise.start.astype(float)), "float64"),
    "the upper bound": (lambda noise: changed(noise, start=noise.start * 0 + 3), "domain"),
    "below the domain": (lambda noise: changed(noise, start=noise.start * 0 - 1), "domain"),
}


@pytest.mark.parametrize(("spoil", "words"), BAD_NOISE.values(), ids=BAD_NOISE)
def test_bad_noise_is_refused(simulator, spoil, words):
    noise = tiny.reset_noise(tiny.walk(N), 0)
    simulator.reset(noise)
    with pytest.raises(ValueError, match=words):
        simulator.reset(spoil(noise))
    with pytest.raises(ValueError, match=words):
        simulator.step(np.ones(N, int), tiny.noise(tiny.walk(N), 0, 0)[0], spoil(noise))


BAD_FIELDS = {
    "missing": (lambda f: {k: v for k, v in f.items() if k != "tilt"}, r"missing: \['tilt'\]"),
    "unknown": (lambda f: {**f, "speed": f["push"]}, r"unknown: \['speed'\]"),
    "too few rows": (lambda f: {**f, "push": f["push"][:2]}, r"push has shape \(2,\)"),
    "real for integer": (lambda f: {**f, "steps": f["steps"] + 0.5}, "steps has dtype float64"),
}


@pytest.mark.parametrize(("spoil", "words"), BAD_FIELDS.values(), ids=BAD_FIELDS)
def test_bad_fields_are_refused(simulator, spoil, words):
    simulator.reset(tiny.reset_noise(tiny.walk(N), 0))
    with pytest.raises(ValueError, match=words):
        simulator.set_state(spoil(simulator.get_state()))


def test_the_lifecycle_of_a_simulator():
    pure, one = tiny.walk(N), FunctionalSimulator(tiny.walk(N))
    uses = {
        "step": lambda: one.step(np.ones(N, int), *tiny.noise(pure, 0, 0)),
        "get_state": one.get_state,
        "snapshot": one.snapshot,
    }
    for use in uses.values():
        with pytest.raises(LifecycleError, match="no state yet; call reset or set_state first"):
            use()
    one.reset(tiny.reset_noise(pure, 0))
    one.close()
    one.close()
    uses["reset"] = lambda: one.reset(tiny.reset_noise(pure, 0))
    uses["restore"] = lambda: one.restore(b"")
    uses["set_state"] = lambda: one.set_state({})
    for use in uses.values():
        with pytest.raises(LifecycleError, match="used after close"):
            use()
