"""Rows of a batch: different from each other, and none of them knows of the others."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from envs.simulator import Simulator
from verification.conformance.check import NUMPY_FACES, check, has_independent_rows
from verification.conformance.compare import (
    Leaves,
    closeness,
    decision_leaves,
    first_difference,
    take,
)
from verification.conformance.context import Context
from verification.conformance.play import Play, Tape, play

CHANGED = 2  # the row that is changed while the others must not notice


@check(*NUMPY_FACES)
def rows_differ(context: Context) -> Iterator[str]:
    """Do rows with equal actions and different draws live different lives?"""
    rows = context.budget.rows
    tape = dataclasses.replace(context.tape, action_rows=np.zeros(rows, np.uint32))
    played = play(context.env(), tape, len(context.baseline.steps))
    if played.error is not None:
        raise played.error
    parts = [decision_leaves(played.first)]
    parts += [step.leaves(context.capabilities) for step in played.steps]
    lives = {_bytes_of_row(parts, row) for row in range(rows)}
    if len(lives) <= rows // 2:
        steps = len(played.steps)
        yield f"in {steps} steps, {rows} rows show only {len(lives)} different lives"


def _bytes_of_row(parts: Sequence[Leaves], row: int) -> bytes:
    return b"".join(leaf[row].tobytes() for leaves in parts for leaf in leaves.values())


@check(*NUMPY_FACES, needs=(has_independent_rows,))
def rows_are_isolated(context: Context) -> Iterator[str]:
    """Does a row's life stay the same, to the bit, when another row's draws and actions change?"""
    stranger = context.tape.rows.copy()
    stranger[CHANGED] += 1000
    tape = context.tape.with_rows(stranger)
    played = play(context.env(), tape, len(context.baseline.steps))
    if played.error is not None:
        raise played.error
    for count, (expected, found) in enumerate(_pairs(context, played), -1):
        problem = first_difference(_without(expected, CHANGED), _without(found, CHANGED))
        if problem:
            yield f"a change in row {CHANGED} reaches another one in step {count}: {problem}"
            return


def _pairs(context: Context, played: Play) -> Iterator[tuple[Leaves, Leaves]]:
    """Recorded and played, of the reset and of every step."""
    yield decision_leaves(context.baseline.first), decision_leaves(played.first)
    for count, step in enumerate(played.steps):
        yield context.expected(count), step.leaves(context.capabilities)


def _without(leaves: Leaves, row: int) -> Leaves:
    """The same leaves with zeros in one row."""
    kept = {name: leaf.copy() for name, leaf in leaves.items()}
    for leaf in kept.values():
        leaf[row] = 0
    return kept


@check("simulator", needs=(has_independent_rows,))
def batch_equals_singles(context: Context) -> Iterator[str]:
    """Is a batch of n what n single environments are?"""
    single = context.env("single", 1)
    for row in range(min(3, context.budget.rows)):
        problem = _repeats(context, single, [row])
        if problem:
            yield f"row {row} alone departs {problem}"


@check("simulator", needs=(has_independent_rows,))
def permuted_batch(context: Context) -> Iterator[str]:
    """Does permuting states, draws and actions permute the results?"""
    order = np.roll(np.arange(context.budget.rows), 1)  # nobody stays in place
    problem = _repeats(context, context.env("other"), order.tolist())
    if problem:
        yield f"with the rows in the order {order.tolist()}, the play departs {problem}"


def _repeats(context: Context, env: Simulator, rows: list[int]) -> str:
    """Whether these rows of the recorded play come again when they are a batch of their own.

    Played on from the reset, everything must be equal until the first step that differs by a few
    roundings (another batch size is another program); then from equal states, step by step.
    """
    tape = context.tape.with_rows(context.tape.rows[rows])
    return _free_run(context, env, tape, rows) or _synced_steps(context, env, tape, rows)


def _free_run(context: Context, env: Simulator, tape: Tape, rows: list[int]) -> str:
    near = closeness(context.spec)
    played = play(env, tape, len(context.baseline.steps))
    for count, (expected, found) in enumerate(_pairs(context, played), -1):
        expected = take(expected, rows)
        if first_difference(expected, found):
            problem = first_difference(expected, found, near)
            return f"in step {count}: {problem}" if problem else ""
    return "" if played.error is None else f"by raising {played.error!r}"


def _synced_steps(context: Context, env: Simulator, tape: Tape, rows: list[int]) -> str:
    if not context.sets_state:
        return ""
    near = closeness(context.spec)
    for count in context.sampled_counts(context.budget.synced_steps):
        recorded = context.baseline.steps[count]
        assert recorded.state is not None
        decision = env.set_state(take(recorded.state, rows))
        problem = first_difference(
            take(decision_leaves(recorded.before), rows), decision_leaves(decision), near
        )
        if problem:
            return f"in the decision at the state of step {count}: {problem}"
        noise = tape.step_noise(count), tape.reset_noise(count + 1)
        results = env.step(recorded.actions[rows], *noise)
        step = dataclasses.replace(recorded, decision=results[0], outcome=results[1])
        problem = first_difference(
            take(context.expected(count), rows), step.leaves(context.capabilities), near
        )
        if problem:
            return f"in step {count} from an equal state: {problem}"
    return ""
