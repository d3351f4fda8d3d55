"""Simulator: what verification sees of any backend. NumPy in and out, all noise from outside."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any

import numpy as np

from envs.checks import check_actions, check_fields, check_noise, check_num_envs
from envs.core import Capabilities, Decision, EnvSpec, LifecycleError, Outcome


class Simulator(abc.ABC):
    """N environments whose every draw comes from the caller.

    The public methods validate and keep the open decision; subclasses implement the underscored
    ones, receive validated input only, and return arrays that are the caller's own. A capability
    that is switched off needs no implementation.
    """

    capabilities: Capabilities = Capabilities()

    def __init__(self, spec: EnvSpec, num_envs: int) -> None:
        self.spec = spec
        self.num_envs = check_num_envs(num_envs)
        self._decision: Decision | None = None
        self._closed = False

    def reset(self, reset_noise: Any) -> Decision:
        """New episodes in all rows from ``ResetNoise`` arrays ``[N, ...]``.

        Raises:
            ValueError: noise of the wrong names, shapes, dtypes, or outside its domain.
        """
        self._require_open()
        self._decision = self._reset(self._reset_noise(reset_noise))
        return self._decision

    def step(self, actions: Any, step_noise: Any, reset_noise: Any) -> tuple[Decision, Outcome]:
        """The signature of the vector step, with the state kept inside.

        Raises:
            LifecycleError: no state yet, or after ``close``.
            ActionError, ValueError: bad actions or noise; nothing was stepped then.
        """
        checked = check_actions(self.spec, actions, self.num_envs, self._require_decision())
        step_noise = check_noise(
            self.spec.StepNoise, self.spec.step_noise, step_noise, self.num_envs
        )
        self._decision, outcome = self._step(checked, step_noise, self._reset_noise(reset_noise))
        return self._decision, outcome

    def get_state(self) -> dict[str, np.ndarray]:
        """Canonical fields of all rows, ``[N, ...]`` each."""
        self._require_decision()
        fields = self._get_state()
        return {name: np.array(fields[name], f.dtype) for name, f in self.spec.state.items()}

    def set_state(self, fields: Mapping[str, np.ndarray]) -> Decision:
        """Continue from these canonical fields in all rows; returns the decision there.

        Raises:
            ValueError: missing or unknown fields, wrong shapes or dtypes.
        """
        self._require_open()
        self._decision = self._set_state(check_fields(self.spec, fields, self.num_envs))
        return self._decision

    def snapshot(self) -> bytes:
        """Everything needed to continue exactly, opaque."""
        self._require_decision()
        return self._snapshot()

    def restore(self, data: bytes) -> Decision:
        """Continue from a snapshot of the same backend, spec and num_envs.

        Raises:
            ValueError: the snapshot is of another kind, or damaged.
        """
        self._require_open()
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise ValueError(f"{self.spec.name}: a snapshot is bytes, not {type(data).__name__}")
        self._decision = self._restore(bytes(data))
        return self._decision

    def taps(self) -> dict[str, np.ndarray]:
        """Named values inside the last step, ``[N, ...]`` each, for localising a difference."""
        return {}

    def close(self) -> None:
        """Release processes and native memory; safe to call again."""
        if not self._closed:
            self._closed = True
            self._close()

    @abc.abstractmethod
    def _reset(self, reset_noise: Any) -> Decision: ...

    @abc.abstractmethod
    def _step(
        self, actions: np.ndarray, step_noise: Any, reset_noise: Any
    ) -> tuple[Decision, Outcome]: ...

    def _get_state(self) -> Mapping[str, np.ndarray]:
        raise self._incapable("set_state")

    def _set_state(self, fields: dict[str, np.ndarray]) -> Decision:
        raise self._incapable("set_state")

    def _snapshot(self) -> bytes:
        raise self._incapable("snapshot")

    def _restore(self, data: bytes) -> Decision:
        raise self._incapable("snapshot")

    def _close(self) -> None:
        pass

    def _incapable(self, capability: str) -> LifecycleError:
        return LifecycleError(f"{self.spec.name}: this backend declares {capability}=False")

    def _reset_noise(self, noise: Any) -> Any:
        return check_noise(self.spec.ResetNoise, self.spec.reset_noise, noise, self.num_envs)

    def _require_open(self) -> None:
        if self._closed:
            raise LifecycleError(f"{self.spec.name}: used after close")

    def _require_decision(self) -> Decision:
        self._require_open()
        if self._decision is None:
            raise LifecycleError(f"{self.spec.name}: no state yet; call reset or set_state first")
        return self._decision

    def __enter__(self) -> Simulator:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
