"""The contract between environments, trainers and verification.

Every environment is a deterministic function of (state, action, noise). ``N`` is the number of
environments, ``A`` the number of agents; the ``A`` axis is absent where ``num_agents == 1``.
Arrays are JAX arrays in functional environments and NumPy arrays everywhere else.
docs/contract.md explains the reasons; tests/conformance holds every backend to it.
"""

from __future__ import annotations

import abc
import hashlib
import json
from collections import namedtuple
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from envs.spaces import space_from_json, space_to_json

Array = Any  # a NumPy or JAX array
Observation = Any  # one array, or a dict of arrays where the observation space is a Dict


class ActionError(ValueError):
    """An action has the wrong shape or dtype, lies outside the space, or is not legal."""


class LifecycleError(RuntimeError):
    """``step`` before ``reset``, or any use after ``close``."""


class MissingDependency(ImportError):
    """A backend needs something that is not installed; the message names the command that helps."""


# --- what an environment is -----------------------------------------------------------------


@dataclass(frozen=True)
class Tolerance:
    """How far a float field of a port may be from the reference after one step.

    A row passes when every entry satisfies ``|port - reference| <= abs + rel * (1 + max|row|)``
    with the maximum over the reference's row; a field passes when at least ``pass_rate`` of the
    rows do. The default is exact equality.
    """

    abs: float = 0.0
    rel: float = 0.0
    pass_rate: float = 1.0

    @property
    def exact(self) -> bool:
        return self.abs == 0.0 and self.rel == 0.0


EXACT = Tolerance()


@dataclass(frozen=True)
class Field:
    """One canonical state field of one environment: what get_state and set_state speak.

    Args:
        shape: without the environment axis.
        dtype: NumPy name; the narrowest one that every backend holds exactly.
        tolerance: after one step from equal states.
        low, high: inclusive domain for synthesising states.
        special: values worth trying because a rule has an edge there.
    """

    shape: tuple[int, ...]
    dtype: str
    tolerance: Tolerance = EXACT
    low: float | None = None
    high: float | None = None
    special: tuple[float, ...] = ()


NOISE_DISTRIBUTIONS = ("uniform", "integers", "normal", "bits")


@dataclass(frozen=True)
class NoiseSite:
    """One place where an environment draws.

    ``uniform`` is float32 in [low, high), ``integers`` int32 in [low, high) with integer bounds,
    ``normal`` a float32 standard normal, ``bits`` raw uint32 words (a generator's seed).
    """

    distribution: str
    shape: tuple[int, ...] = ()
    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        if self.distribution not in NOISE_DISTRIBUTIONS:
            raise ValueError(
                f"unknown noise distribution {self.distribution!r}; "
                f"choose from {', '.join(NOISE_DISTRIBUTIONS)}"
            )
        if self.distribution in ("uniform", "integers") and not self.low < self.high:
            raise ValueError(f"noise site needs low < high, got [{self.low}, {self.high})")
        if self.distribution == "integers":
            whole = float(self.low).is_integer() and float(self.high).is_integer()
            if not (whole and self.low >= -(2**31) and self.high < 2**31):
                raise ValueError(f"integers need int32 bounds, got [{self.low}, {self.high})")

    @property
    def dtype(self) -> np.dtype:
        names = {"integers": "int32", "bits": "uint32"}
        return np.dtype(names.get(self.distribution, "float32"))


@dataclass(frozen=True)
class Metric:
    """A figure about a finished episode, delivered in ``Outcome.metrics``."""

    dtype: str
    meaning: str
    per_agent: bool = False


@dataclass(frozen=True)
class Ports:
    """Backends in the order in which ``backend=generated`` prefers them, by device."""

    cpu: tuple[str, ...] = ("jax",)
    gpu: tuple[str, ...] = ("jax",)


@cache
def noise_record(kind: str, names: tuple[str, ...]) -> type:
    """The NamedTuple type with one field per draw site; the same type for the same names."""
    return namedtuple(kind, names)


def _frozen(mapping: Mapping) -> Mapping:
    return MappingProxyType(dict(mapping))


