import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from envs.adapters.vectorize import sanitize_actions, vectorize, where_rows
from envs.core import Decision, EnvSpec, Field, NoiseSite
from tests.envs.adapters import tiny


def rough_walk(n, reset="cond"):
    return tiny.walk(n, reset, rough=True)


MAKERS = {
    "walk": rough_walk,
    "walk with dict": lambda n, reset="cond": tiny.walk(n, reset, dict_observation=True),
    "simultaneous": tiny.game,
    "turn-based": lambda n, reset="cond": tiny.game(n, reset, simultaneous=False),
}
makers = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


@pytest.mark.parametrize(
    ("make", "n"), [(rough_walk, 1), (rough_walk, 17), *((make, 5) for make in MAKERS.values())]
)
def test_both_reset_forms_give_the_same_bits(make, n):
    ends = 0
    for (s1, d1, o1), (s2, d2, o2) in zip(
        tiny.play(make(n), 1, 25), tiny.play(make(n, "compact"), 1, 25), strict=True
    ):
        tiny.assert_equal((s1, d1, tiny.masked(o1)), (s2, d2, tiny.masked(o2)))
        ends += int((o1.terminated | o1.truncated).sum())
    assert ends >= n  # else nothing was compared


def assert_close(a, b):
    """To the last bits: one row and a batch of them are compiled apart."""
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-6), a, b)


@makers
def test_a_batch_is_its_rows_stepped_alone(make):
    n, env = 5, make(5)
    one = env.env
    init, observe, advance = jax.jit(one.init), jax.jit(one.observe), jax.jit(one.advance)

    def at(tree, i):
        return jax.tree.map(lambda x: np.asarray(x)[i], tree)

    states = [init(at(tiny.reset_noise(env, 3), i)) for i in range(n)]
    for t, (_, decision, outcome) in enumerate(tiny.play(env, 3, 20)):
        action = tiny.actions(env, 3, 20)[t]
        step_noise, fresh = tiny.noise(env, 3, t)
        for i in range(n):
            batch = jax.tree.map(lambda x: x[None], observe(states[i]))
            mended, invalid = sanitize_actions(env.spec, action[i : i + 1], batch)
            states[i], alone = advance(states[i], mended[0], at(step_noise, i))
            ended = bool(alone.terminated | alone.truncated)
            if ended:
                assert_close(observe(states[i]), at(outcome.final, i))
                states[i] = init(at(fresh, i))
            alone = alone._replace(invalid=invalid[0], metrics={}, final=None)
            assert_close(alone, at(outcome._replace(metrics={}, final=None), i))
            assert_close(observe(states[i]), at(decision, i))


def test_final_is_the_ended_episode_and_the_decision_the_next():
    env = tiny.walk(4)
    fields = {
        "position": jnp.array([5, 2, 5, 1], jnp.int32),
        "steps": jnp.array([1, 7, 7, 0], jnp.int32),
        "tilt": jnp.full((4, 2), 2.0),
        "push": jnp.zeros(4),
    }
    step_noise, fresh = tiny.noise(env, 0, 0)
    _, step, observe = tiny.jitted(env)
    state, decision, outcome = step(
        env.state_from_fields(fields), jnp.array([2, 2, 2, 2], jnp.int32), step_noise, fresh
    )
    np.testing.assert_array_equal(outcome.terminated, [True, False, True, False])
    np.testing.assert_array_equal(outcome.truncated, [False, True, False, False])
    np.testing.assert_array_equal(outcome.events, [[1, 0], [0, 1], [1, 1], [0, 0]])
    np.testing.assert_array_equal(outcome.final.observation[:3, :2], [[6, 2], [3, 8], [6, 8]])
    np.testing.assert_array_equal(outcome.final.privileged[:3], step_noise.push[:3])
    np.testing.assert_array_equal(outcome.metrics["length"][:3], [2, 8, 8])
    # The rows that ended are at the start of the next episode, the last one goes on.
    np.testing.assert_array_equal(decision.observation[:, 1], [0, 0, 0, 1])
    np.testing.assert_array_equal(decision.observation[:3, 0], fresh.start[:3])
    np.testing.assert_array_equal(decision.privileged, [0, 0, 0, step_noise.push[3]])
    assert int(state.position[3]) == 2
    tiny.assert_equal(decision, observe(state))


