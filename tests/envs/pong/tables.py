"""Hand-made and synthesised states of Pong, and one step from them on either backend."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import envs
from envs.pong.contract import rules_of

BOTH = pytest.mark.parametrize("backend", ["reference", "jax"])
SPEC = envs.make_spec("pong")
# Rules that reach what the default ones do not: fractions, several events in one step, short games.
OTHER_RULES = {
    "short games": dict(max_score=3, paddle_height=140, paddle_speed=5.5, ball_width=16),
    "fractions": dict(
        frameskip=5,
        max_score=4,
        width=333.3,
        height=411.7,
        paddle_height=61.1,
        ball_width=13.7,
        ball_height=17.9,
        paddle_speed=7.3,
        ball_initial_speed_x=9.7,
        ball_initial_speed_y=1.3,
        ball_max_speed_y=11.1,
        ball_speed_y_increment=2.7,
    ),
    "many events a step": dict(
        frameskip=40, width=120, height=90, paddle_height=40, ball_width=16, ball_height=16
    ),
    "flat and fast": dict(
        frameskip=3,
        ball_initial_speed_y=0,
        ball_initial_speed_x=61.5,
        ball_speed_y_increment=0.01,
        ball_max_speed_y=0.015,
        max_score=1,
    ),
}


@cache
def simulator(backend, num_envs, **parameters):
    """One simulator per kind for the whole run: each port is compiled once."""
    return envs.make("pong", backend, num_envs, interface="simulator", **parameters)


def table(num_envs=1, spec=SPEC, **changes):
    """Canonical fields of a new round, the ball flying flat, with some of them changed."""
    rules = rules_of(spec)
    values = dict(
        paddle_yl=rules.start_paddle_y,
        paddle_yr=rules.start_paddle_y,
        ball_x=rules.start_ball_x,
        ball_y=rules.start_ball_y,
        ball_vx=rules.ball_initial_speed_x,
        ball_vy=0.0,
        score_l=0,
        score_r=0,
        tick=0,
        observation=np.full(8, 0.125),
    )
    assert set(changes) <= set(values)
    values |= changes
    return {
        name: np.broadcast_to(values[name], (num_envs, *f.shape)).astype(f.dtype)
        for name, f in spec.state.items()
    }


def noise(spec, step, reset, num_envs):
    serves = (np.broadcast_to(np.int32(serve), num_envs).copy() for serve in (step, reset))
    return spec.StepNoise(next(serves)), spec.ResetNoise(next(serves))


def step(backend, fields, action=0, serve=0, new_game=0, **parameters):
    """One step from ``fields``: (decision, outcome, fields afterwards)."""
    count = len(fields["tick"])
    sim = simulator(backend, count, **parameters)
    sim.set_state(fields)
    actions = np.broadcast_to(np.int32(action), count).copy()
    decision, outcome = sim.step(actions, *noise(sim.spec, serve, new_game, count))
    return decision, outcome, sim.get_state()


def synthesised(spec, count, seed):
    """States from the spec's domains: uniform, or a value at which a rule has an edge."""
    rng = np.random.default_rng(seed)
    fields = {}
    for name, f in spec.state.items():
        if f.dtype == "int32":
            drawn = rng.integers(f.low, f.high + 1, (count, *f.shape))
        else:
            drawn = rng.uniform(f.low, f.high, (count, *f.shape))
        if rng.random() < 0.3 and f.dtype == "float32":
            drawn = np.clip(np.round(drawn), f.low, f.high)
        special = rng.choice([*f.special, f.low, f.high], (count, *f.shape))
        pick = rng.random((count, *f.shape)) < rng.choice([0.1, 0.5, 0.9])
        fields[name] = np.where(pick, special, drawn).astype(f.dtype)
    return fields


def bits(array):
    """For comparisons in which -0 is not 0."""
    array = np.asarray(array)
    return array.view(np.uint32) if array.dtype == np.float32 else array
