"""BatchedEnv: the NumPy face of the contract, for clients that own a loop."""

from __future__ import annotations

import abc
from typing import Any

import numpy as np

from envs.checks import check_actions, check_num_envs, check_seed
from envs.core import Capabilities, Decision, EnvSpec, LifecycleError, Outcome


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
        self._decision = self._reset(check_seed(seed))
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
