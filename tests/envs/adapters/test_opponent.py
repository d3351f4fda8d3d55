import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs.adapters.numpy_faces import FunctionalBatched, FunctionalSimulator
from envs.adapters.opponent import Opponent
from envs.adapters.vectorize import vectorize
from envs.core import EnvSpec
from tests.envs.adapters import tiny

N = 6
MIXED = [0, 1, 1, 0, 1, 0]


def random_legal(params, observation, legal_actions, uniform):
    """A legal action by the draw, shifted by the parameter and by what the seat sees."""
    phase = observation.sum(-1) + 5 * uniform + params["shift"]
    preference = jnp.sin(phase[:, None] + 2.1 * jnp.arange(legal_actions.shape[-1]))
    return jnp.where(legal_actions, preference, -jnp.inf).argmax(-1)


PARAMS = {"shift": np.float32(0.3)}


def against_random(agents=2, simultaneous=True, seat=0):
    return Opponent(
        tiny.game(N, agents=agents, simultaneous=simultaneous), random_legal, PARAMS, seat=seat
    )


@pytest.fixture(scope="module")
def versus():
    return against_random(seat=1)


CASES = {
    "simultaneous, seats by row": (2, True, MIXED),
    "turns, seats by row": (2, False, MIXED),
    "three players, the middle seat": (3, True, 1),
    "three players in turns, seats by row": (3, False, [0, 1, 2, 2, 1, 0]),
}


@pytest.mark.parametrize(("agents", "simultaneous", "seat"), CASES.values(), ids=CASES)
def test_it_is_the_game_with_the_policys_actions_in_the_other_seats(agents, simultaneous, seat):
    env = against_random(agents, simultaneous, seat)
    game = env.env
    seats = np.broadcast_to(seat, N)
    reset, step, _ = tiny.jitted(game)
    state, whole = reset(tiny.reset_noise(game, 3))
    learner, decision = jax.jit(env.reset)(tiny.reset_noise(env, 3))
    learner_step, observe = jax.jit(env.step), jax.jit(env.observe)
    silent, ends, answers = 0, 0, set()
    policy = jax.jit(random_legal)
    for t, action in enumerate(tiny.actions(env, 3, 20)):
        assert_seat(decision, whole, seats)
        tiny.assert_equal(observe(learner), decision)
        silent += (~np.asarray(decision.acting)).sum()
        step_noise, fresh = tiny.noise(env, 3, t)
        whole = jax.tree.map(np.asarray, whole)
        joint = np.zeros((N, agents), np.int32)
        for i in range(N):  # the seats one by one, by hand
            joint[i, seats[i]] = action[i]
            others = [j for j in range(agents) if j != seats[i]]
            for place, j in enumerate(others):
                answer = policy(
                    PARAMS,
                    whole.observation[i, j][None],
                    whole.legal_actions[i, j][None],
                    step_noise.opponent[i, place][None],
                )
                joint[i, j] = int(answer[0])
                answers.add(joint[i, j])
        state, whole, outcome = step(state, joint, type_of(game, step_noise), fresh)
        learner, decision, mine = learner_step(learner, action, step_noise, fresh)
        tiny.assert_equal(learner.inner, state)
        rows = np.arange(N)
        np.testing.assert_array_equal(mine.reward, outcome.reward[rows, seats])
        np.testing.assert_array_equal(mine.invalid, outcome.invalid[rows, seats])
        for name in ("terminated", "truncated", "events"):
            tiny.assert_equal(getattr(mine, name), getattr(outcome, name))
        ended = np.asarray(mine.terminated | mine.truncated)
        ends += ended.sum()
        score = np.asarray(outcome.metrics["score"])[rows, seats]
        np.testing.assert_array_equal(mine.metrics["score"][ended], score[ended])
        np.testing.assert_array_equal(
            mine.metrics["length"][ended], outcome.metrics["length"][ended]
        )
        assert_seat(
            tiny.rows_of(mine.final, ended), tiny.rows_of(outcome.final, ended), seats[ended]
        )
    assert_seat(decision, whole, seats)
    assert ends >= N
    assert answers == {0, 1, 2, 3}  # a policy that makes use of everything
    assert (silent > 0) != simultaneous


