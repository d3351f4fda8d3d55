"""Checks of what clients hand to an environment; every NumPy face passes through them."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import numpy as np

from envs.core import ActionError, Decision, EnvSpec, NoiseSite
from envs.spaces import action_bounds, action_dtype


def check_actions(
    spec: EnvSpec, actions: Any, num_envs: int, decision: Decision | None = None
) -> np.ndarray:
    """The actions as an array ``[N(,A), ...]`` of the space's dtype, or an ActionError.

    Args:
        decision: the open decision; with it, legality is checked too, and rows that are not
            acting may send anything of the right shape and dtype (they come back as the lowest
            action).

    Raises:
        ActionError: wrong shape or dtype, NaN, outside the space, or illegal; the message names
            the first offending row.
    """
    space = spec.action_space
    dtype = action_dtype(space)
    try:
        array = np.asarray(actions)
    except Exception as error:  # rows of unequal length, or whatever a foreign __array__ raises
        raise ActionError(f"{spec.name}: actions are no array ({error})") from None
    expected = (*spec.rows(num_envs), *space.shape)
    if array.shape != expected:
        raise ActionError(f"{spec.name}: actions have shape {array.shape}, expected {expected}")
    if dtype.kind == "i" and array.dtype.kind not in "iu":
        raise ActionError(f"{spec.name}: actions have dtype {array.dtype}, expected an integer one")
    if dtype.kind == "f" and array.dtype.kind not in "iuf":
        raise ActionError(f"{spec.name}: actions have dtype {array.dtype}, expected {dtype}")
    low, high = action_bounds(space)
    bad: np.ndarray | None = None
    if dtype.kind == "i" and low.ndim == 0:  # the common case, two reductions and no temporaries
        if array.size and not (array.min() >= low and array.max() <= high):
            bad = np.asarray((array < low) | (array > high))
    else:
        outside = ~((array >= low) & (array <= high))  # also true for NaN
        bad = np.asarray(outside.reshape(*spec.rows(num_envs), -1).any(-1))
    acting = None if decision is None else np.asarray(decision.acting)
    if bad is not None and acting is not None:
        bad = bad & acting
    if bad is not None and bad.any():
        row = tuple(int(i) for i in np.argwhere(bad)[0])
        raise ActionError(
            f"{spec.name}: action {array[row]} of row {_row_name(row)} is outside {space}"
        )
    if acting is not None and not acting.all():
        seats = acting.reshape(*acting.shape, *(1 for _ in space.shape))
        array = np.where(seats, array, low)
    array = array.astype(dtype, copy=False)
    if spec.has_legal_actions and decision is not None:
        legal_actions = np.asarray(decision.legal_actions)
        refused = acting & ~np.take_along_axis(legal_actions, array[..., None], -1)[..., 0]
        if refused.any():
            row = tuple(int(i) for i in np.argwhere(refused)[0])
            legal_here = np.flatnonzero(legal_actions[row]).tolist()
            raise ActionError(
                f"{spec.name}: action {array[row]} of row {_row_name(row)} is not legal; "
                f"legal there: {legal_here}"
            )
    return array


def _row_name(row: tuple[int, ...]) -> str:
    return str(row[0]) if len(row) == 1 else str(row)


def check_num_envs(num_envs: Any) -> int:
    """A positive int, or ValueError."""
    value = _integer(num_envs)
    if value is None or value < 1:
        raise ValueError(f"num_envs must be a positive integer, got {num_envs!r}")
    return value


def check_seed(seed: Any) -> int:
    """An int in [0, 2**32), or ValueError."""
    value = _integer(seed)
    if value is None or not 0 <= value < 2**32:
        raise ValueError(f"seed must be an integer in [0, 2**32), got {seed!r}")
    return value


def _integer(value: Any) -> int | None:
    """The int that an object stands for; None where it is none, or a boolean."""
    if isinstance(value, (bool, np.bool_)):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def check_fields(
    spec: EnvSpec, fields: Mapping[str, np.ndarray], num_envs: int
) -> dict[str, np.ndarray]:
    """Canonical fields with the spec's names, shapes and dtypes, or ValueError."""
    missing, unknown = set(spec.state) - set(fields), set(fields) - set(spec.state)
    if missing or unknown:
        raise ValueError(
            f"{spec.name}: set_state needs exactly the fields {', '.join(spec.state)}; "
            f"missing: {sorted(missing)}, unknown: {sorted(unknown)}"
        )
    checked = {}
    for name, f in spec.state.items():
        array = np.asarray(fields[name])
        if array.shape != (num_envs, *f.shape):
            raise ValueError(
                f"{spec.name}: field {name} has shape {array.shape}, "
                f"expected {(num_envs, *f.shape)}"
            )
        if not np.can_cast(array.dtype, f.dtype, "same_kind"):
            raise ValueError(f"{spec.name}: field {name} has dtype {array.dtype}, not {f.dtype}")
        checked[name] = array.astype(f.dtype)
        if checked[name].dtype.kind in "iu" and (checked[name] != array).any():
            raise ValueError(f"{spec.name}: field {name} holds values that are not {f.dtype}")
    return checked


def check_noise(record: type, sites: Mapping[str, NoiseSite], noise: Any, num_envs: int) -> Any:
    """Noise as a record of ``[N, ...]`` arrays within the sites' domains, or ValueError."""
    if tuple(getattr(noise, "_fields", ())) != tuple(sites):
        raise ValueError(f"noise must be a {record.__name__} with the sites {tuple(sites)}")
    checked = []
    for (name, site), values in zip(sites.items(), noise, strict=True):
        array = np.asarray(values)
        if array.shape != (num_envs, *site.shape) or array.dtype != site.dtype:
            raise ValueError(
                f"noise site {name} is {array.dtype}{array.shape}, "
                f"expected {site.dtype}{(num_envs, *site.shape)}"
            )
        if not _in_domain(site, array):
            raise ValueError(f"noise site {name} leaves its domain {_domain(site)}")
        checked.append(array)
    return record(*checked)


def _in_domain(site: NoiseSite, array: np.ndarray) -> bool:
    """High itself passes for uniform: a reference's float64 draw may round to it."""
    if site.distribution == "bits":
        return True
    if site.distribution == "normal":
        return bool(np.isfinite(array).all())
    low, high = site.dtype.type(site.low), site.dtype.type(site.high)
    below = array < high if site.distribution == "integers" else array <= high
    return bool(((array >= low) & below).all())


def _domain(site: NoiseSite) -> str:
    return "of finite numbers" if site.distribution == "normal" else f"[{site.low}, {site.high})"
