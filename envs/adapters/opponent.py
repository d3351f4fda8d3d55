"""A policy in the other seats: a game of several agents as an environment of one."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from envs.core import (
    Array,
    Decision,
    EnvSpec,
    NoiseSite,
    Observation,
    Outcome,
    VectorFunctionalEnv,
)

Policy = Callable[[Any, Observation, Array | None, Array], Array]
"""Pure: (params, observation ``[M, ...]``, legal_actions ``[M, n]`` or None, uniform float32
``[M]`` in [0, 1)) -> action ``[M, ...]``, with one row for each seat that it fills,
M = N * (A - 1). Rows that aren't acting are asked as well; their answer is ignored."""


class OpponentState(NamedTuple):
    inner: Any  # the game's own state
    params: Any  # the policy's parameters


def opponent_spec(spec: EnvSpec, seat: int | str, label: str) -> EnvSpec:
    """The spec of one seat: one agent, and a draw site ``opponent`` for the others' actions."""
    if "opponent" in spec.step_noise or "opponent" in spec.parameters:
        raise ValueError(f"{spec.name} has an opponent already")
    return dataclasses.replace(
        spec,
        num_agents=1,
        parameters={**spec.parameters, "opponent": label, "seat": seat},
        step_noise={
            **spec.step_noise,
            "opponent": NoiseSite("uniform", (spec.num_agents - 1,)),
        },
        metrics={k: dataclasses.replace(m, per_agent=False) for k, m in spec.metrics.items()},
    )


