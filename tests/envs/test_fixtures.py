"""The conformance fixtures are the games that they say they are, and easy to play well."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs.adapters.vectorize import vectorize
from envs.core import EnvSpec
from envs.noise import draw_reset_noise, draw_step_noise
from envs.registry import build
from tests.fixtures import continuous, image_state, served, simultaneous, turn_based

FIXTURES = (simultaneous, turn_based, image_state, continuous)
RNG = np.random.default_rng(3)


def make(room, num_envs, interface="batched", backend="jax", **parameters):
    return build(
        room.BACKENDS[backend], room.make_spec(**parameters), num_envs, interface, room.__name__
    )


def random_legal(decision):
    legal = decision.legal_actions
    choice = np.floor(RNG.random(legal.shape[:-1]) * legal.sum(-1))
    return (np.cumsum(legal, -1) > choice[..., None]).argmax(-1)


def play(env, policy, steps):
    """(decision before, decision after, outcome) of every step."""
    decision = env.reset(11)
    for _ in range(steps):
        following, outcome = env.step(policy(decision))
        yield decision, following, outcome
        decision = following


def winners(env, policy, steps):
    """Rows of the metric "winner" of all finished games, ``[games, 2]``."""
    found = [
        o.metrics["winner"][o.terminated | o.truncated] for _, _, o in play(env, policy, steps)
    ]
    return np.concatenate(found).astype(float)


@pytest.mark.parametrize("room", FIXTURES, ids=lambda room: room.__name__.split(".")[-1])
def test_specs_survive_json(room):
    spec = room.make_spec()
    assert EnvSpec.from_json(spec.to_json()) == spec


# --- simultaneous -----------------------------------------------------------------------------


def name_your_hand(decision):
    hand = decision.observation[..., : simultaneous.CARDS].argmax(-1)
    alone = decision.observation[..., simultaneous.CARDS] == 1
    best = np.where(alone, simultaneous.BANK, hand + 1)
    return np.where(decision.acting, best, 0)


def test_reading_the_hand_beats_chance():
    env = make(simultaneous, 32)

    def policy(decision):
        actions = random_legal(decision)
        actions[:, 0] = name_your_hand(decision)[:, 0]
        return actions

    won = winners(env, policy, 60)
    assert len(won) > 50
    assert won[:, 0].mean() > 0.97
    np.testing.assert_array_equal(won.sum(1), 1)


def test_the_best_move_is_always_legal_and_rewards_sum_to_zero():
    for decision, _, outcome in play(make(simultaneous, 16), name_your_hand, 60):
        legal = np.take_along_axis(decision.legal_actions, name_your_hand(decision)[..., None], -1)
        assert legal.all()
        np.testing.assert_array_equal(outcome.reward.sum(1), 0)
        assert not outcome.invalid.any()


def test_one_sided_turns_follow_a_single_hit():
    seen = 0
    for _, following, outcome in play(make(simultaneous, 16), random_legal, 60):
        ended = outcome.terminated | outcome.truncated
        one_sided = outcome.events[:, 2] & ~ended
        np.testing.assert_array_equal(following.acting.all(-1), ~one_sided)
        seen += one_sided.sum()
    assert seen > 50


def test_the_other_hand_is_hidden_from_observation_and_legal_actions():
    with make(simultaneous, 1, "simulator") as env:
        state = dict(
            hands=np.int32([[2, 0]]),
            blocked=np.int32([[1, 1]]),
            score=np.int32([[1, 3]]),
            turn=np.int32([simultaneous.BOTH]),
            steps=np.int32([4]),
        )
        one = env.set_state(state)
        two = env.set_state({**state, "hands": np.int32([[2, 3]])})
    np.testing.assert_array_equal(one.observation[0, 0], two.observation[0, 0])
    np.testing.assert_array_equal(one.legal_actions[0, 0], two.legal_actions[0, 0])
    assert (one.observation[0, 1] != two.observation[0, 1]).any()
    assert (one.privileged != two.privileged).any()


# --- turn-based -------------------------------------------------------------------------------


def leave_fours(decision):
    stones = decision.observation.argmax(-1)
    actions = np.clip(stones % 4 - 1, 0, None)
    return np.where(decision.acting, actions, 0)


def test_leaving_multiples_of_four_wins_from_every_winnable_start():
    env = make(turn_based, 64, gust=0.0)
    opening = env.reset(11)
    mover = opening.acting.argmax(-1)
    winnable = opening.observation[:, 0].argmax(-1) % 4 != 0
    assert 10 < winnable.sum() < 64
    won = np.full(64, -1)
    decision = opening
    for _ in range(turn_based.MAX_EPISODE_STEPS):
        actions = random_legal(decision)
        rows = np.arange(64)
        actions[rows, mover] = leave_fours(decision)[rows, mover]
        decision, outcome = env.step(actions)
        first = outcome.terminated & (won < 0)
        won[first] = outcome.metrics["winner"][first].argmax(-1)
    np.testing.assert_array_equal(won[winnable], mover[winnable])


def test_seats_take_turns_and_the_reward_comes_at_the_end_with_both_signs():
    for decision, following, outcome in play(make(turn_based, 32), random_legal, 40):
        ended = outcome.terminated | outcome.truncated
        assert (decision.acting.sum(-1) == 1).all()
        going_on = ~ended
        np.testing.assert_array_equal(decision.acting[going_on], ~following.acting[going_on])
        np.testing.assert_array_equal(outcome.reward[~outcome.terminated], 0)
        winner = outcome.metrics["winner"][outcome.terminated]
        np.testing.assert_array_equal(
            outcome.reward[outcome.terminated], np.where(winner, 1.0, -1.0)
        )
        assert not outcome.final.acting[outcome.terminated].any()


# --- image state ------------------------------------------------------------------------------


def test_a_row_holds_64_kilobytes_and_the_image_is_drawn_from_it():
    env = make(image_state, 3, "simulator")
    rows = np.arange(3, dtype=np.uint32)
    env.reset(draw_reset_noise(env.spec, 1, 0, rows))
    for count in range(50):
        noise = draw_step_noise(env.spec, 1, count, rows)
        decision, _ = env.step(
            RNG.integers(0, 5, 3), noise, draw_reset_noise(env.spec, 1, count + 1, rows)
        )
    state = env.get_state()
    assert state["memory"][0].nbytes + state["image"][0].nbytes == 65536
    drawn = jax.vmap(image_state.draw)(state["memory"], state["cursor"], state["lamp"])
    np.testing.assert_array_equal(drawn, state["image"])
    np.testing.assert_array_equal(decision.observation, state["image"])
    assert len(np.unique(state["memory"])) == 256


def test_compact_and_cond_restarts_are_the_same_bit_for_bit():
    env = image_state.FindTheLamp(image_state.make_spec())
    rows = np.arange(4, dtype=np.uint32)
    forms = [vectorize(env, 4, reset=form) for form in ("compact", "cond")]
    steps = [jax.jit(form.step) for form in forms]
    noise = draw_reset_noise(env.spec, 9, 0, rows)
    carries = [jax.jit(form.reset)(noise) for form in forms]
    ended = 0
    for count in range(70):
        actions = jnp.asarray(RNG.integers(0, 5, 4), jnp.int32)
        noise = (
            draw_step_noise(env.spec, 9, count, rows),
            draw_reset_noise(env.spec, 9, count + 1, rows),
        )
        results = [
            step(carry[0], actions, *noise) for step, carry in zip(steps, carries, strict=True)
        ]
        jax.tree.map(np.testing.assert_array_equal, *results)
        carries = results
        ended += int((results[0][2].terminated | results[0][2].truncated).sum())
    assert ended > 8


def test_walking_to_the_lamp_finds_it():
    env = make(image_state, 16)

    def place(image, value):
        cells = image[:, :: image_state.PIXELS, :: image_state.PIXELS, 0]
        flat = (cells == value).reshape(len(image), -1).argmax(-1)
        return np.stack(np.divmod(flat, image_state.CELLS), -1)

    def towards(decision):
        away = place(decision.observation, image_state.LAMP) - place(
            decision.observation, image_state.CURSOR
        )
        away = (away + image_state.CELLS // 2) % image_state.CELLS - image_state.CELLS // 2
        vertical = np.where(away[:, 0] < 0, 1, 2)
        horizontal = np.where(away[:, 1] < 0, 3, 4)
        return np.where(np.abs(away[:, 0]) >= np.abs(away[:, 1]), vertical, horizontal)

    outcomes = [outcome for _, _, outcome in play(env, towards, 60)]
    terminated = sum(int(outcome.terminated.sum()) for outcome in outcomes)
    truncated = sum(int(outcome.truncated.sum()) for outcome in outcomes)
    assert terminated > 100
    assert truncated <= 3


# --- continuous -------------------------------------------------------------------------------


def test_steering_to_the_middle_beats_doing_nothing():
    def returns(policy):
        total = sum(outcome.reward for _, _, outcome in play(make(continuous, 16), policy, 40))
        return total.mean()

    def steer(decision):
        position, velocity = decision.observation[:, :2], decision.observation[:, 2:]
        return np.clip(-2.0 * position - 8.0 * velocity, -1, 1)

    idle = returns(lambda decision: np.zeros((16, 2), np.float32))
    push = returns(lambda decision: np.ones((16, 2), np.float32))
    assert returns(steer) > idle / 2 > push


def test_episodes_only_end_by_the_limit():
    env = make(continuous, 3, max_episode_steps=7)
    policy = lambda decision: RNG.uniform(-1, 1, (3, 2)).astype(np.float32)  # noqa: E731
    for count, (_, _, outcome) in enumerate(play(env, policy, 30), 1):
        assert not outcome.terminated.any()
        np.testing.assert_array_equal(outcome.truncated, count % 7 == 0)


def test_a_dict_observation_holds_the_same_numbers():
    plain, split = make(continuous, 3), make(continuous, 3, dict_observation=True)
    one, two = plain.reset(5).observation, split.reset(5).observation
    np.testing.assert_array_equal(one, np.concatenate([two["position"], two["velocity"]], -1))


# --- served -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_served_game_is_the_game():
    with make(served, 4, backend="process") as remote, make(simultaneous, 4) as local:
        assert remote.spec == local.spec
        for (_, one, a), (_, two, b) in zip(
            play(remote, name_your_hand, 30), play(local, name_your_hand, 30), strict=True
        ):
            jax.tree.map(np.testing.assert_array_equal, (one, a), (two, b))