@dataclass(frozen=True, eq=False)
class EnvSpec:
    """Everything that a client needs to know of an environment, and that backends must obey.

    Args:
        parameters: rule parameters (``frameskip=8``); part of the identity.
        privileged_space: of ``Decision.privileged``, for asymmetric critics only.
        truncates: whether episodes can end by a limit. The environment counts
            ``max_episode_steps`` itself; nothing outside does.
        events: names of the rules that can fire, in the order of ``Outcome.events``.
        reset_noise: draw sites of a reset; never empty.
        step_noise: draw sites of a step; often empty.
        state: canonical fields.
        ports: generated backends in order of preference.

    Two specs are equal, and hash alike, when their ``digest`` is the same.
    """

    name: str
    version: str
    observation_space: gymnasium.Space
    action_space: gymnasium.Space
    reset_noise: Mapping[str, NoiseSite]
    state: Mapping[str, Field]
    step_noise: Mapping[str, NoiseSite] = field(default_factory=dict)
    parameters: Mapping[str, Any] = field(default_factory=dict)
    privileged_space: gymnasium.Space | None = None
    num_agents: int = 1
    has_legal_actions: bool = False
    truncates: bool = False
    max_episode_steps: int | None = None
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    events: tuple[str, ...] = ()
    ports: Ports = Ports()

    def __post_init__(self) -> None:
        for name in ("reset_noise", "step_noise", "state", "parameters", "metrics"):
            object.__setattr__(self, name, _frozen(getattr(self, name)))
        if not self.reset_noise:
            raise ValueError(f"{self.name}: reset_noise is empty; take at least a seed there")
        if self.max_episode_steps is not None and not self.truncates:
            raise ValueError(f"{self.name}: max_episode_steps is set but truncates is False")
        if self.has_legal_actions and not isinstance(self.action_space, gymnasium.spaces.Discrete):
            raise ValueError(f"{self.name}: legal_actions need a Discrete action space")

    @property
    def ResetNoise(self) -> type:  # noqa: N802 - it is a type
        """NamedTuple type of one reset's draws."""
        return noise_record("ResetNoise", tuple(self.reset_noise))

    @property
    def StepNoise(self) -> type:  # noqa: N802 - it is a type
        """NamedTuple type of one step's draws."""
        return noise_record("StepNoise", tuple(self.step_noise))

    def rows(self, num_envs: int) -> tuple[int, ...]:
        """Leading axes of everything that belongs to a seat: ``(N,)`` or ``(N, A)``."""
        return (num_envs,) if self.num_agents == 1 else (num_envs, self.num_agents)

    def to_json(self) -> dict[str, Any]:
        """A JSON description from which :meth:`from_json` builds an equal spec."""

        def plain(values: Mapping[str, Any]) -> dict[str, Any]:
            return {key: dict(vars(value)) for key, value in values.items()}

        state = {k: dict(vars(f), tolerance=dict(vars(f.tolerance))) for k, f in self.state.items()}
        privileged = self.privileged_space
        return dict(
            name=self.name,
            version=self.version,
            parameters=dict(self.parameters),
            observation_space=space_to_json(self.observation_space),
            action_space=space_to_json(self.action_space),
            privileged_space=None if privileged is None else space_to_json(privileged),
            num_agents=self.num_agents,
            has_legal_actions=self.has_legal_actions,
            truncates=self.truncates,
            max_episode_steps=self.max_episode_steps,
            metrics=plain(self.metrics),
            events=list(self.events),
            reset_noise=plain(self.reset_noise),
            step_noise=plain(self.step_noise),
            state=state,
            ports=dict(vars(self.ports)),
        )

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> EnvSpec:
        """Inverse of :meth:`to_json`; raises KeyError or TypeError on a malformed description."""
        d = dict(data)
        for key in ("observation_space", "action_space", "privileged_space"):
            d[key] = None if d[key] is None else space_from_json(d[key])
        for key in ("reset_noise", "step_noise"):
            d[key] = {k: NoiseSite(**dict(v, shape=tuple(v["shape"]))) for k, v in d[key].items()}
        d["metrics"] = {k: Metric(**v) for k, v in d["metrics"].items()}
        d["state"] = {
            k: Field(
                **dict(
                    v,
                    shape=tuple(v["shape"]),
                    special=tuple(v["special"]),
                    tolerance=Tolerance(**v["tolerance"]),
                )
            )
            for k, v in d["state"].items()
        }
        d["events"] = tuple(d["events"])
        d["ports"] = Ports(**{k: tuple(v) for k, v in d["ports"].items()})
        return cls(**d)

    @cached_property
    def digest(self) -> str:
        """SHA-256 over the JSON description, hexadecimal: the identity of the contract."""
        text = json.dumps(self.to_json(), sort_keys=True, allow_nan=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EnvSpec) and self.digest == other.digest

    def __hash__(self) -> int:
        return int(self.digest[:15], 16)

    def __reduce__(self) -> tuple[Any, ...]:
        return EnvSpec.from_json, (self.to_json(),)  # mapping proxies can't be pickled or copied


# --- what passes between an environment and its clients --------------------------------------


class Decision(NamedTuple):
    """What is known when somebody must act; a function of the state alone.

    ``observation [N(,A), ...]``; ``acting [N(,A)]`` bool; ``legal_actions [N(,A), n]`` bool, or
    None where the spec has none; ``privileged [N, ...]``, or None. A row that is not acting has a
    valid observation, exactly action 0 legal, and any action of it is ignored.
    """

    observation: Observation
    acting: Array
    legal_actions: Array | None = None
    privileged: Array | None = None


