"""CartPole's reference and port driven from the same states, actions and noise."""

from __future__ import annotations

import numpy as np

import envs
from envs.cartpole import contract as c
from envs.noise import draw_reset_noise

SPEC = envs.make_spec("cartpole")
FLOATS = ("x", "x_dot", "theta", "theta_dot")
LIMITS = {"x": c.X_LIMIT, "theta": c.THETA_LIMIT}


def pair(num_envs):
    """The two simulators, reference first."""
    return tuple(
        envs.make("cartpole", backend, num_envs, interface="simulator")
        for backend in ("reference", "jax")
    )


def starts(num_envs, seed=0, step=0):
    """ResetNoise of all rows."""
    return draw_reset_noise(SPEC, seed, step, np.arange(num_envs, dtype=np.uint32))


def step_from(simulator, fields, actions):
    """Set the state and step once: (outcome, fields after it; those of a new start where it
    ended, so read ``final`` there)."""
    simulator.set_state(fields)
    _, outcome = simulator.step(actions, SPEC.StepNoise(), starts(simulator.num_envs, seed=99))
    return outcome, simulator.get_state()


def synthesised(count, seed):
    """States from the spec's domains: uniform, at the ends, at special values, and such that the
    next position lies within rounding of a limit."""
    rng = np.random.default_rng(seed)
    fields = {}
    for name, f in SPEC.state.items():
        drawn = rng.uniform(f.low, f.high, count)
        special = rng.choice([*f.special, f.low, f.high], count)
        fields[name] = np.where(rng.random(count) < 0.3, special, drawn).astype(f.dtype)
    for name, limit in LIMITS.items():
        speed = fields[f"{name}_dot"]
        edge = rng.choice([-1.0, 1.0], count) * limit - c.TIME_STEP * speed.astype(np.float64)
        at_edge = (rng.random(count) < 0.05) & (abs(edge) <= limit)
        fields[name] = np.where(at_edge, edge, fields[name]).astype(np.float32)
    return fields


def near_a_limit(final):
    """Rows ``[N]`` whose position or angle after the step is within the contract's tolerance of a
    limit: there float32 may fall on the other side."""
    x, theta = (final.observation[:, i].astype(np.float64) for i in (0, 2))
    rel = c.STEP_TOLERANCE.rel
    return np.logical_or.reduce(
        [
            abs(abs(v) - limit) <= rel * (1 + limit)
            for v, limit in ((x, c.X_LIMIT), (theta, c.THETA_LIMIT))
        ]
    )


def assert_same_step(expected, got, rows=slice(None)):
    """Outcomes of both agree: reward, ends and events exactly, the last observation within the
    contract's tolerance of each field."""
    for name in ("reward", "terminated", "truncated", "invalid", "events"):
        np.testing.assert_array_equal(
            getattr(got, name)[rows], getattr(expected, name)[rows], err_msg=name
        )
    assert_close(expected.final.observation, got.final.observation)


def assert_close(expected, got):
    """Field by field; a field's own size is its row."""
    allowed = c.STEP_TOLERANCE.rel * (1 + abs(expected.astype(np.float64)))
    gap = abs(expected.astype(np.float64) - got)
    assert (gap <= allowed).all(), f"worst gap / allowed: {(gap / allowed).max(axis=0)}"
