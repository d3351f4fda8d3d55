"""The contract of Pong: parameters, bounds, identity; and what a player may hand in."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import envs
from envs.core import ActionError, EnvSpec, LifecycleError
from envs.pong.contract import Rules, make_spec, rules_of
from tests.envs.pong.tables import BOTH, OTHER_RULES, SPEC, noise, simulator, table


@cache
def batched(backend):
    return envs.make("pong", backend, 2, interface="batched")


def test_defaults_are_the_training_configuration():
    assert rules_of(SPEC) == Rules()
    assert (Rules().frameskip, Rules().max_score) == (8, 21)
    assert (Rules().min_paddle_y, Rules().max_paddle_y) == (-35, 605)
    assert SPEC.observation_space.shape == (8,)
    assert SPEC.action_space.n == 3


@pytest.mark.parametrize("rules", [{}, *OTHER_RULES.values()])
def test_spec_survives_json(rules):
    spec = envs.make_spec("pong", **rules)
    assert EnvSpec.from_json(spec.to_json()) == spec


def test_parameters_are_the_identity():
    assert envs.make_spec("pong", width=500) == SPEC
    assert envs.make_spec("pong", frameskip=np.int64(8)) == SPEC
    assert envs.make_spec("pong", frameskip=1) != SPEC
    assert envs.make_spec("pong", paddle_speed=8.5) != SPEC


def test_reals_are_those_of_a_float32():
    assert Rules(paddle_speed=7.3).paddle_speed == float(np.float32(7.3))
    assert envs.make_spec("pong", paddle_speed=7.3) == envs.make_spec(
        "pong", paddle_speed=np.float32(7.3)
    )


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (dict(frameskip=0), "frameskip must be an integer from 1"),
        (dict(frameskip=2.0), "frameskip must be an integer"),
        (dict(frameskip=True), "frameskip must be an integer"),
        (dict(frameskip="8"), "frameskip must be an integer"),
        (dict(frameskip=2**31), "frameskip must be an integer"),
        (dict(max_score=0), "max_score must be an integer"),
        (dict(max_score=2**24 + 1), "max_score must be an integer"),
        (dict(paddle_speed=0), "paddle_speed must be a number"),
        (dict(paddle_speed=-1), "paddle_speed must be a number"),
        (dict(paddle_speed="fast"), "paddle_speed must be a number.*'fast'"),
        (dict(ball_max_speed_y=float("nan")), "ball_max_speed_y must be a number"),
        (dict(width=float("inf")), "width must be a number"),
        (dict(height=None), "height must be a number"),
        (dict(ball_initial_speed_y=-1), "ball_initial_speed_y must be a number from 0"),
        (dict(ball_width=501), "ball_width=501.0 does not fit into width=500.0"),
        (dict(ball_height=641), "ball_height=641.0 does not fit into height=640.0"),
        (dict(paddle_height=641), "paddle_height=641.0 does not fit"),
    ],
)
def test_bad_parameters(parameters, message):
    with pytest.raises(ValueError, match=message):
        envs.make("pong", "jax", **parameters)


@pytest.mark.parametrize("name", ["continuous", "frame_skip", "seed"])
def test_unknown_parameters_are_named(name):
    with pytest.raises(envs.UnknownName, match=f"{name}.*; choose from frameskip, max_score"):
        envs.make("pong", "reference", **{name: 1})
    with pytest.raises(TypeError, match=f"unknown parameter {name}; choose from frameskip"):
        make_spec(**{name: 1})


@BOTH
@pytest.mark.parametrize(
    ("actions", "message"),
    [
        (np.array([0, 3]), "action 3 of row 1"),
        (np.array([-1, 0]), "action -1 of row 0"),
        (np.zeros(3, int), "shape"),
        (np.zeros((2, 1), int), "shape"),
        (np.zeros(2), "dtype float64"),
        ([0, None], "dtype object"),
    ],
)
def test_bad_actions(backend, actions, message):
    env = batched(backend)
    env.reset(0)
    with pytest.raises(ActionError, match=message):
        env.step(actions)
    env.step(np.zeros(2, np.int32))


@BOTH
def test_step_before_reset(backend):
    with envs.make("pong", backend, 2, interface="batched") as env:
        with pytest.raises(LifecycleError, match="step before reset"):
            env.step(np.zeros(2, np.int32))
        env.reset(0)
        env.step(np.zeros(2, np.int32))


@BOTH
@pytest.mark.parametrize("seed", [-1, 2**32, 1.5, "0", None])
def test_bad_seeds(backend, seed):
    with pytest.raises(ValueError, match="seed must be an integer"):
        batched(backend).reset(seed)
    batched(backend).reset(2**32 - 1)


@pytest.mark.parametrize("num_envs", [0, -1, 1.5, "4"])
def test_bad_num_envs(num_envs):
    with pytest.raises(ValueError, match="num_envs must be a positive integer"):
        envs.make("pong", "reference", num_envs)


@BOTH
def test_bad_noise(backend):
    sim = simulator(backend, 2)
    sim.set_state(table(2))
    step_noise, reset_noise = noise(SPEC, 0, 0, 2)
    actions = np.zeros(2, np.int32)
    for bad, message in (
        (np.array([0, 2], np.int32), "leaves its domain"),
        (np.array([-1, 0], np.int32), "leaves its domain"),
        (np.zeros(2, np.int64), "int64"),
        (np.zeros(1, np.int32), r"\(1,\)"),
    ):
        with pytest.raises(ValueError, match=message):
            sim.step(actions, SPEC.StepNoise(bad), reset_noise)
        with pytest.raises(ValueError, match=message):
            sim.reset(SPEC.ResetNoise(bad))
    with pytest.raises(ValueError, match="must be a StepNoise"):
        sim.step(actions, tuple(step_noise), reset_noise)
    sim.step(actions, step_noise, reset_noise)


@BOTH
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.pop("tick"), "missing: \\['tick'\\]"),
        (lambda f: f.update(win=np.zeros(2)), "unknown: \\['win'\\]"),
        (lambda f: f.update(tick=np.zeros(3, np.int32)), "tick has shape"),
        (lambda f: f.update(observation=np.zeros(2, np.float32)), "observation has shape"),
        (lambda f: f.update(score_l=np.zeros(2)), "score_l has dtype float64"),
    ],
)
def test_bad_states(backend, change, message):
    fields = table(2)
    change(fields)
    with pytest.raises(ValueError, match=message):
        simulator(backend, 2).set_state(fields)