class Opponent(VectorFunctionalEnv):
    """The learner's seat of a game whose other seats are filled by a policy.

    Everything with an agent axis is that of the learner's seat; what belongs to the whole game
    (``privileged``, ends, events) passes through. A step of this environment is one step of the
    game: where the learner isn't acting, its row comes out as a decision that isn't acting.
    ``Outcome.invalid`` is also set where the policy's action was invalid: the run is worthless
    then as well, and nobody else would see it.

    Args:
        env: a game of two or more agents.
        policy: see :data:`Policy`.
        params: the policy's parameters after ``reset`` (constants of a jitted reset);
            :meth:`with_params` exchanges them in a state, without compiling again.
        seat: the learner's seat, one for all rows or one for each of the N rows.
        label: names the policy in the spec's parameters.

    Raises:
        ValueError: a game of one agent, or seats that don't exist.
    """

    def __init__(
        self,
        env: VectorFunctionalEnv,
        policy: Policy,
        params: Any,
        *,
        seat: int | Sequence[int] | np.ndarray = 0,
        label: str = "policy",
    ) -> None:
        agents, n = env.spec.num_agents, env.num_envs
        if agents < 2:
            raise ValueError(f"{env.spec.name} has one agent; there is no other seat to fill")
        seats = np.asarray(seat)
        if seats.dtype.kind not in "iu" or seats.shape not in ((), (n,)):
            raise ValueError(f"seat must be an integer, or {n} of them, got {seat!r}")
        if not ((seats >= 0) & (seats < agents)).all():
            raise ValueError(f"{env.spec.name} has the seats 0..{agents - 1}, got {seat!r}")
        self.env, self.policy, self.params = env, policy, params
        self.num_envs = n
        self.spec = opponent_spec(
            env.spec, int(seats) if seats.ndim == 0 else "by row: " + _digits(seats), label
        )
        # Constant index arrays: a row's own seat, the others in ascending order, and where each
        # seat's action is found in (own, *others).
        self._row = np.arange(n)
        self._own = np.broadcast_to(seats, n)
        order = np.argsort(np.arange(agents)[None] != self._own[:, None], axis=1, kind="stable")
        self._others = order[:, 1:]
        self._place = np.argsort(order, axis=1, kind="stable")

    @property
    def implementation(self) -> str:
        return f"{super().implementation}({self.env.implementation})"

    def reset(self, reset_noise: Any) -> tuple[OpponentState, Decision]:
        inner, decision = self.env.reset(reset_noise)
        params = jax.tree.map(jnp.asarray, self.params)
        return OpponentState(inner, params), self._seat_decision(decision)

    def step(
        self, state: OpponentState, action: Array, step_noise: Any, reset_noise: Any
    ) -> tuple[OpponentState, Decision, Outcome]:
        action = self._checked(jnp.asarray(action), self.num_envs, "actions")
        others = self._answer(state, step_noise.opponent)
        both = jnp.concatenate([action[:, None], others], axis=1)  # promotes, so nothing is cut off
        game_noise = self.env.spec.StepNoise(
            *(getattr(step_noise, site) for site in self.env.spec.step_noise)
        )
        inner, decision, outcome = self.env.step(
            state.inner, both[self._row[:, None], self._place], game_noise, reset_noise
        )
        return (
            OpponentState(inner, state.params),
            self._seat_decision(decision),
            self._seat_outcome(outcome),
        )

    def observe(self, state: OpponentState) -> Decision:
        return self._seat_decision(self.env.observe(state.inner))

    def state_fields(self, state: OpponentState) -> dict[str, Array]:
        """The game's canonical fields; the policy's parameters are no part of them."""
        return self.env.state_fields(state.inner)

    def state_from_fields(self, fields: Mapping[str, Array]) -> OpponentState:
        """Inverse of :meth:`state_fields`, with the policy's parameters as after ``reset``."""
        params = jax.tree.map(jnp.asarray, self.params)
        return OpponentState(self.env.state_from_fields(fields), params)

    @staticmethod
    def with_params(state: OpponentState, params: Any) -> OpponentState:
        """The same games against other parameters (of the same shapes and dtypes)."""
        return state._replace(params=params)

    def _answer(self, state: OpponentState, uniform: Array) -> Array:
        """The policy's actions ``[N, A - 1, ...]`` at the open decision."""
        decision = self.env.observe(state.inner)
        rows = self._others.size

        def flat(x: Array) -> Array:
            chosen = x[self._row[:, None], self._others]
            return chosen.reshape(rows, *chosen.shape[2:])

        legal = None if decision.legal_actions is None else flat(decision.legal_actions)
        observation = jax.tree.map(flat, decision.observation)
        actions = self.policy(state.params, observation, legal, uniform.reshape(rows))
        actions = self._checked(jnp.asarray(actions), rows, "the policy's actions")
        return actions.reshape(*self._others.shape, *actions.shape[1:])

    def _checked(self, actions: Array, rows: int, what: str) -> Array:
        expected = (rows, *self.spec.action_space.shape)
        if actions.shape != expected:
            raise ValueError(
                f"{self.spec.name}: {what} have shape {actions.shape}, expected {expected}"
            )
        return actions

    def _seat(self, x: Array) -> Array:
        return x[self._row, self._own]

    def _seat_decision(self, decision: Decision) -> Decision:
        legal = decision.legal_actions
        return Decision(
            observation=jax.tree.map(self._seat, decision.observation),
            acting=self._seat(decision.acting),
            legal_actions=None if legal is None else self._seat(legal),
            privileged=decision.privileged,
        )

    def _seat_outcome(self, outcome: Outcome) -> Outcome:
        metrics = {
            name: self._seat(values) if self.env.spec.metrics[name].per_agent else values
            for name, values in outcome.metrics.items()
        }
        return outcome._replace(
            reward=self._seat(outcome.reward),
            metrics=metrics,
            invalid=outcome.invalid.any(axis=1),
            final=None if outcome.final is None else self._seat_decision(outcome.final),
        )


def _digits(seats: np.ndarray) -> str:
    """A short mark of per-row seats for the spec, so that other seats are another spec."""
    return hashlib.sha256(np.ascontiguousarray(seats, np.int64).tobytes()).hexdigest()[:12]
