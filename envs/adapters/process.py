"""A backend in another process behind the faces of the contract.

The serving side is ``python -m envs.adapters.process_server``, or any program that speaks the
same few messages (see there) in the wire form of ``envs.wire``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from envs.adapters.child import DEFAULT_TIMEOUTS, BackendProcessError, Child, Timeouts
from envs.batched import BatchedEnv
from envs.core import Capabilities, Decision, EnvSpec, Outcome
from envs.simulator import Simulator
from envs.wire import DEFAULT_LIMITS, Limits, known_records


def server_command(factory: str, num_envs: int, **parameters: Any) -> list[str]:
    """The command that serves ``factory(num_envs=..., **parameters)``.

    Args:
        factory: "module:attribute", giving a Simulator or a BatchedEnv; ``"envs:make"`` with
            ``name=..., backend=..., interface=...`` serves a registered backend.
        parameters: anything that JSON holds.
    """
    return [
        *(sys.executable, "-m", "envs.adapters.process_server", factory),
        *("--num-envs", str(num_envs), "--parameters", json.dumps(parameters)),
    ]


def _connect(face: str, expected: EnvSpec | None, child: Child) -> dict[str, Any]:
    """The child's greeting as ``spec, num_envs, capabilities``; closes the child on a mismatch."""
    try:
        greeting = child.greeting()
        try:
            served, spec = greeting["face"], EnvSpec.from_json(json.loads(greeting["spec"]))
            num_envs = int(greeting["num_envs"])
            capabilities = Capabilities(**greeting["capabilities"])
        except Exception as error:  # spaces raise many kinds, MemoryError among them
            raise BackendProcessError(f"the process's greeting is unreadable: {error!r}") from error
        if served != face:
            raise ValueError(f"{spec.name}: the process serves a {served}, not a {face}")
        if expected is not None and spec != expected:
            raise ValueError(
                f"{expected.name}: the process serves another contract; "
                f"different: {', '.join(_differing(expected, spec))}"
            )
    except BaseException:
        child.close()
        raise
    child.records = known_records(spec)
    return dict(spec=spec, num_envs=num_envs, capabilities=capabilities)


def _differing(a: EnvSpec, b: EnvSpec) -> list[str]:
    left, right = (json.loads(json.dumps(spec.to_json())) for spec in (a, b))
    return [key for key in left if left[key] != right[key]]


def _expect(kind: type, value: Any, call: str) -> Any:
    if not isinstance(value, kind):
        raise BackendProcessError(
            f"the process answered {call} with a {type(value).__name__}, not a {kind.__name__}"
        )
    return value


def _decision_and_outcome(value: Any) -> tuple[Decision, Outcome]:
    if not isinstance(value, list) or len(value) != 2:
        raise BackendProcessError("the process answered step without a decision and an outcome")
    return _expect(Decision, value[0], "step"), _expect(Outcome, value[1], "step")


class ProcessSimulator(Simulator):
    """A Simulator served by another process; spec, num_envs and capabilities are the child's.

    Args:
        command: see :func:`server_command`.
        spec: the contract that is expected; another one is refused.
        cwd, environment, timeouts, limits: see :class:`envs.adapters.child.Child`.

    Raises:
        BackendProcessError: the process cannot start, died, or does not speak the wire form.
        ValueError: it serves another face or another contract.
        Exception: whatever the factory raised there.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        spec: EnvSpec | None = None,
        cwd: str | Path | None = None,
        environment: Mapping[str, str] | None = None,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self.child = Child(
            command, cwd=cwd, environment=environment, timeouts=timeouts, limits=limits
        )
        served = _connect("simulator", spec, self.child)
        super().__init__(served["spec"], served["num_envs"])
        self.capabilities = served["capabilities"]

    def _reset(self, reset_noise: Any) -> Decision:
        return _expect(Decision, self.child.call("reset", reset_noise), "reset")

    def _step(
        self, actions: np.ndarray, step_noise: Any, reset_noise: Any
    ) -> tuple[Decision, Outcome]:
        return _decision_and_outcome(self.child.call("step", actions, step_noise, reset_noise))

    def _get_state(self) -> dict[str, np.ndarray]:
        return _expect(dict, self.child.call("get_state"), "get_state")

    def _set_state(self, fields: dict[str, np.ndarray]) -> Decision:
        return _expect(Decision, self.child.call("set_state", fields), "set_state")

    def _snapshot(self) -> bytes:
        return _expect(bytes, self.child.call("snapshot"), "snapshot")

    def _restore(self, data: bytes) -> Decision:
        return _expect(Decision, self.child.call("restore", data), "restore")

    def taps(self) -> dict[str, np.ndarray]:
        self._require_open()
        return _expect(dict, self.child.call("taps"), "taps")

    def _close(self) -> None:
        self.child.close()


class ProcessBatched(BatchedEnv):
    """A BatchedEnv served by another process; arguments and errors as in ProcessSimulator."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        spec: EnvSpec | None = None,
        cwd: str | Path | None = None,
        environment: Mapping[str, str] | None = None,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
        limits: Limits = DEFAULT_LIMITS,
        copy: bool = True,
    ) -> None:
        self.child = Child(
            command, cwd=cwd, environment=environment, timeouts=timeouts, limits=limits
        )
        served = _connect("batched", spec, self.child)
        super().__init__(served["spec"], served["num_envs"], copy=copy)
        self.capabilities = served["capabilities"]

    def _reset(self, seed: int) -> Decision:
        return _expect(Decision, self.child.call("reset", seed), "reset")

    def _step(self, actions: np.ndarray) -> tuple[Decision, Outcome]:
        return _decision_and_outcome(self.child.call("step", actions))

    def _close(self) -> None:
        self.child.close()
