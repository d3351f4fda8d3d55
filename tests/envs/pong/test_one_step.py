"""One step from synthesised states: the JAX port against the C code, bit for bit."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax import lax

import envs
from envs.pong.jax_port import divide
from tests.envs.pong.tables import OTHER_RULES, bits, noise, simulator, step, synthesised

RULES = {"one frame": dict(frameskip=1), "default": {}, **OTHER_RULES}


@pytest.mark.parametrize("name", RULES)
def test_synthesised_states(name):
    parameters, count = RULES[name], 4096
    spec = envs.make_spec("pong", **parameters)
    points = ends = 0
    for seed in range(6):
        rng = np.random.default_rng(seed)
        fields = synthesised(spec, count, seed)
        choices = [rng.integers(0, n, count).astype(np.int32) for n in (3, 2, 2)]
        (seen_c, out_c, after_c), (seen_j, out_j, after_j) = (
            step(backend, fields, *choices, **parameters) for backend in ("reference", "jax")
        )
        for field in spec.state:
            np.testing.assert_array_equal(bits(after_j[field]), bits(after_c[field]), field)
        np.testing.assert_array_equal(bits(seen_j.observation), bits(seen_c.observation))
        np.testing.assert_array_equal(bits(out_j.reward), bits(out_c.reward))
        np.testing.assert_array_equal(out_j.terminated, out_c.terminated)
        ended = out_c.terminated
        np.testing.assert_array_equal(
            bits(out_j.final.observation)[ended], bits(out_c.final.observation)[ended]
        )
        for metric in spec.metrics:
            np.testing.assert_array_equal(
                out_j.metrics[metric][ended], out_c.metrics[metric][ended]
            )
        points += int((abs(out_c.reward) == 1).sum())
        ends += int(ended.sum())
    assert points > 100
    assert ends > 30


@pytest.mark.parametrize("backend", ["reference", "jax"])
def test_observations_stay_in_their_space_from_any_state(backend):
    for parameters in (dict(frameskip=1), *OTHER_RULES.values()):
        space = envs.make_spec("pong", **parameters).observation_space
        sim = simulator(backend, 4096, **parameters)
        sim.set_state(synthesised(sim.spec, 4096, seed=8))
        rng = np.random.default_rng(8)
        for _ in range(20):
            actions = rng.integers(0, 3, 4096).astype(np.int32)
            decision, _ = sim.step(actions, *noise(sim.spec, 0, 1, 4096))
            assert (decision.observation >= space.low).all()
            assert (decision.observation <= space.high).all()


@pytest.mark.parametrize("divisor", [640.0, 500.0, 26.0, 20.0, 333.3])
def test_divisions_are_those_of_the_c_code(divisor):
    values = (np.arange(-4096, 4096, dtype=np.float32) / np.float32(4)).reshape(2, -1)
    expected = values / np.float32(divisor)

    def rows(block):
        return jax.vmap(lambda value: divide(value, np.float32(divisor)))(block)

    def scanned(blocks):
        return lax.scan(lambda carry, block: (carry, rows(block)), 0, blocks)[1]

    np.testing.assert_array_equal(bits(jax.jit(scanned)(values)), bits(expected))
    naive = jax.jit(lambda x: x / np.float32(divisor))(values)
    assert (naive != expected).any(), "XLA no longer rewrites; divide() may be a plain division"
