"""How episodes end: the final decision, the restart, the limit."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from envs.core import Decision
from verification.conformance.check import (
    NUMPY_FACES,
    NotApplicableError,
    check,
    gives_final,
)
from verification.conformance.checks.structure import decision_problems
from verification.conformance.compare import (
    Leaves,
    closeness,
    decision_leaves,
    final_rows,
    first_difference,
    take,
)
from verification.conformance.context import SEED, Context, Ending
from verification.conformance.play import Step, play, step_once

_CHANCE = 1e-3  # of a coincidence, below which it is called a fault


@check(*NUMPY_FACES, needs=(gives_final,))
def final_present(context: Context) -> Iterator[str]:
    """Does every ended episode come with its final decision?"""
    for ending in context.require_endings():
        final = ending.step.outcome.final
        if final is None:
            if final_rows(ending.step.outcome, context.capabilities).any():
                yield f"an episode ended in step {ending.count}, and final is None"
            continue
        where = f"final of step {ending.count}"
        yield from decision_problems(context.spec, final, context.budget.rows, where)


@check(*NUMPY_FACES, needs=(gives_final,))
def final_before_restart(context: Context) -> Iterator[str]:
    """Is the final decision of after the step and of before the restart?"""
    finals = [
        (ending, row)
        for ending in context.require_endings()
        for row in np.flatnonzero(final_rows(ending.step.outcome, context.capabilities)).tolist()
        if ending.step.outcome.final is not None
    ]
    if not finals:
        raise NotApplicableError("no ended episode has a specified final")
    next_too = all(_same(e.step.outcome.final, e.step.decision, row) for e, row in finals)
    before_too = all(_same(e.step.outcome.final, e.step.before, row) for e, row in finals)
    alike, still = _chances_of_equal_observations(context)
    if next_too and alike ** len(finals) < _CHANCE:
        yield (
            f"in all {len(finals)} episodes that ended, final and the next decision have the same "
            "observation: one of them is on the wrong side of the restart"
        )
    if before_too and still ** len(finals) < _CHANCE:
        yield (
            f"in all {len(finals)} episodes that ended, final has the observation of before the "
            "last step"
        )
    if context.is_simulator():
        yield from _independent_of_restart(context, context.endings[0])


def _same(a: Decision | None, b: Decision, row: int, other: int | None = None) -> bool:
    """Whether two rows have the same observation."""
    assert a is not None
    left, right = _observation(a, row), _observation(b, row if other is None else other)
    return first_difference(left, right) == ""


def _observation(decision: Decision, row: int) -> Leaves:
    leaves = decision_leaves(decision)
    return {k: leaf[row : row + 1] for k, leaf in leaves.items() if k.startswith("observation")}


def _chances_of_equal_observations(context: Context) -> tuple[float, float]:
    """How often two rows have the same observation, and how often a step changes nothing."""
    rows = range(context.budget.rows)
    alike, still = [], []
    for step in context.baseline.steps:
        alike += [_same(step.before, step.before, row, row - 1) for row in rows]
        still += [_same(step.before, step.decision, row) for row in rows if not step.ended[row]]
    return float(np.mean(alike)), float(np.mean(still or [True]))


def _independent_of_restart(context: Context, ending: Ending) -> Iterator[str]:
    """The same play with other draws for the restarts: the ended episode must not notice."""
    tape = dataclasses.replace(ending.tape, restart_seed=SEED + 77)
    again = play(context.env("other"), tape, ending.count + 1)
    if again.error is not None:
        raise again.error
    expected, found = (
        {
            name: leaf
            for name, leaf in step.leaves(context.capabilities).items()
            if name not in decision_leaves(step.decision)
        }
        for step in (ending.step, again.steps[-1])
    )
    problem = first_difference(expected, found)
    if problem:
        yield f"other draws for the restart change the outcome of step {ending.count}: {problem}"


@check("simulator")
def restart_is_a_reset(context: Context) -> Iterator[str]:
    """Does an ended row go on as a reset with the same draws would begin it?"""
    near = closeness(context.spec)
    for ending in context.require_endings()[: context.budget.endings]:
        rows, other = ending.step.ended, context.env("other")
        fresh = decision_leaves(other.reset(ending.tape.reset_noise(ending.count + 1)))
        problem = first_difference(
            take(decision_leaves(ending.step.decision), rows), take(fresh, rows), near
        )
        if not problem and ending.state_after is not None:
            problem = first_difference(
                take(ending.state_after, rows), take(other.get_state(), rows), near
            )
        if problem:
            yield f"after the restart in step {ending.count}, among the ended rows: {problem}"


@check(*NUMPY_FACES)
def episode_limit(context: Context) -> Iterator[str]:
    """Is an episode truncated exactly at max_episode_steps?"""
    limit = context.spec.max_episode_steps
    if limit is None:
        raise NotApplicableError("the spec declares no max_episode_steps")
    truncated: set[int] = set()
    for ending in context.endings:
        truncated |= set(ending.lengths[np.asarray(ending.step.outcome.truncated)].tolist())
    if truncated - {limit}:
        yield f"episodes were truncated after {sorted(truncated)} steps, the limit is {limit}"
    longest = max((int(ending.lengths.max()) for ending in context.endings), default=0)
    if longest > limit:
        yield f"an episode was {longest} steps long, the limit is {limit}"
    counters = _step_counters(context) if context.sets_state else {}
    if counters:
        yield from _near_the_limit(context, limit, counters)
    elif not truncated:
        raise NotApplicableError(
            f"no episode reached the limit of {limit} steps, and no state can be set "
            "whose fields count the steps"
        )


def _step_counters(context: Context) -> dict[str, tuple[int, int]]:
    """State fields that are ``start + k * stride`` after k steps of any episode, with the two."""
    counters: dict[str, tuple[int, int]] = {}
    elapsed = _elapsed(context)
    second_steps = np.argwhere(elapsed == 1)
    if not len(second_steps):
        return counters
    count, row = second_steps[0]
    for name, field in context.spec.state.items():
        if field.shape == () and np.dtype(field.dtype).kind in "iu":
            values = np.stack([_state(step)[name] for step in context.baseline.steps]).astype(int)
            stride = int(values[count, row] - values[count - 1, row])
            start = int(values[count - 1, row])
            if stride and (values == start + stride * elapsed).all():
                counters[name] = (start, stride)
    return counters


def _state(step: Step) -> Leaves:
    assert step.state is not None
    return step.state


def _elapsed(context: Context) -> np.ndarray:
    """int ``[T, N]``: steps of each row's episode before each recorded step."""
    elapsed = np.zeros((len(context.baseline.steps), context.budget.rows), int)
    for count, step in enumerate(context.baseline.steps[:-1]):
        elapsed[count + 1] = np.where(step.ended, 0, elapsed[count] + 1)
    return elapsed


def _near_the_limit(
    context: Context, limit: int, counters: dict[str, tuple[int, int]]
) -> Iterator[str]:
    """From states whose counters say so, 3, 2 and 1 steps before the limit."""
    env, middle = context.env("other"), len(context.baseline.steps) // 2
    state = _state(context.baseline.steps[middle])
    for left in range(min(3, limit), 0, -1):
        changed = {
            name: np.full_like(state[name], start + stride * (limit - left))
            for name, (start, stride) in counters.items()
        }
        decision = env.set_state({**state, **changed})
        over = np.zeros(context.budget.rows, bool)
        for done in range(1, left + 1):
            step = step_once(env, context.tape, middle + done, decision)
            decision, outcome = step.decision, step.outcome
            truncated = np.asarray(outcome.truncated) & ~over
            if done < left and truncated.any():
                yield f"truncated {left - done} steps before the limit of {limit}"
            over |= step.ended
        if not over.all():
            yield f"not ended at the limit of {limit} steps, {left} steps after a state was set"
