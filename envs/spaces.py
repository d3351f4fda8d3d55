"""Gymnasium spaces as JSON, and the arrays that belong to them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

MAX_ENTRIES = 1 << 26
"""Numbers that a described space may have: well above any observation, well below a memory."""


def space_to_json(space: spaces.Space) -> dict[str, Any]:
    """A JSON description of a Box, Discrete, MultiDiscrete, MultiBinary or flat Dict space.

    Bounds that are the same everywhere are stored once, so that image spaces stay small.
    """
    if isinstance(space, spaces.Box):

        def bound(values: np.ndarray) -> Any:
            first = values.flat[0]
            return first.item() if (values == first).all() else values.tolist()

        return dict(
            kind="Box",
            low=bound(space.low),
            high=bound(space.high),
            shape=list(space.shape),
            dtype=str(space.dtype),
        )
    if isinstance(space, spaces.Discrete):
        n, start = int(space.n), int(space.start)
        return dict(kind="Discrete", n=n, start=start, dtype=str(space.dtype))
    if isinstance(space, spaces.MultiDiscrete):
        nvec, start = space.nvec.tolist(), space.start.tolist()
        return dict(kind="MultiDiscrete", nvec=nvec, start=start, dtype=str(space.dtype))
    if isinstance(space, spaces.MultiBinary):
        return dict(kind="MultiBinary", n=np.asarray(space.n).tolist())
    if isinstance(space, spaces.Dict):
        return dict(kind="Dict", spaces={k: space_to_json(v) for k, v in space.spaces.items()})
    raise TypeError(f"no JSON form for a {type(space).__name__} space: {space}")


def space_from_json(data: dict[str, Any]) -> spaces.Space:
    """Inverse of :func:`space_to_json`.

    Raises:
        ValueError: an unknown kind, or a space of more than MAX_ENTRIES numbers.
        KeyError, TypeError, AssertionError: a malformed description.
    """
    if (entries := _entries(data)) > MAX_ENTRIES:
        raise ValueError(f"a space of {entries} numbers exceeds the limit of {MAX_ENTRIES}")
    kind = data["kind"]
    if kind == "Box":
        shape, dtype = tuple(data["shape"]), np.dtype(data["dtype"])
        low, high = (np.broadcast_to(np.asarray(data[k], dtype), shape) for k in ("low", "high"))
        return spaces.Box(low, high, shape, dtype.type)
    if kind == "Discrete":
        return spaces.Discrete(data["n"], start=data["start"], dtype=np.dtype(data["dtype"]).type)
    if kind == "MultiDiscrete":
        dtype = np.dtype(data["dtype"]).type
        return spaces.MultiDiscrete(data["nvec"], dtype=dtype, start=data["start"])
    if kind == "MultiBinary":
        return spaces.MultiBinary(data["n"])
    if kind == "Dict":
        return spaces.Dict({k: space_from_json(v) for k, v in data["spaces"].items()})
    raise ValueError(f"unknown space kind {kind!r}")


def _entries(data: Mapping[str, Any]) -> int:
    """How many numbers a member of the described space has, found without making the space."""
    if data["kind"] == "Dict":
        return sum(_entries(inner) for inner in data["spaces"].values())
    size = {"Box": "shape", "MultiBinary": "n"}.get(data["kind"])
    if size is None:  # Discrete has one, and MultiDiscrete spells them out
        return 1
    axes = data[size] if isinstance(data[size], list) else [data[size]]
    return math.prod(int(length) for length in axes)


def action_dtype(space: spaces.Space) -> np.dtype:
    """Dtype of action arrays: int32 for discrete kinds, the Box's own dtype otherwise."""
    if isinstance(space, spaces.Box):
        return np.dtype(space.dtype)
    if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
        return np.dtype(np.int32)
    raise TypeError(f"no action arrays for a {type(space).__name__} space")


def action_bounds(space: spaces.Space) -> tuple[np.ndarray, np.ndarray]:
    """Inclusive lowest and highest action, of the space's shape."""
    if isinstance(space, spaces.Box):
        return space.low, space.high
    if isinstance(space, spaces.Discrete):
        if space.start != 0:
            raise ValueError(f"a Discrete action space must start at 0, got {space}")
        return np.array(0, np.int32), np.array(space.n - 1, np.int32)
    if isinstance(space, spaces.MultiDiscrete):
        if space.start.any():
            raise ValueError(f"a MultiDiscrete action space must start at 0, got {space}")
        return np.zeros(space.shape, np.int32), (space.nvec - 1).astype(np.int32)
    if isinstance(space, spaces.MultiBinary):
        return np.zeros(space.shape, np.int32), np.ones(space.shape, np.int32)
    raise TypeError(f"no action bounds for a {type(space).__name__} space")