INVALID = {  # position, action -> what the rules are given
    "below the space": (3, -1, 0),
    "above the space": (3, 3, 0),
    "illegal": (0, 0, 1),
    "far outside where 0 is illegal": (0, 2**31 - 1, 1),
}


@pytest.mark.parametrize(("position", "action", "given"), INVALID.values(), ids=INVALID)
def test_an_invalid_action_becomes_the_lowest_legal_one_and_is_flagged(position, action, given):
    env = tiny.walk(2)
    fields = {
        "position": jnp.array([position, 3], jnp.int32),
        "steps": jnp.zeros(2, jnp.int32),
        "tilt": jnp.zeros((2, 2)),
        "push": jnp.zeros(2),
    }
    state = env.state_from_fields(fields)
    _, step, _ = tiny.jitted(env)
    _, wrong, flagged = step(state, jnp.array([action, 1]), *tiny.noise(env, 0, 0))
    _, right, clean = step(state, jnp.array([given, 1]), *tiny.noise(env, 0, 0))
    np.testing.assert_array_equal(flagged.invalid, [True, False])
    assert not clean.invalid.any()
    tiny.assert_equal(wrong, right)
    tiny.assert_equal(flagged.reward, clean.reward)


def test_a_row_that_is_not_acting_may_send_anything():
    env = tiny.game(3, simultaneous=False)
    reset, step, _ = tiny.jitted(env)
    state, decision = reset(tiny.reset_noise(env, 0))
    silent = ~np.asarray(decision.acting)
    assert silent.sum() == 3
    results = []
    for anything in (-7, 0, 3, 99):
        action = np.where(silent, anything, 1)
        results.append(step(state, action, *tiny.noise(env, 0, 0)))
        assert not results[-1][2].invalid.any()
        tiny.assert_equal(results[0], results[-1])


def test_box_actions_are_replaced_by_row_where_they_leave_the_box_or_are_no_numbers():
    spec = EnvSpec(
        name="box",
        version="1",
        observation_space=spaces.Box(-1, 1, (1,), np.float32),
        action_space=spaces.Box(-1, 2, (2,), np.float32),
        reset_noise={"seed": NoiseSite("bits")},
        state={"x": Field((), "float32")},
    )
    decision = Decision(jnp.zeros((5, 1)), jnp.array([True, True, True, True, False]))
    action = jnp.array([[0.5, 2.0], [0.5, 2.5], [np.nan, 0], [-np.inf, 0], [9, 9]])
    mended, invalid = sanitize_actions(spec, action, decision)
    np.testing.assert_array_equal(mended, [[0.5, 2.0], [-1, -1], [-1, -1], [-1, -1], [-1, -1]])
    np.testing.assert_array_equal(invalid, [False, True, True, True, False])


@makers
def test_permuting_the_rows_permutes_the_results(make):
    env = make(5)
    order = np.random.default_rng(0).permutation(5)
    reset, step, _ = tiny.jitted(env)
    state, _ = reset(tiny.reset_noise(env, 5))
    for t, action in enumerate(tiny.actions(env, 5, 20)):
        inputs = (state, action, *tiny.noise(env, 5, t))
        state, decision, outcome = step(*inputs)
        permuted = step(*jax.tree.map(lambda x: jnp.asarray(x)[order], inputs))
        expected = jax.tree.map(lambda x: x[order], (state, decision, outcome))
        expected = (*expected[:2], tiny.masked(expected[2]))
        tiny.assert_equal(expected, (*permuted[:2], tiny.masked(permuted[2])))


