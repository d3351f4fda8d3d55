"""Actions that must be refused, and actions that must not matter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import spaces

from envs.core import ActionError, Decision, EnvSpec
from envs.spaces import action_bounds
from verification.conformance.check import NUMPY_FACES, NotApplicableError, check
from verification.conformance.context import Context
from verification.conformance.play import begin, play, step_once


def bad_actions(spec: EnvSpec, decision: Decision, good: np.ndarray) -> dict[str, Any]:
    """Action arrays that have something wrong with them, by what it is."""
    space = spec.action_space
    low, high = action_bounds(space)
    seat = tuple(np.argwhere(np.asarray(decision.acting))[0])

    def put(value: Any, dtype: Any = None) -> np.ndarray:
        changed = good.astype(dtype or good.dtype)
        changed[seat] = value
        return changed

    bad: dict[str, Any] = {
        "one row too many": np.concatenate([good, good[:1]]),
        "one axis too many": good[..., None],
        "text": np.full(good.shape, "a"),
    }
    if isinstance(space, spaces.Box):
        bad["NaN"] = put(np.nan)
        if np.isfinite(high).any():
            bad["above the space"] = put(np.where(np.isfinite(high), high + 1, 0))
        if np.isfinite(low).any():
            bad["below the space"] = put(np.where(np.isfinite(low), low - 1, 0))
        return bad
    bad["floats"] = good.astype(np.float32) + 0.5
    bad["above the space"] = put(high + 1)
    bad["below the space"] = put(-1)
    if spec.has_legal_actions:
        legal = np.asarray(decision.legal_actions)
        illegal = np.argwhere(np.asarray(decision.acting)[..., None] & ~legal)
        if len(illegal):
            *place, action = illegal[0]
            changed = good.copy()
            changed[tuple(place)] = action
            bad["an illegal action"] = changed
    return bad


@check(*NUMPY_FACES)
def bad_actions_refused(context: Context) -> Iterator[str]:
    """Is every bad action refused by an ActionError, with nothing stepped?"""
    env, steps = context.env(), context.baseline.steps
    decision, tried = begin(env, context.tape), 0
    for count in range(min(6, len(steps))):
        good = context.tape.actions(count, decision)
        for name, actions in bad_actions(context.spec, decision, good).items():
            tried += 1
            try:
                step_once(env, context.tape, count, decision, actions=actions)
            except ActionError:
                continue
            except Exception as error:
                yield f"actions with {name} raised {type(error).__name__}: {error}"
            else:
                yield f"actions with {name} were accepted"
                return
        decision = step_once(env, context.tape, count, decision).decision
    played = play(env, context.tape, len(steps), start=min(6, len(steps)), decision=decision)
    problem = context.departure(played, start=min(6, len(steps)))
    if problem:
        yield f"after {tried} refused actions the play departs {problem}"


def other_actions_where_not_acting(spec: EnvSpec, acting: Any, actions: Any) -> np.ndarray:
    """The actions with some other value, even outside the space, of seats that aren't acting."""
    acting, actions = np.asarray(acting), np.asarray(actions)
    _, high = action_bounds(spec.action_space)
    axes = (1,) * (actions.ndim - acting.ndim)
    outside = np.arange(acting.size).reshape(acting.shape) % 3 != 0
    strange = np.where(np.isfinite(high), high, 1) + 5 * outside.reshape(*acting.shape, *axes)
    return np.where(acting.reshape(*acting.shape, *axes), actions, strange).astype(actions.dtype)


@check(*NUMPY_FACES)
def idle_seats_ignored(context: Context) -> Iterator[str]:
    """Is any action of a seat that isn't acting accepted and without effect?"""
    if all(np.asarray(step.before.acting).all() for step in context.baseline.steps):
        raise NotApplicableError("every seat acted in every step")
    played = play(
        context.env(),
        context.tape,
        len(context.baseline.steps),
        alter=lambda before, a: other_actions_where_not_acting(context.spec, before.acting, a),
    )
    problem = context.departure(played)
    if problem:
        yield f"with other actions of seats that aren't acting, the play departs {problem}"
