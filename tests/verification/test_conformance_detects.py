"""Every planted fault is found by the check that is there for it, and the sound original passes."""

import functools
import re

import numpy as np
import pytest

from envs.adapters.vectorize import vectorize
from envs.cartpole.contract import make_spec as cartpole_spec
from envs.cartpole.jax_port import CartPole
from tests.fixtures import faults_in_play as in_play
from tests.fixtures import faults_in_records as in_records
from tests.fixtures import faults_jax, turn_based
from tests.fixtures.walk import Walk, WalkBatched, make_spec
from verification.conformance import Target, run_conformance

# check, what its message must say
WALK = {
    in_records.WideObservation: ("structure", "observation is float64, expected float32"),
    in_records.OneFeatureLess: ("structure", r"observation has shape \(6, 1\), expected \(6, 2\)"),
    in_records.ListOfObservations: ("structure", "observation is a list, not a NumPy array"),
    in_records.UnaskedLegalActions: ("structure", "legal_actions should be None"),
    in_records.WideRestart: ("structure", "after an auto-reset .* is float64"),
    in_records.WideReward: ("structure", "reward is float64"),
    in_records.NarrowMetric: ("structure", "metric length is int64, expected int32"),
    in_records.MetricLost: ("structure", r"metrics \['length'\], declared"),
    in_records.EventLost: ("structure", r"events has shape \(6, 3\), expected \(6, 4\)"),
    in_records.Outside: ("observation_in_space", r"observation .* outside Box"),
    in_records.NotANumber: ("observation_in_space", "is nan at"),
    in_records.InfiniteReward: ("reward", "not finite"),
    in_records.MetricNotANumber: ("metrics_finite", "metric distance"),
    in_records.BothFlags: ("terminated_or_truncated", "is terminated and truncated"),
    in_records.LegalFlaggedInvalid: ("legal_play_is_valid", "flagged as invalid"),
    in_records.NobodyActs: ("legal_actions", "nobody acts in some row"),
    in_records.Crashes: ("plays_on", "step 6 .* IndexError: seven is too many"),
    in_records.LateLimit: ("episode_limit", r"after \[13\] steps, the limit is 12"),
    in_records.EarlyLimit: ("episode_limit", r"after \[11\] steps, the limit is 12"),
    in_records.LimitForgotten: ("episode_limit", "not ended at the limit of 12 steps"),
    in_records.EarlyLimitWithFreeCounter: ("episode_limit", r"after \[10\] steps, the limit is 12"),
    in_records.FinalAfterRestart: ("final_before_restart", "wrong side of the restart"),
    in_records.FinalBeforeStep: ("final_before_restart", "observation of before the last step"),
    in_records.FinalHalfRestarted: ("final_before_restart", "other draws for the restart change"),
    in_records.FinalLost: ("final_present", "final is None"),
    in_records.RestartUnseen: ("restart_is_a_reset", "among the ended rows: observation"),
    in_records.RestartKeepsSteps: ("restart_is_a_reset", "among the ended rows: observation"),
    in_play.PushIgnored: ("noise_sites_used", "step noise 'push' changed nothing"),
    in_play.StartIgnored: ("noise_sites_used", "reset noise 'start' changed nothing"),
    in_play.RowsEqual: ("rows_differ", "only 1 different lives"),
    in_play.RowsCoupled: ("rows_are_isolated", "a change in row 2 reaches another one"),
    in_play.RewardShared: ("rows_are_isolated", "reward in row"),
    in_play.FirstRowSpecial: ("permuted_batch", "the play departs"),
    in_play.LargeBatchSlow: ("batch_equals_singles", "row 0 alone departs"),
    in_play.SharedClock: ("instances_do_not_interfere", "beside another instance"),
    in_play.PastRemembered: ("reset_forgets_the_past", "in step .*, reward"),
    in_play.StaleReset: ("reset_forgets_the_past", "after reset, observation"),
    in_play.InstancesDiffer: ("same_seed_repeats", "another instance departs"),
    in_play.BuffersReused: ("arrays_belong_to_the_caller", "at step 0 have changed since"),
    in_play.ObservationIsTheState: ("arrays_belong_to_the_caller", "writing into an observation"),
    in_play.SnapshotForgetsSteps: ("snapshot_continues", "same instance: .*|state field steps"),
    in_play.SnapshotIsSilent: ("snapshot_continues", "restored in the same instance: observation"),
    in_play.SnapshotDisturbs: ("snapshot_continues", "taking a snapshot disturbs the play"),
    in_play.SnapshotAcceptsAnything: ("damaged_snapshot_refused", "is cut off was accepted"),
    in_play.SnapshotRefusesAfterTheFact: ("damaged_snapshot_refused", "the play departs"),
    in_play.StepsNotSet: ("state_round_trip", "reads back differently: steps"),
    in_play.HiddenMomentum: ("state_round_trip", "goes otherwise: reward"),
    in_play.DecisionRemembers: ("state_round_trip", "is another one: observation"),
    in_play.ActionsUnchecked: ("bad_actions_refused", "were accepted"),
    in_play.StepsBeforeItChecks: ("bad_actions_refused", "after .* refused actions"),
    in_play.OtherError: ("bad_actions_refused", "raised IndexError"),
    in_play.LivesOn: ("lifecycle", "step after close was accepted"),
    in_play.NeedsNoReset: ("lifecycle", "step before reset was accepted"),
    in_play.SeedIgnored: ("different_seeds_differ", "give the same play"),
    in_play.SeedRemembered: ("reset_forgets_the_past", "departs after reset"),
    in_play.RowSeedsEqual: ("rows_differ", "only 2 different lives"),
    in_play.SeedsUnchecked: ("lifecycle", "seed -1 was accepted"),
    in_play.FinalAfterRestartBatched: ("final_before_restart", "wrong side of the restart"),
    in_play.RestartUnseenBatched: ("final_before_restart", "wrong side of the restart"),
    in_play.RowsCoupledBatched: ("rows_are_isolated", "a change in row 2 reaches another one"),
    in_play.SharedClockBatched: ("instances_do_not_interfere", "beside another instance"),
    in_play.CopyOff: ("arrays_belong_to_the_caller", "have changed since"),
}


