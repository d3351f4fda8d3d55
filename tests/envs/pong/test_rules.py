"""The C code's rules and quirks, each by name, on the C code and on the port.

DIFFERENCES.md and the contract page refer to these tests.
"""

from __future__ import annotations

import numpy as np
import pytest

import envs
from envs.pong.contract import DOWN, STAY, UP
from tests.envs.pong.tables import BOTH, SPEC, noise, simulator, step, table

UNSEEN = 0.125  # what ``table`` puts into the observation
MISSED = dict(ball_x=460.0, ball_y=0.0)  # passes the right edge in the first frame, far from it
START = dict(paddle_yl=285.0, paddle_yr=285.0, ball_x=100.0, ball_y=304.0, ball_vx=10.0)


def one(backend, action=STAY, serve=0, new_game=0, frameskip=1, **changes):
    """One step of one environment: (observation [8], outcome, fields) without the N axis."""
    fields = table(**changes)
    decision, outcome, after = step(
        backend, fields, action, serve, new_game, **{"frameskip": frameskip}
    )
    return decision.observation[0], outcome, {name: value[0] for name, value in after.items()}


def assert_fields(after, **expected):
    assert {name: after[name].item() for name in expected} == expected


@BOTH
@pytest.mark.parametrize(("serve", "speed"), [(0, -1.0), (1, 0.0)])
def test_round_starts_in_the_middle_flat_or_downwards(backend, serve, speed):
    sim = simulator(backend, 1)
    decision = sim.reset(noise(SPEC, 0, serve, 1)[1])
    after = {name: value[0] for name, value in sim.get_state().items()}
    assert_fields(after, **START, ball_vy=speed, score_l=0, score_r=0, tick=0)
    expected = np.array([0.5, 0.5, 0.2, 304 / 640, 1, (speed + 13) / 26, 0, 0], np.float32)
    np.testing.assert_array_equal(decision.observation[0], expected)


@BOTH
@pytest.mark.parametrize(("action", "speed"), [(STAY, 0), (UP, 8), (DOWN, -8)])
def test_actions_move_the_right_paddle(backend, action, speed):
    assert one(backend, action, frameskip=8)[2]["paddle_yr"] == 285 + 8 * speed


@BOTH
@pytest.mark.parametrize(("action", "end"), [(UP, 605.0), (DOWN, -35.0)])
def test_paddles_leave_the_field_by_half(backend, action, end):
    assert one(backend, action, paddle_yr=end)[2]["paddle_yr"] == end
    ball = -13.0 if action == DOWN else 640.0
    assert one(backend, paddle_yl=end, ball_y=ball)[2]["paddle_yl"] == end


@BOTH
def test_left_paddle_follows_the_lower_edge_of_the_ball(backend):
    centred_on_the_edge = one(backend, paddle_yl=304.0 - 35)[2]
    assert centred_on_the_edge["paddle_yl"] == 304.0 - 35
    assert one(backend, paddle_yl=304.0 - 35 + 3)[2]["paddle_yl"] == 304.0 - 35
    assert one(backend, paddle_yl=304.0 - 35 - 100)[2]["paddle_yl"] == 304.0 - 35 - 92


@BOTH
@pytest.mark.parametrize(("ball_y", "ball_vy"), [(4.0, -13.0), (605.0, 13.0)])
def test_walls_turn_the_ball_without_moving_it_back(backend, ball_y, ball_vy):
    after = one(backend, ball_y=ball_y, ball_vy=ball_vy)[2]
    assert_fields(after, ball_y=ball_y + ball_vy, ball_vy=-ball_vy)


@BOTH
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (dict(ball_y=13.0, ball_vy=-13.0), dict(ball_y=0.0, ball_vy=-13.0)),
        (dict(ball_y=595.0, ball_vy=13.0), dict(ball_y=608.0, ball_vy=13.0)),
        (dict(ball_x=10.0, ball_vx=-10.0), dict(ball_x=0.0, ball_vx=-10.0)),
        (dict(ball_x=458.0), dict(ball_x=468.0, ball_vx=10.0)),
    ],
)
def test_the_edge_itself_is_inside(backend, before, after):
    _, outcome, fields = one(backend, **before)
    assert_fields(fields, **after)
    assert outcome.reward[0] == 0


@BOTH
def test_observations_leave_the_unit_interval(backend):
    low = one(backend, ball_y=2.0, ball_vy=-13.0)[0]
    assert low[3] == np.float32(-11 / 640)
    left = one(backend, ball_x=8.0, ball_vx=-10.0)
    assert left[0][2] == np.float32(-2 / 500)
    assert left[2]["ball_x"] == -2.0


@BOTH
def test_left_hit_only_turns_the_ball(backend):
    _, outcome, after = one(backend, ball_x=8.0, ball_vx=-10.0, ball_vy=2.0)
    assert_fields(after, ball_x=-2.0, ball_vx=10.0, ball_vy=2.0)
    assert outcome.reward[0] == 0


@BOTH
@pytest.mark.parametrize(
    ("action", "before", "expected"),
    [(STAY, 2.0, 2.0), (UP, 2.0, 5.0), (DOWN, 2.0, -1.0), (UP, 12.0, 13.0), (DOWN, -12.0, -13.0)],
)
def test_right_hit_slices_the_ball(backend, action, before, expected):
    _, outcome, after = one(backend, action, ball_x=460.0, ball_vy=before)
    assert_fields(after, ball_x=468.0, ball_vx=-10.0, ball_vy=expected)
    assert outcome.reward[0] == np.float32(0.1)


