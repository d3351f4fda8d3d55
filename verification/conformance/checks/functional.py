"""Functional environments inside JAX: jit, scan, purity, and invalid actions in pure code."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from envs.core import Capabilities, Decision, VectorFunctionalEnv
from envs.spaces import action_bounds
from verification.conformance.check import NotApplicableError, check
from verification.conformance.checks.actions import bad_actions, other_actions_where_not_acting
from verification.conformance.compare import (
    Leaves,
    closeness,
    decision_leaves,
    first_difference,
    outcome_leaves,
)
from verification.conformance.context import Context

_STEPS = 24


def _loop(context: Context, reset: Any, step: Any, steps: int) -> Iterator[tuple[Any, Any, Any]]:
    """(state, decision, (action, noise)) before each step; ends before the last one is taken."""
    state, decision = reset(context.tape.reset_noise(0))
    for count in range(steps + 1):
        inputs = (
            context.tape.actions(count, decision),
            context.tape.step_noise(count),
            context.tape.reset_noise(count + 1),
        )
        yield state, decision, inputs
        state, decision, _ = step(state, *inputs)


def _leaves(state: Any, decision: Any, outcome: Any = None) -> Leaves:
    leaves = {f"state leaf {i}": np.asarray(x) for i, x in enumerate(jax.tree.leaves(state))}
    leaves.update(decision_leaves(decision))
    if outcome is not None:
        leaves.update(outcome_leaves(outcome, Capabilities()))
    return leaves


@check("functional")
def carry_keeps_its_form(context: Context) -> Iterator[str]:
    """Have the state and the decision the same structure, shapes and dtypes at reset and step?"""
    reset, step = context.jitted
    inputs = next(_loop(context, reset, step, 0))[2]
    first = jax.eval_shape(reset, context.tape.reset_noise(0))
    second = jax.eval_shape(step, first[0], *inputs)[:2]
    forms = str(jax.tree.structure(first)), str(jax.tree.structure(second))
    if forms[0] != forms[1]:
        yield f"reset gives {forms[0]}, step {forms[1]}"
        return
    for (path, a), (_, b) in zip(
        jax.tree_util.tree_leaves_with_path(first),
        jax.tree_util.tree_leaves_with_path(second),
        strict=True,
    ):
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            name = jax.tree_util.keystr(path)
            yield f"{name} is {a.dtype}{a.shape} at reset, {b.dtype}{b.shape} after a step"


@check("functional")
def step_is_pure(context: Context) -> Iterator[str]:
    """Does a step with the same inputs give the same results, and leave its inputs alone?"""
    reset, step = context.jitted
    for count, (state, _, inputs) in enumerate(_loop(context, reset, step, 3)):
        before = jax.tree.map(np.array, state)
        first, second = step(state, *inputs), step(state, *inputs)
        problem = first_difference(_leaves(*first), _leaves(*second))
        if problem:
            yield f"step {count} twice: {problem}"
        if first_difference(_leaves(before, first[1]), _leaves(state, first[1])):
            yield f"step {count} changes the state that it was given"


@check("functional")
def jit_equals_eager(context: Context) -> Iterator[str]:
    """Do the first steps give the same with and without jit, up to rounding?"""
    env: VectorFunctionalEnv = context.env()
    near = closeness(context.spec)
    reset, step = context.jitted
    noise = context.tape.reset_noise(0)
    with jax.disable_jit():
        eager = env.reset(jax.tree.map(jnp.asarray, noise))
    problem = first_difference(_leaves(*reset(noise)), _leaves(*eager), near)
    if problem:
        yield f"reset: {problem}"
        return
    played = _loop(context, reset, step, context.budget.eager_steps - 1)
    for count, (state, _, inputs) in enumerate(played):
        with jax.disable_jit():
            outcome = env.step(state, *jax.tree.map(jnp.asarray, inputs))
        problem = first_difference(_leaves(*step(state, *inputs)), _leaves(*outcome), near)
        if problem:
            yield f"step {count}: {problem}"
            return


@check("functional")
def scan_equals_loop(context: Context) -> Iterator[str]:
    """Is a scan over steps the same as a loop, up to rounding?"""
    env: VectorFunctionalEnv = context.env()
    reset, step = context.jitted
    played = list(_loop(context, reset, step, _STEPS))
    inputs = jax.tree.map(lambda *x: np.stack(x), *(item[2] for item in played[:-1]))

    def body(state: Any, inputs: Any) -> tuple[Any, Any]:
        state, decision, _ = env.step(state, *inputs)
        return state, (state, decision)

    state, _ = reset(context.tape.reset_noise(0))
    states, decisions = jax.jit(lambda s, x: jax.lax.scan(body, s, x))(state, inputs)[1]
    near = closeness(context.spec)
    for count, (state, decision, _) in enumerate(played[1:]):
        scanned = jax.tree.map(lambda x, t=count: x[t], (states, decisions))
        loop, scan = _leaves(state, decision), _leaves(*scanned)
        if first_difference(loop, scan):
            # From the first rounding on they may part; at that step they must be near.
            problem = first_difference(loop, scan, near)
            if problem:
                yield f"after step {count}: {problem}"
            return


@check("functional")
def fields_round_trip(context: Context) -> Iterator[str]:
    """Do the canonical fields of a state make a state that decides and steps alike?"""
    env: VectorFunctionalEnv = context.env()
    reset, step = context.jitted
    observe = jax.jit(env.observe)
    near = closeness(context.spec)
    for count, (state, decision, inputs) in enumerate(_loop(context, reset, step, 8)):
        fields = {
            name: np.asarray(env.state_fields(state)[name]).astype(field.dtype)
            for name, field in context.spec.state.items()
        }
        again = jax.tree.map(jnp.asarray, env.state_from_fields(fields))
        problem = first_difference(
            decision_leaves(decision), decision_leaves(observe(again)), near
        ) or first_difference(_leaves(*step(state, *inputs)), _leaves(*step(again, *inputs)), near)
        if problem:
            yield f"before step {count}: {problem}"
            return


@check("functional")
def invalid_actions_flagged(context: Context) -> Iterator[str]:
    """Is an invalid action flagged, and played as the lowest legal one?"""
    reset, step = context.jitted
    tried = 0
    for state, decision, (actions, *noise) in _loop(context, reset, step, 4):
        decision = jax.tree.map(np.asarray, decision)
        for name, bad in bad_actions(context.spec, decision, actions).items():
            if name in ("NaN", "above the space", "below the space", "an illegal action"):
                tried += 1
                wrong = (bad != actions).reshape(*decision.acting.shape, -1).any(-1)
                yield from _flagged(context, step, state, decision, (bad, wrong, noise), name)
    if not tried:
        raise NotApplicableError("no action can be invalid in the first steps")


def _flagged(
    context: Context, step: Any, state: Any, decision: Decision, bad: Any, name: str
) -> Iterator[str]:
    actions, wrong, noise = bad
    lowest = _lowest_legal(context, decision)
    where = wrong.reshape(wrong.shape + (1,) * (actions.ndim - wrong.ndim))
    mended = np.where(where, lowest, actions).astype(actions.dtype)
    found, expected = step(state, actions, *noise), step(state, mended, *noise)
    flags = np.asarray(found[2].invalid)
    if not np.array_equal(flags, wrong):
        seats, flagged = np.argwhere(wrong).tolist(), np.argwhere(flags).tolist()
        yield f"actions with {name} in the seats {seats}: flagged are {flagged}"
    quiet = found[2]._replace(invalid=expected[2].invalid)
    problem = first_difference(_leaves(*expected), _leaves(found[0], found[1], quiet))
    if problem:
        yield f"actions with {name} aren't played as the lowest legal one: {problem}"


def _lowest_legal(context: Context, decision: Decision) -> np.ndarray:
    if context.spec.has_legal_actions:
        return np.asarray(decision.legal_actions).argmax(-1)
    low, _ = action_bounds(context.spec.action_space)
    return np.broadcast_to(low, (*decision.acting.shape, *context.spec.action_space.shape))


@check("functional")
def idle_seats_ignored_in_jit(context: Context) -> Iterator[str]:
    """Is any action of a seat that isn't acting without effect and never flagged?"""
    reset, step = context.jitted
    tried = 0
    for count, (state, decision, (actions, *noise)) in enumerate(
        _loop(context, reset, step, _STEPS)
    ):
        if np.asarray(decision.acting).all():
            continue
        tried += 1
        strange = other_actions_where_not_acting(context.spec, decision.acting, actions)
        problem = first_difference(
            _leaves(*step(state, actions, *noise)), _leaves(*step(state, strange, *noise))
        )
        if problem:
            yield f"in step {count}: {problem}"
            return
    if not tried:
        raise NotApplicableError(f"every seat acted in {_STEPS} steps")
