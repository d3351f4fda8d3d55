"""FunctionalEnv -> VectorFunctionalEnv: batching, invalid actions, auto-reset; once for all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from gymnasium import spaces
from jax import lax

from envs.checks import check_num_envs
from envs.core import Array, Decision, EnvSpec, FunctionalEnv, Outcome, VectorFunctionalEnv
from envs.spaces import action_bounds, action_dtype

RESET_FORMS = ("cond", "compact")


def vectorize(env: FunctionalEnv, num_envs: int, reset: str = "cond") -> VectorFunctionalEnv:
    """N instances of a functional environment with auto-reset.

    Args:
        reset: how ended rows are restarted; both give the same bits. "cond" re-initialises all
            rows under one batch-level conditional and selects; "compact" loops over the ended
            rows only, which pays where a state is large.

    Do not vmap the result (over seeds, say): the conditional would become a select that pays for
    a reset in every step.
    """
    if reset not in RESET_FORMS:
        raise ValueError(f"unknown reset form {reset!r}; choose from {', '.join(RESET_FORMS)}")
    return _Vectorized(env, check_num_envs(num_envs), reset)


def sanitize_actions(spec: EnvSpec, action: Array, decision: Decision) -> tuple[Array, Array]:
    """Actions that the rules may be given, and which ``[N(,A)]`` were invalid.

    An acting row's action outside the space, or illegal, becomes the lowest legal one and is
    flagged. A row that is not acting gets the space's lowest action and is never flagged.
    """
    space = spec.action_space
    low, high = (jnp.asarray(bound) for bound in action_bounds(space))
    action = jnp.asarray(action)
    expected = (*decision.acting.shape, *space.shape)
    if action.shape != expected:
        raise ValueError(f"{spec.name}: actions have shape {action.shape}, expected {expected}")
    kinds = (jnp.integer,) if action_dtype(space).kind == "i" else (jnp.floating, jnp.integer)
    if not any(jnp.issubdtype(action.dtype, kind) for kind in kinds):
        raise TypeError(f"{spec.name}: actions have dtype {action.dtype}")
    inside = (action >= low) & (action <= high)  # false for NaN
    action = action.astype(action_dtype(space))
    axes = tuple(range(decision.acting.ndim, action.ndim))
    valid = inside.all(axis=axes)
    lowest = jnp.broadcast_to(low, action.shape).astype(action.dtype)
    if spec.has_legal_actions:
        assert isinstance(space, spaces.Discrete)
        legal: Any = decision.legal_actions
        index = jnp.clip(action, 0, space.n - 1)[..., None]
        valid &= jnp.take_along_axis(legal, index, axis=-1)[..., 0]
        lowest = jnp.argmax(legal, axis=-1).astype(action.dtype)
    keep = (valid & decision.acting).reshape(*valid.shape, *(1 for _ in axes))
    return jnp.where(keep, action, lowest), decision.acting & ~valid


def where_rows(mask: Array, new: Any, old: Any) -> Any:
    """Per row ``[N]``: the leaves of ``new`` where the mask holds, else those of ``old``."""

    def select(a: Array, b: Array) -> Array:
        return jnp.where(mask.reshape(mask.shape + (1,) * (a.ndim - 1)), a, b)

    return jax.tree.map(select, new, old)


class _Vectorized(VectorFunctionalEnv):
    def __init__(self, env: FunctionalEnv, num_envs: int, reset: str) -> None:
        self.env = env
        self.spec = env.spec
        self.num_envs = num_envs
        self._restart = self._restart_cond if reset == "cond" else self._restart_compact

    @property
    def implementation(self) -> str:
        return f"{type(self.env).__module__}.{type(self.env).__qualname__}"

    def reset(self, reset_noise: Any) -> tuple[Any, Decision]:
        state = jax.vmap(self.env.init)(reset_noise)
        return state, self.observe(state)

    def step(
        self, state: Any, action: Array, step_noise: Any, reset_noise: Any
    ) -> tuple[Any, Decision, Outcome]:
        action, invalid = sanitize_actions(self.spec, action, self.observe(state))
        state, outcome = jax.vmap(self.env.advance)(state, action, step_noise)
        # The barrier keeps XLA from computing the terminal observation a second time inside
        # every consumer of the next one.
        final = lax.optimization_barrier(self.observe(state))
        ended = outcome.ended
        state, decision = self._restart(ended, state, final, reset_noise)
        return state, decision, outcome._replace(final=final, invalid=invalid)

    def observe(self, state: Any) -> Decision:
        return jax.vmap(self.env.observe)(state)

    def state_fields(self, state: Any) -> dict[str, Array]:
        return self.env.state_fields(state)

    def state_from_fields(self, fields: Mapping[str, Array]) -> Any:
        return self.env.state_from_fields(fields)

    def _restart_cond(
        self, ended: Array, state: Any, final: Decision, reset_noise: Any
    ) -> tuple[Any, Decision]:
        def restart() -> tuple[Any, Decision]:
            fresh, decision = self.reset(reset_noise)
            return where_rows(ended, fresh, state), where_rows(ended, decision, final)

        return lax.cond(ended.any(), restart, lambda: (state, final))

    def _restart_compact(
        self, ended: Array, state: Any, final: Decision, reset_noise: Any
    ) -> tuple[Any, Decision]:
        def restart_one(carry: tuple[Any, Any, Decision]) -> tuple[Any, Any, Decision]:
            left, state, decision = carry
            row = jnp.argmax(left)
            fresh = self.env.init(jax.tree.map(lambda noise: noise[row], reset_noise))

            def put(batch: Array, one: Array) -> Array:
                return batch.at[row].set(one)

            state = jax.tree.map(put, state, fresh)
            decision = jax.tree.map(put, decision, self.env.observe(fresh))
            return left.at[row].set(False), state, decision

        carry = (ended, state, final)
        _, state, decision = lax.while_loop(lambda c: c[0].any(), restart_one, carry)
        return state, decision
