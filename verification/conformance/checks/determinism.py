"""The same noise gives the same play: again, in another instance, and beside another one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from envs.core import Decision, Outcome
from verification.conformance.check import NUMPY_FACES, check, has_independent_rows
from verification.conformance.compare import (
    Leaves,
    decision_leaves,
    first_difference,
    outcome_leaves,
)
from verification.conformance.context import SEED, Context
from verification.conformance.play import Play, Step, begin, copied, play, send, step_once


@check(*NUMPY_FACES)
def reset_forgets_the_past(context: Context) -> Iterator[str]:
    """Is a play after any history, and after two resets, the play of a new environment?"""
    env = context.env()
    expected = context.baseline  # played by this environment when it was new
    play(env, dataclasses.replace(context.tape, seed=SEED + 5), min(7, len(expected.steps)))
    begin(env, context.tape)
    problem = context.departure(play(env, context.tape, len(expected.steps)))
    if problem:
        yield f"after other steps and two resets, the play departs {problem}"


@check(*NUMPY_FACES)
def same_seed_repeats(context: Context) -> Iterator[str]:
    """Does another instance repeat the play with the same seed or noise?"""
    other = play(context.env("other"), context.tape, len(context.baseline.steps))
    problem = context.departure(other)
    if problem:
        yield f"another instance departs {problem}"


@check(*NUMPY_FACES)
def different_seeds_differ(context: Context) -> Iterator[str]:
    """Does another seed, or other noise, give another play?"""
    for seed in (SEED + 1, SEED + 2, SEED + 3):
        # The same actions, so that only the environment's own draws can make a difference.
        tape = dataclasses.replace(context.tape, seed=seed, action_seed=SEED)
        if context.departure(play(context.env(), tape, len(context.baseline.steps))):
            return
    yield f"the seeds {SEED}, {SEED + 1}, {SEED + 2} and {SEED + 3} give the same play"


@check(*NUMPY_FACES, needs=(has_independent_rows,))
def instances_do_not_interfere(context: Context) -> Iterator[str]:
    """Does a second instance, stepped in between, leave the play as it is?"""
    env, second = context.env(), context.env("other")
    other_tape = dataclasses.replace(context.tape, seed=SEED + 9)
    first = decision = begin(env, context.tape)
    beside = begin(second, other_tape)
    steps: list[Step] = []
    for count in range(len(context.baseline.steps)):
        steps.append(step_once(env, context.tape, count, decision))
        decision = steps[-1].decision
        beside = step_once(second, other_tape, count, beside).decision
    problem = context.departure(Play(first, tuple(steps)))
    if problem:
        yield f"beside another instance, the play departs {problem}"


@check(*NUMPY_FACES)
def arrays_belong_to_the_caller(context: Context) -> Iterator[str]:
    """Do handed-out arrays keep their values, and can they be written to without effect?"""
    env, tape, given = context.env(), context.tape, []
    decision = env.reset(tape.reset_noise(0) if context.is_simulator() else tape.seed)
    for count in range(len(context.baseline.steps)):
        given.append((count, decision, copied(decision)))
        decision, outcome = send(env, tape, count, tape.actions(count, decision))
        given.append((count, outcome, copied(outcome)))
    for count, now, then in given:
        leaves = _leaves_of_decision if isinstance(now, Decision) else _leaves_of_outcome
        problem = first_difference(leaves(then, context), leaves(now, context))
        if problem:
            yield f"arrays handed out at step {count} have changed since: {problem}"
            return
    yield from _written_into(context)


def _leaves_of_decision(decision: Decision, context: Context) -> Leaves:
    return decision_leaves(decision)


def _leaves_of_outcome(outcome: Outcome, context: Context) -> Leaves:
    return outcome_leaves(outcome, context.capabilities)


def _written_into(context: Context) -> Iterator[str]:
    """Play on while every observation is overwritten as soon as the actions are chosen."""
    env, tape = context.env(), context.tape
    decision = env.reset(tape.reset_noise(0) if context.is_simulator() else tape.seed)
    for count in range(len(context.baseline.steps)):
        actions = tape.actions(count, decision)
        for name, array in decision_leaves(decision).items():
            if name.startswith("observation") and array.flags.writeable:
                array.fill(0)
        decision, outcome = send(env, tape, count, actions)
        found = {**decision_leaves(decision), **outcome_leaves(outcome, context.capabilities)}
        problem = first_difference(context.expected(count), found)
        if problem:
            yield f"writing into an observation changes the play in step {count}: {problem}"
            return
