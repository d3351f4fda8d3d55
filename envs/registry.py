"""The one public constructor: ``make`` swaps reference and port by a word."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from envs.checks import check_num_envs
from envs.core import Backend, EnvSpec

INTERFACES = ("native", "functional", "batched", "simulator", "gymnasium", "vector", "sb3")
_ROOMS = Path(__file__).parent


class UnknownName(ValueError):
    """An environment, backend, interface or parameter that does not exist; names the choices."""


def list_environments() -> list[str]:
    """Names of all registered environments: the folders here that hold a contract.py."""
    rooms = (m.name for m in pkgutil.iter_modules([str(_ROOMS)]) if m.ispkg)
    return sorted(name for name in rooms if (_ROOMS / name / "contract.py").exists())


def _checked_name(name: str) -> str:
    choices = list_environments()
    if name not in choices:
        raise UnknownName(f"unknown environment {name!r}; choose from {', '.join(choices)}")
    return name


def _room(name: str) -> ModuleType:
    return importlib.import_module(f"envs.{_checked_name(name)}")


def make_spec(name: str, **parameters: Any) -> EnvSpec:
    """The contract of an environment under these rule parameters.

    Raises:
        UnknownName: an unknown environment or parameter, with the choices.
    """
    return call_factory(name, _room(name).make_spec, parameters)


def call_factory(name: str, factory: Callable[..., EnvSpec], parameters: dict[str, Any]) -> EnvSpec:
    """``factory(**parameters)``, or UnknownName with the choices for a parameter it lacks."""
    choices = list(inspect.signature(factory).parameters)
    for parameter in parameters:
        if parameter not in choices:
            known = ", ".join(choices) or "none at all"
            raise UnknownName(f"{name}: unknown parameter {parameter!r}; choose from {known}")
    return factory(**parameters)


def list_backends(name: str) -> list[str]:
    """Names of an environment's backends, the reference first."""
    return list(_room(name).BACKENDS)


def resolve_backend(name: str, backend: str, device: str = "cpu") -> str:
    """The backend's own name; "generated" becomes the preferred port for the device."""
    choices = list_backends(name)
    if backend == "generated":
        ports = make_spec(name).ports
        return (ports.cpu if device == "cpu" else ports.gpu)[0]
    if backend not in choices:
        raise UnknownName(
            f"{name} has no backend {backend!r}; choose from generated, {', '.join(choices)}"
        )
    return backend


def is_functional(name: str, backend: str) -> bool:
    """Whether the (resolved) backend can run inside a jitted program."""
    entry: Backend = _room(name).BACKENDS[backend]
    return bool(entry.functional or entry.vector)


def renderer(name: str) -> Callable[[dict[str, Any], EnvSpec], Any] | None:
    """``render(fields of one row, spec) -> uint8 [H, W, 3]``, or None where there is none."""
    if not (_ROOMS / _checked_name(name) / "render.py").exists():
        return None
    return importlib.import_module(f"envs.{name}.render").render


def _load(target: str) -> Any:
    module, attribute = target.split(":")
    return getattr(importlib.import_module(module), attribute)


def make(
    name: str,
    backend: str = "generated",
    num_envs: int = 1,
    *,
    interface: str = "native",
    device: str = "cpu",
    **parameters: Any,
) -> Any:
    """An environment.

    Args:
        name: see :func:`list_environments`.
        backend: "reference", a port's name, or "generated" for the preferred port.
        interface: "native" (VectorFunctionalEnv where the backend has one, else BatchedEnv),
            "functional", "batched", "simulator", or an export: "gymnasium" (num_envs must be 1),
            "vector" (gymnasium.vector.VectorEnv), "sb3" (Stable-Baselines3 VecEnv).
        device: what "generated" is resolved for, "cpu" or "gpu".
        parameters: rule parameters of the environment (``frameskip=1``).

    Raises:
        UnknownName: a name that does not exist, with the choices.
        MissingDependency: the backend needs something that is not installed or built.
    """
    if interface not in INTERFACES:
        raise UnknownName(f"unknown interface {interface!r}; choose from {', '.join(INTERFACES)}")
    spec = make_spec(name, **parameters)
    resolved = resolve_backend(name, backend, device)
    entry = _room(name).BACKENDS[resolved]
    return build(entry, spec, check_num_envs(num_envs), interface, label=f"{name}/{resolved}")


def build(entry: Backend, spec: EnvSpec, num_envs: int, interface: str, label: str) -> Any:
    """One backend entry behind one interface; adapters are imported when they are needed."""
    if interface in ("native", "functional"):
        if entry.functional or entry.vector:
            return _functional(entry, spec, num_envs)
        if interface == "functional":
            raise UnknownName(f"{label} cannot run inside a jitted program; use interface=batched")
        return _batched(entry, spec, num_envs)
    if interface == "batched":
        return _batched(entry, spec, num_envs)
    if interface == "simulator":
        return _simulator(entry, spec, num_envs, label)
    if interface == "gymnasium":
        if num_envs != 1:
            raise ValueError(f"interface=gymnasium needs num_envs=1, got {num_envs}")
        from envs.adapters.gymnasium_env import GymnasiumEnv

        return GymnasiumEnv(_batched(entry, spec, 1))
    if interface == "vector":
        from envs.adapters.gymnasium_env import GymnasiumVectorEnv

        return GymnasiumVectorEnv(_batched(entry, spec, num_envs))
    from envs.adapters.sb3 import SB3VecEnv

    return SB3VecEnv(_batched(entry, spec, num_envs))


def _functional(entry: Backend, spec: EnvSpec, num_envs: int) -> Any:
    from envs.adapters.vectorize import vectorize

    if entry.vector:
        return _load(entry.vector)(spec, num_envs)
    assert entry.functional is not None
    return vectorize(_load(entry.functional)(spec), num_envs)


def _batched(entry: Backend, spec: EnvSpec, num_envs: int) -> Any:
    if entry.batched:
        return _load(entry.batched)(spec, num_envs)
    from envs.adapters.numpy_faces import FunctionalBatched

    return FunctionalBatched(_functional(entry, spec, num_envs))


def _simulator(entry: Backend, spec: EnvSpec, num_envs: int, label: str) -> Any:
    if entry.simulator:
        return _load(entry.simulator)(spec, num_envs)
    if not (entry.functional or entry.vector):
        raise UnknownName(f"{label} declares no simulator, so it cannot be verified step by step")
    from envs.adapters.numpy_faces import FunctionalSimulator

    return FunctionalSimulator(_functional(entry, spec, num_envs))
