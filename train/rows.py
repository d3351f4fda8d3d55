"""Environments and agents as rows: ``R = N * A``. For JAX and NumPy arrays alike."""

from __future__ import annotations

from typing import Any

import jax

from envs.core import Array, Decision, EnvSpec


def to_rows(spec: EnvSpec, decision: Decision) -> tuple[Array, Array | None, Array]:
    """Observation, legal actions and acting with the agent axis merged: ``[R, ...]``."""
    if spec.num_agents > 1:
        decision = jax.tree.map(
            lambda x: x.reshape(-1, *x.shape[2:]), decision._replace(privileged=None)
        )
    return decision.observation, decision.legal_actions, decision.acting


def per_row(spec: EnvSpec, x: Array) -> Array:
    """``[N]`` or ``[N, A]`` -> ``[R]``: what concerns an environment concerns all its rows."""
    if spec.num_agents == 1:
        return x
    return x.repeat(spec.num_agents) if x.ndim == 1 else x.reshape(-1)


def from_rows(spec: EnvSpec, action: Array) -> Any:
    """Actions ``[R, ...]`` as the environment takes them, ``[N(,A), ...]``."""
    return action.reshape(*spec.rows(action.shape[0] // spec.num_agents), *action.shape[1:])
