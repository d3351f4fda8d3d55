"""Environments: one contract, one room per environment, references and fast twins side by side."""

from envs.core import ActionError, Capabilities, Decision, EnvSpec, MissingDependency, Outcome
from envs.external import ManifestError, load
from envs.registry import (
    UnknownName,
    is_functional,
    list_backends,
    list_environments,
    make,
    make_spec,
    renderer,
    resolve_backend,
)

__all__ = [
    "ActionError",
    "Capabilities",
    "Decision",
    "EnvSpec",
    "ManifestError",
    "MissingDependency",
    "Outcome",
    "UnknownName",
    "is_functional",
    "list_backends",
    "list_environments",
    "load",
    "make",
    "make_spec",
    "renderer",
    "resolve_backend",
]
