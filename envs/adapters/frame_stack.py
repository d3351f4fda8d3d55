"""Frame stacking for functional environments: the last k observations as one."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from gymnasium.vector.utils import batch_space
from jax import lax

from envs.adapters.vectorize import where_rows
from envs.core import Array, Decision, EnvSpec, Observation, Outcome, VectorFunctionalEnv


class StackedState(NamedTuple):
    inner: Any  # the stacked environment's own state
    frames: Observation  # [N(, A), k, ...], the oldest first; the newest is the observation now


def stacked_spec(spec: EnvSpec, k: int) -> EnvSpec:
    """The spec with k observations in one, marked by the parameter ``frame_stack``.

    The canonical state stays that of the environment inside: frames are not part of it.
    """
    if "frame_stack" in spec.parameters:
        raise ValueError(f"{spec.name} is stacked already: {dict(spec.parameters)}")
    return dataclasses.replace(
        spec,
        observation_space=batch_space(spec.observation_space, k),
        parameters={**spec.parameters, "frame_stack": k},
    )


class FrameStack(VectorFunctionalEnv):
    """Observations ``[N(,A), ...]`` become ``[N(,A), k, ...]``, the newest last.

    An episode begins with k copies of its first observation. ``Outcome.final`` holds the ended
    episode's stack. ``state_from_fields`` knows one moment only, so it fills the stack with that
    moment's observation; snapshots of the whole state are exact.

    Args:
        k: number of observations, at least 1.

    Raises:
        ValueError: k is not a positive integer, or the environment is stacked already.
    """

    def __init__(self, env: VectorFunctionalEnv, k: int) -> None:
        try:
            self.k = operator.index(k)
        except TypeError:
            raise ValueError(f"k must be a positive integer, got {k!r}") from None
        if self.k < 1:
            raise ValueError(f"k must be a positive integer, got {k}")
        self.env = env
        self.spec = stacked_spec(env.spec, self.k)
        self.num_envs = env.num_envs
        self._axis = len(env.spec.rows(env.num_envs))

    @property
    def implementation(self) -> str:
        return f"{super().implementation}({self.env.implementation})"

    def reset(self, reset_noise: Any) -> tuple[StackedState, Decision]:
        inner, decision = self.env.reset(reset_noise)
        return self._open(inner, decision, self._fill(decision.observation))

    def step(
        self, state: StackedState, action: Array, step_noise: Any, reset_noise: Any
    ) -> tuple[StackedState, Decision, Outcome]:
        inner, decision, outcome = self.env.step(state.inner, action, step_noise, reset_noise)
        ended = outcome.ended
        if outcome.final is not None:
            stack = self._push(state.frames, outcome.final.observation)
            outcome = outcome._replace(final=outcome.final._replace(observation=stack))
        # `final` is unspecified in rows that go on, so those are pushed from the decision.
        frames = where_rows(
            ended,
            self._fill(decision.observation),
            self._push(state.frames, decision.observation),
        )
        return (*self._open(inner, decision, frames), outcome)

    def observe(self, state: StackedState) -> Decision:
        return self.env.observe(state.inner)._replace(observation=state.frames)

    def state_fields(self, state: StackedState) -> dict[str, Array]:
        return self.env.state_fields(state.inner)

    def state_from_fields(self, fields: Mapping[str, Array]) -> StackedState:
        inner = self.env.state_from_fields(fields)
        return StackedState(inner, self._fill(self.env.observe(inner).observation))

    @staticmethod
    def _open(inner: Any, decision: Decision, frames: Observation) -> tuple[StackedState, Decision]:
        return StackedState(inner, frames), decision._replace(observation=frames)

    def _fill(self, observation: Observation) -> Observation:
        def repeat(x: Array) -> Array:
            return jnp.repeat(jnp.expand_dims(x, self._axis), self.k, axis=self._axis)

        return jax.tree.map(repeat, observation)

    def _push(self, frames: Observation, observation: Observation) -> Observation:
        def push(old: Array, new: Array) -> Array:
            kept = lax.slice_in_dim(old, 1, self.k, axis=self._axis)
            return jnp.concatenate([kept, jnp.expand_dims(new, self._axis)], self._axis)

        return jax.tree.map(push, frames, observation)
