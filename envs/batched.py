"""BatchedEnv, the NumPy face of the contract, and the check of actions that guards it."""

from __future__ import annotations

import abc
import operator
from typing import Any

import numpy as np
from gymnasium import spaces

from envs.core import ActionError, Capabilities, Decision, EnvSpec, LifecycleError, Outcome
from envs.spaces import action_bounds, action_dtype


def check_actions(
    spec: EnvSpec, actions: Any, num_envs: int, decision: Decision | None = None
) -> np.ndarray:
    """The actions as an array ``[N(,A), ...]`` of the space's dtype, or an ActionError.

    Args:
        decision: the open decision; with it, legality is checked too, and rows that are not
            acting may send anything of the right shape and dtype.

    Raises:
        ActionError: wrong shape or dtype, NaN, outside the space, or illegal; the message names
            the first offending row.
    """
    space = spec.action_space
    dtype = action_dtype(space)
    array = np.asarray(actions)
    expected = (*spec.rows(num_envs), *space.shape)
    if array.shape != expected:
        raise ActionError(f"{spec.name}: actions have shape {array.shape}, expected {expected}")
    if dtype.kind == "i" and array.dtype.kind not in "iu":
        raise ActionError(f"{spec.name}: actions have dtype {array.dtype}, expected an integer one")
    if dtype.kind == "f" and array.dtype.kind not in "iuf":
        raise ActionError(f"{spec.name}: actions have dtype {array.dtype}, expected {dtype}")
    low, high = action_bounds(space)
    if dtype.kind == "i" and low.ndim == 0:  # the common case, two reductions and no temporaries
        legal = array.size == 0 or (array.min() >= low and array.max() <= high)
        bad = None if legal else (array < low) | (array > high)
    else:
        bad = ~((array >= low) & (array <= high))  # also true for NaN
        bad = bad.reshape(*spec.rows(num_envs), -1).any(-1)
        bad = bad if bad.any() else None
    acting = None if decision is None else np.asarray(decision.acting)
    if bad is not None and acting is not None:
        bad = bad & acting
    if bad is not None and bad.any():
        row = tuple(int(i) for i in np.argwhere(bad)[0])
        raise ActionError(
            f"{spec.name}: action {array[row]} of row {_row_name(row)} is outside {space}"
        )
    array = array.astype(dtype, copy=False)
    if spec.has_legal_actions and decision is not None:
        assert isinstance(space, spaces.Discrete) and acting is not None
        index = np.clip(array, 0, space.n - 1)[..., None]
        refused = acting & ~np.take_along_axis(np.asarray(decision.legal_actions), index, -1)[..., 0]
        if refused.any():
            row = tuple(int(i) for i in np.argwhere(refused)[0])
            legal_here = np.flatnonzero(np.asarray(decision.legal_actions)[row]).tolist()
            raise ActionError(
                f"{spec.name}: action {array[row]} of row {_row_name(row)} is not legal; "
                f"legal there: {legal_here}"
            )
        array = np.where(acting, array, 0).astype(dtype)
    return array


def _row_name(row: tuple[int, ...]) -> str:
    return str(row[0]) if len(row) == 1 else str(row)


def check_num_envs(num_envs: Any) -> int:
    """A positive int, or ValueError."""
    try:
        value = operator.index(num_envs)
    except TypeError:
        raise ValueError(f"num_envs must be a positive integer, got {num_envs!r}") from None
    if value < 1:
        raise ValueError(f"num_envs must be a positive integer, got {value}")
    return value


class BatchedEnv(abc.ABC):
    """N environments behind NumPy arrays, auto-reset inside.

    Subclasses implement ``_reset``, ``_step`` and, where there is something to release,
    ``_close``; they receive validated input only and may return their own buffers.

    Args:
        copy: hand out copies (default), or read-only views that are valid until the next call.
    """

    capabilities: Capabilities = Capabilities()

    def __init__(self, spec: EnvSpec, num_envs: int, *, copy: bool = True) -> None:
        self.spec = spec
        self.num_envs = check_num_envs(num_envs)
        self.copy = copy
        self._decision: Decision | None = None
        self._closed = False

    def reset(self, seed: int) -> Decision:
        """New episodes in all rows; the same seed gives the same episodes.

        Raises:
            LifecycleError: after ``close``.
            ValueError: the seed is not an integer in [0, 2**32).
        """
        self._require_open()
        try:
            seed = operator.index(seed)
        except TypeError:
            raise ValueError(f"seed must be an integer in [0, 2**32), got {seed!r}") from None
        if not 0 <= seed < 2**32:
            raise ValueError(f"seed must be an integer in [0, 2**32), got {seed}")
        self._decision = self._reset(seed)
        return self._hand_out(self._decision)

    def step(self, actions: Any) -> tuple[Decision, Outcome]:
        """Advance all rows, reset those that ended, and observe.

        Raises:
            LifecycleError: before ``reset`` or after ``close``.
            ActionError: see :func:`check_actions`; nothing was stepped then.
        """
        self._require_open()
        if self._decision is None:
            raise LifecycleError(f"{self.spec.name}: step before reset; call reset(seed) first")
        checked = check_actions(self.spec, actions, self.num_envs, self._decision)
        self._decision, outcome = self._step(checked)
        return self._hand_out(self._decision), self._hand_out(outcome)

    def close(self) -> None:
        """Release what the environment holds; safe to call again."""
        if not self._closed:
            self._closed = True
            self._close()

    @abc.abstractmethod
    def _reset(self, seed: int) -> Decision: ...

    @abc.abstractmethod
    def _step(self, actions: np.ndarray) -> tuple[Decision, Outcome]: ...

    def _close(self) -> None:
        pass

    def _require_open(self) -> None:
        if self._closed:
            raise LifecycleError(f"{self.spec.name}: used after close")

    def _hand_out(self, value: Any) -> Any:
        """Copies, or read-only views, of every array in a record."""
        if value is None:
            return None
        if isinstance(value, np.ndarray):
            if self.copy:
                return value.copy()
            view = value.view()
            view.flags.writeable = False
            return view
        if isinstance(value, dict):
            return {key: self._hand_out(item) for key, item in value.items()}
        return type(value)(*(self._hand_out(item) for item in value))

    def __enter__(self) -> BatchedEnv:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
