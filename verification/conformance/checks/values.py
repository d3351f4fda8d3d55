"""Values that the contract bounds: observations, legal actions, rewards, flags, metrics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import spaces

from envs.core import Decision, EnvSpec
from verification.conformance.check import NUMPY_FACES, check
from verification.conformance.checks.structure import observation_parts
from verification.conformance.compare import final_rows
from verification.conformance.context import Context


def _decisions(context: Context) -> Iterator[tuple[str, Decision, np.ndarray]]:
    """(where, decision, bool ``[N]`` rows that are specified), finals of ended rows included."""
    everywhere = np.ones(context.budget.rows, bool)
    yield "after reset", context.recorded.first, everywhere
    for count, step in enumerate(context.recorded.steps):
        yield f"in step {count}", step.decision, everywhere
        if step.outcome.final is not None:
            rows = final_rows(step.outcome, context.capabilities)
            yield f"in the final of step {count}", step.outcome.final, rows
    for ending in context.endings if context.recorded.error is None else ():
        if ending.step.outcome.final is not None:
            rows = final_rows(ending.step.outcome, context.capabilities)
            yield f"in the final of step {ending.count}", ending.step.outcome.final, rows


@check(*NUMPY_FACES)
def observation_in_space(context: Context) -> Iterator[str]:
    """Is every observation inside its space, finals and privileged ones included?"""
    for where, decision, rows in _decisions(context):
        for name, space, array in observation_parts(context.spec, decision.observation):
            yield from outside(space, np.asarray(array), rows, f"{name} {where}")
        if context.spec.privileged_space is not None:
            array = np.asarray(decision.privileged)
            yield from outside(context.spec.privileged_space, array, rows, f"privileged {where}")


def outside(space: spaces.Space, array: np.ndarray, rows: np.ndarray, where: str) -> Iterator[str]:
    """The first entry of the given rows that lies outside a space (NaN always does)."""
    low, high = _bounds(space)
    wrong = ~((array >= low) & (array <= high))
    wrong[~rows] = False
    if wrong.any():
        place = tuple(int(i) for i in np.argwhere(wrong)[0])
        yield f"{where} is {array[place]} at {place}, outside {_short(space)}"


def _bounds(space: spaces.Space) -> tuple[Any, Any]:
    if isinstance(space, spaces.Box):
        return space.low, space.high
    if isinstance(space, spaces.Discrete):
        return space.start, space.start + space.n - 1
    if isinstance(space, spaces.MultiDiscrete):
        return 0, space.nvec - 1
    if isinstance(space, spaces.MultiBinary):
        return 0, 1
    raise TypeError(f"no bounds for a {type(space).__name__} space")


def _short(space: spaces.Space) -> str:
    text = " ".join(str(space).split())
    return text if len(text) <= 80 else f"{text[:77]}..."


@check(*NUMPY_FACES)
def legal_actions(context: Context) -> Iterator[str]:
    """Has every acting seat a legal action, and every other seat exactly action 0?"""
    for where, decision, rows in _decisions(context):
        acting = np.asarray(decision.acting)
        if "final" not in where and not acting.reshape(len(acting), -1).any(-1).all():
            yield f"nobody acts in some row {where}"
        if context.spec.has_legal_actions:
            yield from _legal_problems(context.spec, decision, rows, where)


def _legal_problems(
    spec: EnvSpec, decision: Decision, rows: np.ndarray, where: str
) -> Iterator[str]:
    acting, legal = np.asarray(decision.acting), np.asarray(decision.legal_actions)
    seats = rows if acting.ndim == 1 else rows[:, None]
    only_zero = np.arange(legal.shape[-1]) == 0
    for wrong, message in (
        (acting & ~legal.any(-1), "an acting seat has no legal action"),
        (~acting & (legal != only_zero).any(-1), "a seat that isn't acting has more than action 0"),
    ):
        places = np.argwhere(wrong & seats)
        if len(places):
            yield f"{message} {where}, row {places[0].tolist()}"


@check(*NUMPY_FACES)
def reward(context: Context) -> Iterator[str]:
    """Is every reward finite?"""
    for count, step in enumerate(context.recorded.steps):
        bad = ~np.isfinite(np.asarray(step.outcome.reward, np.float64))
        if bad.any():
            place = np.argwhere(bad)[0].tolist()
            yield f"the reward of row {place} in step {count} is not finite"


@check(*NUMPY_FACES)
def terminated_or_truncated(context: Context) -> Iterator[str]:
    """Is no row both terminated and truncated, and none truncated where the spec forbids it?"""
    steps = [(count, step.outcome) for count, step in enumerate(context.recorded.steps)]
    if context.recorded.error is None:
        steps += [(ending.count, ending.step.outcome) for ending in context.endings]
    for count, outcome in steps:
        both = np.asarray(outcome.terminated) & np.asarray(outcome.truncated)
        if both.any():
            yield f"row {np.flatnonzero(both)[0]} is terminated and truncated in step {count}"
        if not context.spec.truncates and np.any(outcome.truncated):
            yield f"a row is truncated in step {count}, the spec says truncates=False"


@check(*NUMPY_FACES)
def metrics_finite(context: Context) -> Iterator[str]:
    """Are the metrics of ended episodes finite?"""
    for ending in context.require_endings():
        for name, value in ending.step.outcome.metrics.items():
            array = np.asarray(value)[ending.step.ended]
            if not np.isfinite(array.astype(np.float64)).all():
                yield f"metric {name} of an episode that ended in step {ending.count} is not finite"


@check(*NUMPY_FACES)
def legal_play_is_valid(context: Context) -> Iterator[str]:
    """Is no legal action flagged as invalid?"""
    for count, step in enumerate(context.recorded.steps):
        if np.any(step.outcome.invalid):
            yield f"a legal action of step {count} is flagged as invalid"
