"""Are two records the same? Exactly, or as near as the contract's tolerances."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from envs.core import Capabilities, Decision, EnvSpec, Outcome, Tolerance

Leaves = dict[str, np.ndarray]
"""Arrays of a record by dotted name, ``[N, ...]`` each."""

# A few roundings: XLA may order float operations otherwise for another batch size, under jit, or
# inside a scan. Whatever is larger in the contract's own tolerances goes before it.
ROUNDING = Tolerance(rel=1e-6)


def closeness(spec: EnvSpec) -> Tolerance:
    """The loosest tolerance of the spec's fields, at least a few roundings."""
    tolerances = [ROUNDING, *(f.tolerance for f in spec.state.values())]
    return Tolerance(abs=max(t.abs for t in tolerances), rel=max(t.rel for t in tolerances))


def decision_leaves(decision: Decision, prefix: str = "") -> Leaves:
    """A decision's arrays; what is None is left out."""
    leaves = {}
    for name, value in decision._asdict().items():
        if isinstance(value, Mapping):
            leaves.update({f"{prefix}{name}.{k}": np.asarray(v) for k, v in value.items()})
        elif value is not None:
            leaves[prefix + name] = np.asarray(value)
    return leaves


def final_rows(outcome: Outcome, capabilities: Capabilities) -> np.ndarray:
    """bool ``[N]``: where ``outcome.final`` is specified."""
    truncated = np.asarray(outcome.truncated)
    return truncated | np.asarray(outcome.terminated) & capabilities.final_on_termination


def outcome_leaves(outcome: Outcome, capabilities: Capabilities) -> Leaves:
    """An outcome's arrays, with zeros where ``final`` and ``metrics`` are unspecified."""
    ended = np.asarray(outcome.ended)
    fields = ("reward", "terminated", "truncated", "invalid", "events")
    leaves = {
        name: np.asarray(getattr(outcome, name))
        for name in fields
        if getattr(outcome, name) is not None
    }
    for name, value in outcome.metrics.items():
        leaves[f"metrics.{name}"] = _masked(np.asarray(value), ended)
    if outcome.final is not None:
        rows = final_rows(outcome, capabilities)
        for name, value in decision_leaves(outcome.final, "final.").items():
            leaves[name] = _masked(value, rows)
    return leaves


def _masked(array: np.ndarray, rows: np.ndarray) -> np.ndarray:
    array = array.copy()
    array[~rows] = 0
    return array


def take(leaves: Mapping[str, np.ndarray], rows: Any) -> Leaves:
    """The same arrays with other rows, or the rows in another order."""
    return {name: value[rows] for name, value in leaves.items()}


def first_difference(
    a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray], tolerance: Tolerance | None = None
) -> str:
    """What differs first between two sets of arrays, in words; empty when nothing does.

    Args:
        tolerance: for floats; without it they must be equal, NaN to NaN.
    """
    if a.keys() != b.keys():
        return f"one has {sorted(a.keys() - b.keys())}, the other {sorted(b.keys() - a.keys())}"
    for name in a:
        left, right = a[name], b[name]
        if left.shape != right.shape:
            return f"{name} has shape {left.shape}, the other {right.shape}"
        wrong = _differing(left, right, tolerance)
        if wrong.any():
            place = tuple(int(i) for i in np.argwhere(wrong)[0])
            where = f"row {place[0]}" + (f", entry {place[1:]}" if place[1:] else "")
            return f"{name} in {where}: {left[place]} and {right[place]}"
    return ""


def _differing(left: np.ndarray, right: np.ndarray, tolerance: Tolerance | None) -> np.ndarray:
    if left.dtype.kind != "f":
        return left != right
    same = (left == right) | (np.isnan(left) & np.isnan(right))
    if tolerance is None or same.all():
        return ~same
    wide_left, wide_right = left.astype(np.float64), right.astype(np.float64)
    size = np.abs(np.where(np.isfinite(wide_right), wide_right, 0.0))
    row = size.reshape(len(size), -1).max(-1, initial=0.0)
    row = row.reshape(-1, *(1 for _ in left.shape[1:]))
    with np.errstate(invalid="ignore"):
        near = np.abs(wide_left - wide_right) <= tolerance.abs + tolerance.rel * (1 + row)
    return ~(same | near)