@pytest.mark.parametrize(
    ("make", "reset"), [(rough_walk, "cond"), (rough_walk, "compact"), (tiny.game, "cond")]
)
def test_scan_is_the_loop(make, reset):
    env = make(5, reset)
    steps = 15
    states, decisions, outcomes = zip(*tiny.play(env, 2, steps), strict=True)

    @jax.jit
    def scanned(state, action, step_noise, fresh):
        def body(state, inputs):
            state, decision, outcome = env.step(state, *inputs)
            return state, (decision, outcome)

        return jax.lax.scan(body, state, (action, step_noise, fresh))

    def stack(*trees):
        return jax.tree.map(lambda *xs: np.stack(xs), *trees)

    tapes = stack(*(tiny.noise(env, 2, t) for t in range(steps)))
    state, _ = tiny.jitted(env)[0](tiny.reset_noise(env, 2))
    state, (decision, outcome) = scanned(state, tiny.actions(env, 2, steps), *tapes)
    tiny.assert_equal(state, states[-1])
    tiny.assert_equal(decision, stack(*decisions))
    tiny.assert_equal(tiny.masked(outcome), tiny.masked(stack(*outcomes)))


def test_a_donated_state_is_consumed_and_nothing_else_is():
    env = tiny.walk(5)
    step = jax.jit(env.step, donate_argnums=0)
    expected = list(tiny.play(env, 4, 12))
    state, decision = tiny.jitted(env)[0](tiny.reset_noise(env, 4))
    kept = [(decision, jax.tree.map(np.array, decision))]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # JAX warns of donated buffers that it couldn't use
        for t, action in enumerate(tiny.actions(env, 4, 12)):
            old = state
            state, decision, outcome = step(state, action, *tiny.noise(env, 4, t))
            # `push` isn't read by the step, so it isn't even passed in.
            assert all(x.is_deleted() for x in (old.position, old.steps, old.tilt))
            kept.append(((decision, outcome), jax.tree.map(np.array, (decision, outcome))))
            tiny.assert_equal((decision, outcome), expected[t][1:])
    for live, at_the_time in kept:
        tiny.assert_equal(live, at_the_time)


@makers
def test_canonical_fields_continue_an_episode(make):
    env = make(5)
    (*_, (state, decision, _)) = tiny.play(env, 6, 5)
    again = env.state_from_fields(env.state_fields(state))
    tiny.assert_equal(again, state)
    tiny.assert_equal(tiny.jitted(env)[2](again), decision)


def test_where_rows_selects_whole_rows():
    new = {"a": jnp.ones((3, 2, 2)), "b": jnp.ones(3, jnp.int32)}
    old = jax.tree.map(jnp.zeros_like, new)
    got = where_rows(jnp.array([True, False, True]), new, old)
    np.testing.assert_array_equal(got["a"][:, 1, 0], [1, 0, 1])
    np.testing.assert_array_equal(got["b"], [1, 0, 1])


BAD_ACTIONS = {
    "too few": (np.zeros(3, np.int32), ValueError, r"shape \(3,\), expected \(4,\)"),
    "a column": (np.zeros((4, 1), np.int32), ValueError, r"shape \(4, 1\), expected \(4,\)"),
    "real": (np.zeros(4, np.float32), TypeError, "dtype float32"),
    "bool": (np.zeros(4, bool), TypeError, "dtype bool"),
}


@pytest.mark.parametrize(("action", "error", "words"), BAD_ACTIONS.values(), ids=BAD_ACTIONS)
def test_actions_of_a_wrong_form_are_refused(action, error, words):
    env = tiny.walk(4)
    reset, step, _ = tiny.jitted(env)
    state, _ = reset(tiny.reset_noise(env, 0))
    with pytest.raises(error, match=words):
        step(state, action, *tiny.noise(env, 0, 0))


@pytest.mark.parametrize("num_envs", [0, -1, 2.0, "2", None])
def test_a_number_of_environments_that_is_none(num_envs):
    with pytest.raises(ValueError, match="num_envs must be a positive integer"):
        vectorize(tiny.Walk(tiny.walk_spec()), num_envs)


def test_an_unknown_reset_form():
    with pytest.raises(ValueError, match="'where'; choose from cond, compact"):
        vectorize(tiny.Walk(tiny.walk_spec()), 2, reset="where")