class Outcome(NamedTuple):
    """What an action led to.

    ``reward [N(,A)]`` float32; ``terminated [N]`` by the rules and ``truncated [N]`` by a limit,
    never both; ``final`` the ended episode's last Decision, before the reset; ``metrics`` name ->
    ``[N]`` or ``[N, A]``; ``invalid [N(,A)]`` bool; ``events [N, E]`` bool. ``final`` and
    ``metrics`` are unspecified where no episode ended: select with ``where``, never multiply.
    ``final`` and ``events`` are None where the backend's capabilities exclude them.
    """

    reward: Array
    terminated: Array
    truncated: Array
    metrics: Mapping[str, Array]
    invalid: Array
    final: Decision | None = None
    events: Array | None = None

    @property
    def ended(self) -> Array:
        """``[N]`` bool: rows whose episode is over, either way."""
        return self.terminated | self.truncated


@dataclass(frozen=True)
class Capabilities:
    """What a backend can do; what it can't is reported, never guessed."""

    final_on_termination: bool = True
    """``Outcome.final`` holds for terminations too (for truncations it always must)."""
    set_state: bool = True
    """``get_state`` and ``set_state`` in canonical fields."""
    snapshot: bool = True
    """``snapshot`` and ``restore`` are exact, generators included."""
    events: bool = True
    """``Outcome.events`` is filled in."""
    independent_rows: bool = True
    """A row's future depends on its own state, actions and noise only (no shared generator)."""


# --- interfaces -------------------------------------------------------------------------------


class FunctionalEnv(abc.ABC):
    """One instance, pure: what the author of a JAX port writes.

    States are pytrees. ``state_fields`` and ``state_from_fields`` translate to the canonical
    fields of the spec; the defaults serve a NamedTuple state whose fields are those.
    """

    State: Any  # the NamedTuple type of a state, where the defaults below are used

    def __init__(self, spec: EnvSpec) -> None:
        self.spec = spec

    @abc.abstractmethod
    def init(self, reset_noise: Any) -> Any:
        """The first state of an episode."""

    @abc.abstractmethod
    def observe(self, state: Any) -> Decision:
        """The decision at a state, without the N axis."""

    @abc.abstractmethod
    def advance(self, state: Any, action: Array, step_noise: Any) -> tuple[Any, Outcome]:
        """One step without any reset; ``final`` and ``invalid`` are filled in by vectorize."""

    def state_fields(self, state: Any) -> dict[str, Array]:
        """Canonical fields of a state (one instance or a batch)."""
        return {name: getattr(state, name) for name in self.spec.state}

    def state_from_fields(self, fields: Mapping[str, Array]) -> Any:
        """Inverse of :meth:`state_fields`."""
        return self.State(**{name: fields[name] for name in self.spec.state})


class VectorFunctionalEnv(abc.ABC):
    """N instances, pure, auto-reset inside: what trainers see.

    Made from a FunctionalEnv by ``envs.adapters.vectorize``, or implemented directly by a native
    port. The state given to ``step`` must not be read afterwards where it was donated.
    """

    spec: EnvSpec
    num_envs: int

    @property
    def implementation(self) -> str:
        """Names the code behind this environment; snapshots are valid for one implementation."""
        return f"{type(self).__module__}.{type(self).__qualname__}"

    @abc.abstractmethod
    def reset(self, reset_noise: Any) -> tuple[Any, Decision]:
        """New episodes in all rows."""

    @abc.abstractmethod
    def step(
        self, state: Any, action: Array, step_noise: Any, reset_noise: Any
    ) -> tuple[Any, Decision, Outcome]:
        """Advance, reset the rows that ended (from ``reset_noise``), then observe."""

    @abc.abstractmethod
    def observe(self, state: Any) -> Decision:
        """The decision at a batch of states."""

    @abc.abstractmethod
    def state_fields(self, state: Any) -> dict[str, Array]:
        """Canonical fields, each ``[N, ...]``."""

    @abc.abstractmethod
    def state_from_fields(self, fields: Mapping[str, Array]) -> Any:
        """Inverse of :meth:`state_fields`."""


@dataclass(frozen=True)
class Backend:
    """How a room offers one backend: "module:attribute" names, imported only when used.

    ``functional`` names a FunctionalEnv class called with (spec); ``vector`` a callable
    (spec, num_envs) -> VectorFunctionalEnv; ``batched`` and ``simulator`` callables
    (spec, num_envs) giving a BatchedEnv and a Simulator. A functional or vector entry brings the
    other two faces through the adapters.
    """

    functional: str | None = None
    vector: str | None = None
    batched: str | None = None
    simulator: str | None = None
