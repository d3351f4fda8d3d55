"""States: saved and restored exactly, read and set in canonical fields."""

from __future__ import annotations

from collections.abc import Iterator

from envs.simulator import Simulator
from verification.conformance.check import can_set_state, can_snapshot, check
from verification.conformance.compare import (
    closeness,
    decision_leaves,
    first_difference,
)
from verification.conformance.context import Context
from verification.conformance.play import Step, play


@check("simulator", needs=(can_snapshot,))
def snapshot_continues(context: Context) -> Iterator[str]:
    """Does a snapshot from mid-episode continue exactly, here and in a new instance?"""
    env, middle = context.env(), len(context.baseline.steps) // 2
    play(env, context.tape, middle)
    data = env.snapshot()
    if not isinstance(data, bytes):
        yield f"the snapshot is a {type(data).__name__}, not bytes"
        return
    problem = _continues(context, env, middle)
    if problem:
        yield f"taking a snapshot disturbs the play: {problem}"
    for slot in ("main", "other"):
        other = context.env(slot)
        decision = other.restore(data)
        before = context.baseline.steps[middle].before
        problem = first_difference(decision_leaves(before), decision_leaves(decision))
        problem = problem or _continues(context, other, middle)
        if problem:
            where = "the same instance" if slot == "main" else "another instance"
            yield f"restored in {where}: {problem}"


def _continues(context: Context, env: Simulator, start: int) -> str:
    """Whether the environment is where the recorded play was before step ``start``."""
    expected = context.baseline.steps[start]
    if context.sets_state and expected.state is not None:
        problem = first_difference(expected.state, env.get_state())
        if problem:
            return f"state field {problem}"
    steps = len(context.baseline.steps)
    played = play(env, context.tape, steps, start=start, decision=expected.before)
    return context.departure(played, start=start)


@check("simulator", needs=(can_snapshot,))
def damaged_snapshot_refused(context: Context) -> Iterator[str]:
    """Is a snapshot that is empty, cut off, or of another batch refused, with nothing changed?"""
    env, single = context.env(), context.env("single", 1)
    middle = len(context.baseline.steps) // 2
    play(env, context.tape, middle)
    play(single, context.tape.with_rows([0]), 1)
    data = env.snapshot()
    damaged = {
        "empty": b"",
        "cut off": data[: len(data) // 2],
        "of another batch size": single.snapshot(),
    }
    for name, bad in damaged.items():
        try:
            env.restore(bad)
        except ValueError:
            continue
        except Exception as error:
            yield f"a snapshot that is {name} raised {type(error).__name__}, not ValueError"
        else:
            yield f"a snapshot that is {name} was accepted"
    problem = _continues(context, env, middle)
    if problem:
        yield f"after refused snapshots the play departs: {problem}"


@check("simulator", needs=(can_set_state,))
def state_round_trip(context: Context) -> Iterator[str]:
    """Do set_state and get_state give back what was set, the decision there, and the next step?"""
    env, near = context.env("other"), closeness(context.spec)
    exact = all(field.tolerance.exact for field in context.spec.state.values())
    for count in context.sampled_counts(context.budget.synced_steps):
        recorded = context.baseline.steps[count]
        assert recorded.state is not None
        decision = env.set_state(recorded.state)
        problem = first_difference(recorded.state, env.get_state())
        if problem:
            yield f"set_state of the state before step {count} reads back differently: {problem}"
            return
        problem = first_difference(
            decision_leaves(recorded.before), decision_leaves(decision), None if exact else near
        )
        if problem:
            yield f"the decision at the state before step {count} is another one: {problem}"
            return
        problem = _goes_on(context, env, count, exact)
        if problem:
            yield f"set to the state before step {count}, {problem}"
            return


def _goes_on(context: Context, env: Simulator, start: int, exact: bool) -> str:
    """Ten steps where the canonical fields hold everything exactly, else one within rounding."""
    near = None if exact else closeness(context.spec)
    steps = min(start + (10 if exact else 1), len(context.baseline.steps))
    decision = context.baseline.steps[start].before
    played = play(env, context.tape, steps, start=start, decision=decision, states=True)
    if played.error is not None:
        return f"the next step raised {played.error!r}"
    for count, step in enumerate(played.steps, start):
        problem = _step_difference(context, context.baseline.steps[count], step, near)
        if problem:
            return f"step {count} goes otherwise: {problem}"
    return ""


def _step_difference(context: Context, recorded: Step, step: Step, near: object) -> str:
    expected, found = (s.leaves(context.capabilities) for s in (recorded, step))
    return first_difference(expected, found, near)  # type: ignore[arg-type]