def type_of(game, step_noise):
    return game.spec.StepNoise(luck=step_noise.luck)


def assert_seat(decision, whole, seats):
    """The learner's decision is the game's at these seats; privileged is the whole game's."""
    rows = np.arange(len(seats))
    for name in ("observation", "acting", "legal_actions"):
        expected = np.asarray(getattr(whole, name))[rows, seats]
        np.testing.assert_array_equal(getattr(decision, name), expected)
    np.testing.assert_array_equal(decision.privileged, whole.privileged)


def test_a_learner_who_waits_gets_decisions_that_are_not_acting():
    env = against_random(simultaneous=False, seat=0)
    reset, step = jax.jit(env.reset), jax.jit(env.step)
    noise = tiny.reset_noise(env, 0)
    state, decision = reset(noise._replace(first=np.zeros(N, np.int32)))
    for t in range(4):
        acting = t % 2 == 0
        np.testing.assert_array_equal(decision.acting, acting)
        legal = np.asarray(decision.legal_actions)
        if not acting:
            np.testing.assert_array_equal(legal, [[True, False, False, False]] * N)
        inputs = tiny.noise(env, 0, t)
        # Two actions a side, of at most 3 and 2 for the opponent: nobody reaches 7.
        results = [step(state, np.full(N, a, np.int32), *inputs) for a in (0, 1)]
        differ = not np.array_equal(results[0][0].inner.total, results[1][0].inner.total)
        assert differ == acting  # a waiting learner's action is ignored
        state, decision, outcome = results[1]
        assert not outcome.invalid.any()
        running = ~np.asarray(outcome.terminated)
        assert running.all()


def test_other_parameters_play_otherwise_without_another_compilation(versus):
    step = jax.jit(versus.step)
    state, _ = jax.jit(versus.reset)(tiny.reset_noise(versus, 0))
    inputs = (np.zeros(N, np.int32), *tiny.noise(versus, 0, 0))
    expected, *_ = step(state, *inputs)
    changed = versus.with_params(state, {"shift": jnp.float32(2.0)})
    got, *_ = step(changed, *inputs)
    assert step._cache_size() == 1
    assert not np.array_equal(got.inner.total, expected.inner.total)
    assert float(got.params["shift"]) == 2.0  # and stay


def test_scan_is_the_loop(versus):
    steps = 12
    states, decisions, outcomes = zip(*tiny.play(versus, 2, steps), strict=True)

    def body(state, inputs):
        state, decision, outcome = versus.step(state, *inputs)
        return state, (decision, outcome)

    def together(*trees):
        return jax.tree.map(lambda *xs: np.stack(xs), *trees)

    tapes = together(*(tiny.noise(versus, 2, t) for t in range(steps)))
    first, _ = tiny.jitted(versus)[0](tiny.reset_noise(versus, 2))
    inputs = (tiny.actions(versus, 2, steps), *tapes)
    state, (decision, outcome) = jax.jit(lambda s, x: jax.lax.scan(body, s, x))(first, inputs)
    tiny.assert_equal(state, states[-1])
    tiny.assert_equal(decision, together(*decisions))
    tiny.assert_equal(tiny.masked(outcome), tiny.masked(together(*outcomes)))


def test_every_other_seat_and_step_has_a_draw_of_its_own():
    env = against_random(agents=3)
    first, second = (tiny.noise(env, 0, t)[0].opponent for t in (0, 1))
    assert first.shape == (N, 2)
    assert len(np.unique([first, second])) == 4 * N


def test_the_spec_is_that_of_one_agent(versus):
    spec, game = versus.spec, versus.env.spec
    assert (spec.num_agents, spec.rows(N)) == (1, (N,))
    assert spec.parameters == {**game.parameters, "opponent": "policy", "seat": 1}
    assert not any(metric.per_agent for metric in spec.metrics.values())
    assert tuple(spec.step_noise) == ("luck", "opponent")
    assert (spec.state, spec.action_space) == (game.state, game.action_space)
    assert spec.privileged_space == game.privileged_space
    assert spec == EnvSpec.from_json(spec.to_json())
    others = [against_random(seat=seat).spec.digest for seat in (0, MIXED, [1, *MIXED[1:]])]
    named = Opponent(versus.env, random_legal, PARAMS, seat=1, label="frozen at 3").spec.digest
    assert len({spec.digest, game.digest, named, *others}) == 6


