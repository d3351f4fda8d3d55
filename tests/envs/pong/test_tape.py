"""The tape build as a simulator: its state is set, read, saved and restored exactly."""

from __future__ import annotations

import numpy as np
import pytest

import envs
from tests.envs.pong.tables import BOTH, SPEC, bits, noise, simulator, synthesised, table


def drive(sim, steps, seed):
    """Everything that a stretch of random play shows, as bytes."""
    rng = np.random.default_rng(seed)
    shown = []
    for _ in range(steps):
        draws = rng.integers(0, 2, (2, sim.num_envs)).astype(np.int32)
        actions = rng.integers(0, 3, sim.num_envs).astype(np.int32)
        decision, outcome = sim.step(actions, *noise(sim.spec, *draws, sim.num_envs))
        shown.append(decision.observation.tobytes() + outcome.reward.tobytes())
    return shown


@BOTH
def test_state_round_trip(backend):
    sim = simulator(backend, 4096)
    fields = synthesised(SPEC, 4096, seed=11)
    decision = sim.set_state(fields)
    np.testing.assert_array_equal(bits(decision.observation), bits(fields["observation"]))
    for name, values in sim.get_state().items():
        np.testing.assert_array_equal(bits(values), bits(fields[name]), name)


@BOTH
def test_state_is_all_there_is(backend):
    """Continuing from the canonical fields is continuing."""
    sim = simulator(backend, 64)
    sim.reset(noise(SPEC, 0, 1, 64)[1])
    drive(sim, 150, seed=1)
    fields = sim.get_state()
    ahead = drive(sim, 100, seed=2)
    sim.reset(noise(SPEC, 0, 0, 64)[1])
    sim.set_state(fields)
    assert drive(sim, 100, seed=2) == ahead


@BOTH
def test_snapshot_continues_exactly(backend):
    sim = simulator(backend, 64)
    sim.reset(noise(SPEC, 0, 1, 64)[1])
    drive(sim, 150, seed=1)
    snapshot = sim.snapshot()
    ahead = drive(sim, 100, seed=2)
    sim.reset(noise(SPEC, 0, 0, 64)[1])
    sim.restore(snapshot)
    assert sim.snapshot() == snapshot
    assert drive(sim, 100, seed=2) == ahead


def test_snapshot_keeps_the_log_as_well():
    """The C struct's log is part of it, though no rule reads it."""
    sim = envs.make("pong", "reference", 8, interface="simulator", max_score=1)
    sim.reset(noise(sim.spec, 0, 0, 8)[1])
    drive(sim, 60, seed=1)
    late = sim.snapshot()
    drive(sim, 60, seed=2)
    assert sim.snapshot() != late
    sim.restore(late)
    assert sim.snapshot() == late


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: b"no snapshot",
        lambda data: data[:-1],
        lambda data: data + b"0",
        lambda data: data[:100] + bytes([data[100] ^ 1]) + data[101:],
    ],
)
def test_damaged_snapshots(damage):
    sim = simulator("reference", 8)
    sim.set_state(table(8))
    with pytest.raises(ValueError, match="snapshot is damaged"):
        sim.restore(damage(sim.snapshot()))


@pytest.mark.parametrize("data", [None, 5, "text"])
def test_a_snapshot_that_is_no_bytes(data):
    with pytest.raises(ValueError, match=f"a snapshot is bytes, not {type(data).__name__}"):
        simulator("reference", 8).restore(data)


def test_snapshots_of_another_kind():
    sim = simulator("reference", 8)
    sim.set_state(table(8))
    for other in (simulator("reference", 7), simulator("reference", 8, frameskip=1)):
        with pytest.raises(ValueError, match="of another spec, backend or num_envs"):
            other.restore(sim.snapshot())


def test_rows_are_independent():
    """A row's play does not depend on its neighbours, as it does in the plain build."""
    rng = np.random.default_rng(3)
    draws = rng.integers(0, 2, (200, 16)).astype(np.int32)
    actions = rng.integers(0, 3, (200, 16)).astype(np.int32)
    order = rng.permutation(16)

    def rewards(rows):
        sim = simulator("reference", len(rows))
        sim.reset(SPEC.ResetNoise(draws[0, rows]))
        steps = (
            sim.step(a[rows], SPEC.StepNoise(d[rows]), SPEC.ResetNoise(d[rows]))
            for a, d in zip(actions, draws, strict=True)
        )
        return np.array([outcome.reward for _, outcome in steps])

    whole = rewards(np.arange(16))
    assert (abs(whole) == 1).sum() > 100
    np.testing.assert_array_equal(rewards(order), whole[:, order])
    np.testing.assert_array_equal(rewards(np.array([5])), whole[:, [5]])


def test_results_belong_to_the_caller():
    sim = simulator("reference", 4)
    first = sim.reset(noise(SPEC, 0, 0, 4)[1])
    kept = first.observation.copy()
    first.observation[:] = 9
    fields = sim.get_state()
    np.testing.assert_array_equal(fields["observation"], kept)
    fields["paddle_yr"][:] = 9
    decision, outcome = sim.step(np.ones(4, np.int32), *noise(SPEC, 0, 0, 4))
    assert (sim.get_state()["paddle_yr"] == 285 + 64).all()
    reward = outcome.reward.copy()
    sim.step(np.ones(4, np.int32), *noise(SPEC, 0, 0, 4))
    np.testing.assert_array_equal(outcome.reward, reward)
    assert decision.observation.flags.writeable


def test_taps_count_draws():
    sim = simulator("reference", 3)
    sim.reset(noise(SPEC, 0, 0, 3)[1])
    assert sim.taps()["draws"].tolist() == [1, 1, 1]
    fields = table(3, ball_y=0.0)
    fields["ball_x"] = np.array([100, 460, 460], np.float32)
    fields["score_l"] = np.array([0, 3, 20], np.int32)
    sim.set_state(fields)
    _, outcome = sim.step(np.zeros(3, np.int32), *noise(SPEC, 0, 0, 3))
    assert outcome.terminated.tolist() == [False, False, True]
    assert sim.taps()["draws"].tolist() == [0, 1, 1]
