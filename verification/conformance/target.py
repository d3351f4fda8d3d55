"""What is checked: a backend behind one face of the contract."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from envs.core import Backend, EnvSpec
from envs.registry import build, is_functional, list_backends, list_environments, make

FACES = ("functional", "batched", "simulator")


@dataclass(frozen=True)
class Target:
    """A backend behind one face.

    Args:
        name: for the report, "cartpole/jax".
        face: "functional" (VectorFunctionalEnv), "batched" (BatchedEnv), "simulator" (Simulator).
        make: a new environment with that many rows.
    """

    name: str
    face: str
    make: Callable[[int], Any]

    def __post_init__(self) -> None:
        if self.face not in FACES:
            raise ValueError(f"unknown face {self.face!r}; choose from {', '.join(FACES)}")

    def __str__(self) -> str:
        return f"{self.name}/{self.face}"


@dataclass(frozen=True)
class Budget:
    """How much is played; more sees rarer things.

    Args:
        rows: environments in a batch, at least 4.
        steps: of the play that most checks are about; longer where an episode's limit is near.
        search_steps: at most, to see episodes end and rare draws used.
        endings: episodes that should have ended.
        synced_steps: single steps from equal states.
        eager_steps: steps without jit, which are slow.
    """

    rows: int = 6
    steps: int = 48
    search_steps: int = 2000
    endings: int = 4
    synced_steps: int = 12
    eager_steps: int = 3

    def __post_init__(self) -> None:
        if self.rows < 4:
            raise ValueError(f"rows must be at least 4, got {self.rows}")
        for name, value in vars(self).items():
            if value < 1:
                raise ValueError(f"{name} must be positive, got {value}")


def registered_targets(environment: str | None = None, **parameters: Any) -> list[Target]:
    """Every backend behind every face that it has; of all environments, or of one."""
    names = list_environments() if environment is None else [environment]
    found = []
    for name in names:
        for backend in list_backends(name):
            faces = FACES if is_functional(name, backend) else FACES[1:]
            for face in faces:
                maker = _registered(name, backend, face, parameters)
                found.append(Target(f"{name}/{backend}", face, maker))
    return found


def _registered(name: str, backend: str, face: str, parameters: Any) -> Callable[[int], Any]:
    return lambda num_envs: make(name, backend, num_envs, interface=face, **parameters)


def room_targets(room: ModuleType, **parameters: Any) -> list[Target]:
    """The same for a module that has ``make_spec`` and ``BACKENDS`` and isn't registered."""
    spec: EnvSpec = room.make_spec(**parameters)
    found = []
    for name, entry in room.BACKENDS.items():
        for face in FACES:
            if face != "functional" or entry.functional or entry.vector:
                label = f"{spec.name}/{name}"
                found.append(Target(label, face, _of_room(entry, spec, face, label)))
    return found


def _of_room(entry: Backend, spec: EnvSpec, face: str, label: str) -> Callable[[int], Any]:
    return lambda num_envs: build(entry, spec, num_envs, face, label)
