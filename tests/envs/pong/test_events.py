"""The port's rule events against what the C code's state shows, frame by frame."""

from __future__ import annotations

import numpy as np
import pytest

import envs
from envs.pong.contract import rules_of
from tests.envs.pong.tables import OTHER_RULES, simulator, step, synthesised


def events_of(outcome, spec):
    return dict(zip(spec.events, outcome.events.T, strict=True))


def expected_events(before, after, outcome, actions, spec):
    """What one frame of the C code did, from its states around it."""
    rules = rules_of(spec)
    f = np.float32
    y = before["ball_y"] + before["ball_vy"]
    vy = np.where((y < 0) | (y + f(rules.ball_height) > f(rules.height)), -1, 1) * before["ball_vy"]
    direction = np.array([0, 1, -1], np.float32)[actions]
    sliced = vy + f(rules.ball_speed_y_increment) * direction
    limit = f(rules.ball_max_speed_y)
    scored = abs(outcome.reward) == 1
    hit_right = outcome.reward == f(0.1)
    target = before["ball_y"] - (before["paddle_yl"] + f(rules.paddle_height) / 2)
    speed = f(rules.paddle_speed)
    ends = (rules.min_paddle_y, rules.max_paddle_y)
    free_left = before["paddle_yl"] + np.clip(target, -speed, speed)
    free_right = before["paddle_yr"] + speed * direction
    return dict(
        wall_bottom=y < 0,
        wall_top=y + f(rules.ball_height) > f(rules.height),
        hit_left=~scored & ~hit_right & (after["ball_vx"] != before["ball_vx"]),
        hit_right=hit_right,
        speed_limited=hit_right & (abs(sliced) > limit),
        flat_avoided=hit_right & (abs(np.clip(sliced, -limit, limit)) < 0.01),
        ball_pushed_inside=hit_right & (after["ball_y"] != y),
        paddle_left_clamped=(free_left < ends[0]) | (free_left > ends[1]),
        paddle_right_clamped=(free_right < ends[0]) | (free_right > ends[1]),
        point_left=outcome.reward == -1,
        point_right=outcome.reward == 1,
        stale_observation=scored,
        game_over=outcome.terminated,
    )


@pytest.mark.parametrize("rules", [{}, OTHER_RULES["fractions"], OTHER_RULES["flat and fast"]])
def test_one_frame(rules):
    rules = {**rules, "frameskip": 1}
    spec = envs.make_spec("pong", **rules)
    for seed in range(5):
        before = synthesised(spec, 4096, seed)
        before["ball_vx"][before["ball_vx"] == 0] = rules_of(spec).ball_initial_speed_x
        actions = np.random.default_rng(seed).integers(0, 3, 4096).astype(np.int32)
        _, outcome, after = step("reference", before, actions, **rules)
        expected = expected_events(before, after, outcome, actions, spec)
        got = events_of(step("jax", before, actions, **rules)[1], spec)
        assert list(expected) == list(spec.events)
        for name in spec.events:
            np.testing.assert_array_equal(got[name], expected[name], name)
    assert {name for name in spec.events if expected[name].any()} >= {"hit_left", "game_over"}


def test_a_step_has_the_events_of_its_frames():
    one, eight = envs.make_spec("pong", frameskip=1), envs.make_spec("pong", frameskip=8)
    before = synthesised(eight, 4096, seed=3)
    actions = np.random.default_rng(3).integers(0, 3, 4096).astype(np.int32)
    got = events_of(step("jax", before, actions)[1], eight)
    playing = np.ones(4096, bool)
    fired = {name: np.zeros(4096, bool) for name in one.events}
    fields = before
    for frame in range(8):
        _, outcome, fields = step("jax", fields, actions, frameskip=1)
        for name, event in events_of(outcome, one).items():
            if name != "stale_observation" or frame == 0:
                fired[name] |= event & playing
        playing &= abs(outcome.reward) != 1
    for name in one.events:
        np.testing.assert_array_equal(got[name], fired[name], name)
        assert got[name].any(), f"{name}: 0 hits"
    assert simulator("reference", 4096).capabilities.events is False