def test_an_invalid_action_of_either_side_is_flagged():
    def cheat_when_asked(params, observation, legal_actions, uniform):
        return jnp.where(jnp.arange(N) == 2, 4, 1)

    env = Opponent(tiny.game(N), cheat_when_asked, ())
    state, _ = env.reset(tiny.reset_noise(env, 0))
    action = np.ones(N, np.int32)
    action[4] = -1
    *_, outcome = jax.jit(env.step)(state, action, *tiny.noise(env, 0, 0))
    np.testing.assert_array_equal(outcome.invalid, [False, False, True, False, True, False])


def test_it_is_an_environment_like_any_other(versus):
    batched, simulator = FunctionalBatched(versus), FunctionalSimulator(versus)
    decision = batched.reset(0)
    assert decision.acting.shape == (N,)
    for _ in range(10):
        decision, outcome = batched.step(np.zeros(N, int))
        assert outcome.reward.shape == (N,)
    simulator.reset(tiny.reset_noise(versus, 0))
    played = []
    for t in range(3):
        played.append(simulator.step(np.zeros(N, int), *tiny.noise(versus, 0, t)))
        if t == 1:
            data, fields = simulator.snapshot(), simulator.get_state()
    for again, argument in ((simulator.restore, data), (simulator.set_state, fields)):
        tiny.assert_equal(again(argument), played[1][0])
        got = simulator.step(np.zeros(N, int), *tiny.noise(versus, 0, 2))
        tiny.assert_equal(got, played[2])


def test_a_snapshot_belongs_to_the_port_inside(versus):
    class Port(tiny.Game):
        """Another implementation of the same contract."""

    simulator = FunctionalSimulator(versus)
    simulator.reset(tiny.reset_noise(versus, 0))
    port = vectorize(Port(versus.env.spec), N)
    other = FunctionalSimulator(Opponent(port, random_legal, PARAMS, seat=1))
    assert other.spec == simulator.spec
    with pytest.raises(ValueError, match="the snapshot is of another"):
        other.restore(simulator.snapshot())


BAD = {
    "a seat too many": (dict(seat=2), r"game has the seats 0\.\.1, got 2"),
    "a negative seat": (dict(seat=-1), r"game has the seats 0\.\.1, got -1"),
    "a real seat": (dict(seat=0.0), f"seat must be an integer, or {N} of them"),
    "too few seats": (dict(seat=[0, 1]), f"seat must be an integer, or {N} of them"),
    "one seat too high": (dict(seat=[0, 1, 2, 0, 0, 0]), r"game has the seats 0\.\.1"),
}


@pytest.mark.parametrize(("arguments", "words"), BAD.values(), ids=BAD)
def test_seats_that_do_not_exist(arguments, words):
    with pytest.raises(ValueError, match=words):
        Opponent(tiny.game(N), random_legal, PARAMS, **arguments)


def test_games_without_another_seat(versus):
    for env in (tiny.walk(N), versus):
        with pytest.raises(ValueError, match="has one agent; there is no other seat to fill"):
            Opponent(env, random_legal, PARAMS)


def test_actions_of_a_wrong_form(versus):
    state, _ = versus.reset(tiny.reset_noise(versus, 0))
    noise = tiny.noise(versus, 0, 0)
    with pytest.raises(ValueError, match=r"actions have shape \(6, 2\), expected \(6,\)"):
        versus.step(state, np.zeros((N, 2), np.int32), *noise)
    with pytest.raises(TypeError, match="actions have dtype float32"):
        versus.step(state, np.zeros(N, np.float32), *noise)
    wrong = Opponent(versus.env, lambda params, o, legal, uniform: legal, PARAMS)
    with pytest.raises(ValueError, match=r"the policy's actions have shape \(6, 4\)"):
        wrong.step(state, np.zeros(N, np.int32), *noise)
