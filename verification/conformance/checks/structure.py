"""Names, shapes and dtypes of everything that a backend hands out, wherever it comes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from envs.core import Capabilities, Decision, EnvSpec, Outcome
from verification.conformance.check import NUMPY_FACES, check
from verification.conformance.context import Context


@check(*NUMPY_FACES)
def plays_on(context: Context) -> Iterator[str]:
    """Does legal play run without an exception?"""
    error = context.recorded.error
    if error is not None:
        count = len(context.recorded.steps)
        yield f"step {count} with legal actions raised {type(error).__name__}: {error}"


@check(*NUMPY_FACES)
def structure(context: Context) -> Iterator[str]:
    """Do all records have the spec's names, shapes and dtypes, at reset, step and auto-reset?"""
    spec, rows = context.spec, context.budget.rows
    for where, decision in _decisions(context):
        yield from decision_problems(spec, decision, rows, where)
    for count, step in enumerate(context.recorded.steps):
        yield from outcome_problems(
            spec, context.capabilities, step.outcome, rows, f"outcome of step {count}"
        )


def _decisions(context: Context) -> Iterator[tuple[str, Any]]:
    """Decisions from everywhere, with where they come from."""
    yield "decision of reset", context.recorded.first
    for count, step in enumerate(context.recorded.steps):
        name = "decision after an auto-reset" if step.ended.any() else "decision"
        yield f"{name} in step {count}", step.decision
        if step.outcome.final is not None:
            yield f"final of step {count}", step.outcome.final
    if context.sets_state and context.recorded.steps:
        state = context.recorded.steps[-1].state
        assert state is not None
        yield "decision of set_state", context.env().set_state(state)


def decision_problems(spec: EnvSpec, decision: Any, num_envs: int, where: str) -> Iterator[str]:
    """What is wrong with the form of a decision."""
    if not isinstance(decision, Decision):
        yield f"{where} is a {type(decision).__name__}, not a Decision"
        return
    seats = spec.rows(num_envs)
    for name, space, array in observation_parts(spec, decision.observation):
        dtype = space.dtype if isinstance(space, spaces.Box) else None
        yield from _array(array, (*seats, *space.shape), dtype, f"{where}: {name}")
    if isinstance(spec.observation_space, spaces.Dict):
        parts = decision.observation
        names = set(parts) if isinstance(parts, Mapping) else set()
        if names != set(spec.observation_space.spaces):
            yield f"{where}: observation has the keys {sorted(names)}"
    yield from _array(decision.acting, seats, bool, f"{where}: acting")
    legal = (*seats, spec.action_space.n) if spec.has_legal_actions else None
    yield from _array(decision.legal_actions, legal, bool, f"{where}: legal_actions")
    privileged = spec.privileged_space
    shape = None if privileged is None else (num_envs, *privileged.shape)
    dtype = None if privileged is None else privileged.dtype
    yield from _array(decision.privileged, shape, dtype, f"{where}: privileged")


def observation_parts(spec: EnvSpec, observation: Any) -> Iterator[tuple[str, spaces.Space, Any]]:
    """(name, space, array) of an observation, or of the entries of a dict of them."""
    space = spec.observation_space
    if not isinstance(space, spaces.Dict):
        yield "observation", space, observation
    elif isinstance(observation, Mapping):
        for key, inner in space.spaces.items():
            if key in observation:
                yield f"observation.{key}", inner, observation[key]


def outcome_problems(
    spec: EnvSpec, capabilities: Capabilities, outcome: Any, num_envs: int, where: str
) -> Iterator[str]:
    """What is wrong with the form of an outcome, apart from its final."""
    if not isinstance(outcome, Outcome):
        yield f"{where} is a {type(outcome).__name__}, not an Outcome"
        return
    seats = spec.rows(num_envs)
    yield from _array(outcome.reward, seats, np.float32, f"{where}: reward")
    for name in ("terminated", "truncated"):
        yield from _array(getattr(outcome, name), (num_envs,), bool, f"{where}: {name}")
    yield from _array(outcome.invalid, seats, bool, f"{where}: invalid")
    events = (num_envs, len(spec.events)) if capabilities.events else None
    yield from _array(outcome.events, events, bool, f"{where}: events")
    if set(outcome.metrics) != set(spec.metrics):
        yield f"{where}: metrics {sorted(outcome.metrics)}, declared {sorted(spec.metrics)}"
        return
    for name, metric in spec.metrics.items():
        shape = seats if metric.per_agent else (num_envs,)
        yield from _array(outcome.metrics[name], shape, metric.dtype, f"{where}: metric {name}")


def _array(array: Any, shape: tuple[int, ...] | None, dtype: Any, name: str) -> Iterator[str]:
    """``shape`` None: there must be no array; ``dtype`` None: any kind of integer."""
    if shape is None:
        if array is not None:
            yield f"{name} should be None"
        return
    if not isinstance(array, np.ndarray):
        yield f"{name} is a {type(array).__name__}, not a NumPy array"
        return
    if array.shape != shape:
        yield f"{name} has shape {array.shape}, expected {shape}"
    if dtype is None and array.dtype.kind not in "iu":
        yield f"{name} is {array.dtype}, expected integers"
    if dtype is not None and array.dtype != np.dtype(dtype):
        yield f"{name} is {array.dtype}, expected {np.dtype(dtype)}"