def walk_target(kind):
    face = "simulator" if issubclass(kind, Walk) else "batched"
    return Target(kind.__name__, face, lambda num_envs: kind(make_spec(), num_envs))


@functools.cache
def sound_walk(face):
    return run_conformance(walk_target({"simulator": Walk, "batched": WalkBatched}[face]))


def found_by(target, check):
    """The problems that one check finds."""
    (result,) = run_conformance(target, only=[check]).results
    assert result.status == "fail", result
    return "\n".join(result.problems)


@pytest.mark.parametrize("kind", WALK, ids=lambda kind: kind.__name__)
def test_a_fault_in_the_walk_is_found(kind):
    check, message = WALK[kind]
    target = walk_target(kind)
    assert sound_walk(target.face).status(check) == "pass"
    assert re.search(message, found_by(target, check))


NIM = {
    ("NothingLegal", "simulator"): ("legal_actions", "an acting seat has no legal action"),
    ("IdleSeatsFree", "simulator"): ("legal_actions", "isn't acting has more than action 0"),
    ("FieldForgotten", "simulator"): ("state_round_trip", "reads back differently: seat"),
    ("FieldForgotten", "functional"): ("fields_round_trip", "before step 0: acting"),
    ("IdleActionUsed", "functional"): ("idle_seats_ignored_in_jit", "reward in row"),
    ("IdleActionFlagged", "functional"): ("idle_seats_ignored_in_jit", "invalid in row"),
    ("InvalidUnflagged", "functional"): ("invalid_actions_flagged", r"flagged are \[\]"),
    ("InvalidClipped", "functional"): ("invalid_actions_flagged", "the lowest legal one"),
    ("WideAfterStep", "functional"): ("carry_keeps_its_form", "int32.* at reset, float32"),
    ("CountsCalls", "functional"): ("jit_equals_eager", "step 0: reward"),
    ("TracedOnce", "functional"): ("scan_equals_loop", "after step 0: observation"),
    ("Impure", "functional"): ("step_is_pure", "step 0 twice: reward"),
}


def nim_target(name, face):
    def make(num_envs):
        kind = getattr(faults_jax, name)
        if issubclass(kind, turn_based.WindyNim):
            env = vectorize(kind(turn_based.make_spec()), num_envs)
        else:
            env = kind(num_envs)
        return faults_jax.FACES[face](env)

    return Target(name, face, make)


@functools.cache
def sound_nim(face):
    return run_conformance(nim_target("WindyNim", face))


@pytest.mark.parametrize(("name", "face"), NIM)
def test_a_fault_in_functional_nim_is_found(name, face):
    check, message = NIM[name, face]
    assert sound_nim(face).status(check) == "pass"
    assert re.search(message, found_by(nim_target(name, face), check))


def test_an_idle_seats_action_that_a_numpy_backend_uses_is_found():
    class Resting(Walk):
        """Every third step of an episode is a rest, in which the action must not matter."""

        def observe(self):
            decision = super().observe()
            return decision._replace(acting=self.steps % 3 != 2)

        def advance(self, actions, step_noise):
            resting = self.steps % 3 == 2
            return super().advance(np.where(resting, 1, actions), step_noise)

    class Restless(Resting):
        """Clips actions by itself, and forgets that some don't count."""

        def advance(self, actions, step_noise):
            return Walk.advance(self, actions, step_noise)

        def step(self, actions, step_noise, reset_noise):
            self._decision, outcome = self._step(np.clip(actions, 0, 2), step_noise, reset_noise)
            return self._decision, outcome

    sound = run_conformance(walk_target(Resting), only=["idle_seats_ignored", "legal_actions"])
    assert sound.status("idle_seats_ignored") == "pass"
    assert "departs in step" in found_by(walk_target(Restless), "idle_seats_ignored")


# --- CartPole -----------------------------------------------------------------------------------


class LooseLimit(CartPole):
    """The limit of 500 steps is noticed one step late."""

    def advance(self, state, action, step_noise):
        state, outcome = super().advance(state, action, step_noise)
        return state, outcome._replace(truncated=outcome.truncated & (state.steps > 500))


def test_a_limit_that_no_random_play_reaches_is_tested_from_set_states():
    def target(kind):
        def make(num_envs):
            return faults_jax.FACES["simulator"](vectorize(kind(cartpole_spec()), num_envs))

        return Target(kind.__name__, "simulator", make)

    report = run_conformance(target(CartPole), only=["episode_limit"])
    assert report.status("episode_limit") == "pass"
    assert report.coverage["episodes"]["longest"] < 400
    assert "not ended at the limit of 500" in found_by(target(LooseLimit), "episode_limit")