@BOTH
@pytest.mark.parametrize(
    ("action", "before"), [(STAY, 0.0), (UP, -3.0), (DOWN, 3.0), (STAY, -0.009)]
)
def test_flat_ball_always_leaves_upwards(backend, action, before):
    assert one(backend, action, ball_x=460.0, ball_vy=before)[2]["ball_vy"] == 3.0


@BOTH
def test_corner_hit_is_pushed_into_the_field(backend):
    _, outcome, after = one(backend, paddle_yr=-35.0, ball_x=460.0, ball_y=4.0, ball_vy=-10.0)
    assert_fields(after, ball_x=468.0, ball_y=0.0, ball_vy=10.0)
    assert outcome.reward[0] == np.float32(0.1)


@BOTH
@pytest.mark.parametrize(("gap", "hits"), [(0.0, False), (0.5, True)])
@pytest.mark.parametrize("end", ["below", "above"])
def test_touching_is_not_hitting(backend, gap, hits, end):
    ball_y = 285.0 - 32 + gap if end == "below" else 285.0 + 70 - gap
    reward = one(backend, ball_x=460.0, ball_y=ball_y)[1].reward[0]
    assert reward == (np.float32(0.1) if hits else -1)


@BOTH
def test_observation_is_stale_after_a_point_in_the_first_frame(backend):
    observation, outcome, after = one(backend, frameskip=8, **MISSED)
    assert outcome.reward[0] == -1
    assert (observation == UNSEEN).all()
    assert_fields(after, **START, ball_vy=-1.0, score_l=1)


@BOTH
def test_observation_after_a_later_point_is_the_last_whole_frame(backend):
    observation, outcome, _ = one(backend, frameskip=8, ball_x=450.0, ball_y=0.0)
    assert outcome.reward[0] == -1
    assert observation[2] == np.float32(460 / 500)


@BOTH
def test_observation_after_a_game_is_that_of_the_new_one(backend):
    observation, outcome, after = one(backend, new_game=1, frameskip=8, score_l=20, **MISSED)
    assert outcome.terminated[0]
    assert observation[2] == np.float32(0.2)
    assert_fields(after, **START, ball_vy=0.0, score_l=0, score_r=0, tick=0)


@BOTH
def test_final_decision_is_what_was_last_seen_before_the_reset(backend):
    _, outcome, _ = one(backend, frameskip=8, score_l=20, **MISSED)
    assert (outcome.final.observation[0] == UNSEEN).all()
    _, outcome, _ = one(backend, frameskip=8, score_l=20, ball_x=450.0, ball_y=0.0)
    assert outcome.final.observation[0, 2] == np.float32(460 / 500)


@BOTH
def test_a_point_drops_the_remaining_frames(backend):
    after = one(backend, frameskip=8, serve=1, **MISSED)[2]
    assert_fields(after, ball_x=100.0, paddle_yl=285.0, tick=0)


@BOTH
@pytest.mark.parametrize(("serve", "speed"), [(0, -1.0), (1, 0.0)])
def test_the_next_round_takes_the_step_noise(backend, serve, speed):
    after = one(backend, serve=serve, new_game=1 - serve, **MISSED)[2]
    assert after["ball_vy"] == speed


@BOTH
@pytest.mark.parametrize("side", ["won", "lost"])
def test_points_and_games(backend, side):
    scored = dict(ball_x=2.0, ball_vx=-10.0, ball_y=0.0) if side == "won" else MISSED
    own, other = ("score_r", "score_l") if side == "won" else ("score_l", "score_r")
    sign = 1 if side == "won" else -1
    _, outcome, after = one(backend, **scored, **{own: 19, other: 7})
    assert (outcome.reward[0], outcome.terminated[0]) == (sign, False)
    assert_fields(after, **{own: 20, other: 7})
    _, outcome, after = one(backend, **scored, **{own: 20, other: 7, "tick": 11})
    assert (outcome.reward[0], outcome.terminated[0]) == (sign, True)
    assert outcome.metrics["score_difference"][0] == sign * 14
    assert outcome.metrics[own.replace("_r", "_right").replace("_l", "_left")][0] == 21
    assert outcome.metrics["last_round_steps"][0] == 12


@BOTH
def test_a_later_event_overwrites_the_reward(backend):
    """A field so narrow that the ball is returned, missed by the left paddle, all in one step."""
    rules = dict(frameskip=8, width=40)
    spec = envs.make_spec("pong", **rules)
    at_right = table(1, spec, ball_x=0.0, ball_vy=13.0, paddle_yl=0.0)
    assert step(backend, at_right, **{**rules, "frameskip": 1})[1].reward[0] == np.float32(0.1)
    assert step(backend, at_right, **rules)[1].reward[0] == 1


@BOTH
def test_tick_counts_steps_of_the_round(backend):
    sim = simulator(backend, 1)
    sim.set_state(table(tick=3))
    sim.step(np.zeros(1, np.int32), *noise(SPEC, 0, 0, 1))
    assert sim.get_state()["tick"] == 4
    assert one(backend, tick=3, **MISSED)[2]["tick"] == 0


@BOTH
def test_scores_are_never_seen(backend):
    observation = one(backend, score_l=20, score_r=20)[0]
    assert (observation[6:] == 0).all()


@BOTH
def test_nothing_is_truncated(backend):
    assert not SPEC.truncates
    assert not one(backend, tick=100_000)[1].truncated[0]


@BOTH
def test_paddle_width_enters_no_rule(backend):
    fields = table(ball_x=460.0, ball_vy=2.0)
    wide, narrow = (step(backend, fields, UP, paddle_width=w)[2] for w in (100, 1))
    assert all((wide[name] == narrow[name]).all() for name in SPEC.state)
