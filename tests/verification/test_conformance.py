"""The conformance runner: reports, reasons, budgets, and what it does with broken backends."""

import json

import pytest

from envs import UnknownName
from envs.core import Capabilities, MissingDependency
from tests.fixtures import continuous, image_state, walk
from tests.fixtures import faults_in_records as in_records
from tests.fixtures.walk import Walk, WalkBatched, make_spec
from verification.conformance import (
    CHECKS,
    Budget,
    Target,
    registered_targets,
    room_targets,
    run_conformance,
)


def target(kind, face="simulator"):
    return Target(kind.__name__, face, lambda num_envs: kind(make_spec(), num_envs))


def test_a_report_is_plain_data_that_says_what_was_seen():
    report = run_conformance(target(Walk))
    data = json.loads(json.dumps(report.to_json()))
    assert data["passed"] is True
    assert (data["target"], data["face"], data["environment"]) == ("Walk", "simulator", "walk 1")
    assert data["spec_digest"] == make_spec().digest
    assert [r["check"] for r in data["results"]] == [
        name for name, check in CHECKS.items() if "simulator" in check.faces
    ]
    assert data["coverage"]["steps"] == 48 * 6
    assert data["coverage"]["episodes"]["truncated"] > 0
    assert data["coverage"]["events"]["pushed"] > 100


def test_a_failing_report_names_the_check_its_question_and_the_problem():
    report = run_conformance(target(in_records.InfiniteReward))
    assert not report.passed
    assert [result.check for result in report.failures] == ["reward"]
    text = report.text()
    assert "Walk" not in text.splitlines()[0]
    assert "InfiniteReward (simulator, walk 1)" in text
    assert "fail           reward: Is every reward finite?\n      - the reward of row" in text
    assert report.to_json()["passed"] is False


def test_problems_are_listed_up_to_a_few():
    (result,) = run_conformance(target(in_records.WideObservation), only=["structure"]).results
    assert len(result.problems) == 5


def test_a_backend_that_breaks_off_is_not_judged_on_the_rest():
    report = run_conformance(target(in_records.Crashes))
    assert report.status("plays_on") == "fail"
    assert report.status("structure") == "pass"
    problems = {result.check: result.problems for result in report.failures}
    assert problems["same_seed_repeats"] == (
        "can't be judged: step 6 of legal play raised IndexError: seven is too many",
    )


class NothingWorks(Walk):
    def _reset(self, reset_noise):
        raise RuntimeError("no reset today")


def test_a_backend_that_cannot_reset_gives_a_report():
    report = run_conformance(target(NothingWorks))
    assert not report.passed
    assert report.status("plays_on") == "fail"
    assert "no reset today" in report.text()


CAPABILITIES = {
    "snapshot": ("simulator", {"snapshot_continues", "damaged_snapshot_refused"}),
    "set_state": ("simulator", {"state_round_trip"}),
    "independent_rows": (
        "simulator",
        {
            "instances_do_not_interfere",
            "rows_are_isolated",
            "batch_equals_singles",
            "permuted_batch",
        },
    ),
}


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_what_a_backend_declares_it_cannot_do_is_not_applicable_with_the_reason(capability):
    face, checks = CAPABILITIES[capability]
    kind = type("Less", (Walk,), {"capabilities": Capabilities(**{capability: False})})
    report = run_conformance(target(kind, face))
    assert report.passed, report.text()
    reasons = {r.check: r.reason for r in report.results if r.status == "not_applicable"}
    assert {c for c, r in reasons.items() if f"declares {capability}=False" in r} == checks


def test_a_backend_without_events_must_not_give_any():
    kind = type("Silent", (Walk,), {"capabilities": Capabilities(events=False)})
    (result,) = run_conformance(target(kind), only=["structure"]).results
    assert "events should be None" in result.problems[0]
    assert run_conformance(target(kind), only=["structure"]).coverage["events"] is None


class NoFinalOnTermination(in_records.Finals):
    """As a reference that resets inside: the final is right for truncations only."""

    capabilities = Capabilities(final_on_termination=False)

    def final(self, before, after, outcome):
        observation = after.observation.copy()
        observation[outcome.truncated] = outcome.final.observation[outcome.truncated]
        return after._replace(observation=observation)


def test_finals_of_terminations_are_not_looked_at_where_the_backend_has_none():
    report = run_conformance(target(NoFinalOnTermination))
    assert report.passed, report.text()
    assert report.status("final_before_restart") == "pass"


def test_a_counter_that_nobody_can_set_leaves_an_unreached_limit_open():
    def make(num_envs):
        return Distant(make_spec(max_episode_steps=9000), num_envs)

    class Distant(Walk):
        capabilities = Capabilities(set_state=False)

    report = run_conformance(Target("distant", "simulator", make), only=["episode_limit"])
    (result,) = report.results
    assert result.status == "not_applicable"
    assert "no episode reached the limit of 9000 steps" in result.reason


def test_rooms_and_the_registry_are_turned_into_targets():
    assert {str(t) for t in registered_targets("cartpole")} == {
        "cartpole/reference/batched",
        "cartpole/reference/simulator",
        "cartpole/jax/functional",
        "cartpole/jax/batched",
        "cartpole/jax/simulator",
    }
    assert {str(t) for t in room_targets(image_state)} == {
        f"image_state/{backend}/{face}"
        for backend in ("jax", "jax_cond")
        for face in ("functional", "batched", "simulator")
    }
    short = room_targets(walk, max_episode_steps=3)[0]
    assert short.make(2).spec.max_episode_steps == 3
    dicts = room_targets(continuous, dict_observation=True)[0]
    assert dicts.make(2).spec.parameters["dict_observation"]
    everything = {t.name for t in registered_targets()}
    assert {"cartpole/reference", "cartpole/jax", "pong/reference", "pong/jax"} <= everything


def test_a_missing_dependency_is_passed_on():
    def make(num_envs):
        raise MissingDependency("build it first")

    with pytest.raises(MissingDependency, match="build it first"):
        run_conformance(Target("missing", "simulator", make))


def test_every_environment_is_closed_in_the_end():
    made = []

    def make(num_envs):
        made.append(WalkBatched(make_spec(), num_envs))
        return made[-1]

    run_conformance(Target("walk", "batched", make))
    assert len(made) > 1
    assert all(env._closed for env in made)


BAD_ARGUMENTS = {
    "face": (lambda: Target("x", "gymnasium", None), ValueError, "unknown face 'gymnasium'"),
    "rows": (lambda: Budget(rows=3), ValueError, "rows must be at least 4, got 3"),
    "steps": (lambda: Budget(steps=0), ValueError, "steps must be positive, got 0"),
    "check": (
        lambda: run_conformance(target(Walk), only=["structure", "beauty"]),
        ValueError,
        r"unknown checks \['beauty'\]; choose from plays_on, structure",
    ),
    "environment": (lambda: registered_targets("tetris"), UnknownName, "unknown environment"),
}


@pytest.mark.parametrize("name", BAD_ARGUMENTS)
def test_bad_arguments_are_named(name):
    call, kind, message = BAD_ARGUMENTS[name]
    with pytest.raises(kind, match=message):
        call()
