"""VectorFunctionalEnv -> BatchedEnv (own noise) and Simulator (noise from outside)."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from envs.batched import BatchedEnv
from envs.core import Decision, Outcome, VectorFunctionalEnv
from envs.noise import draw_reset_noise, draw_step_noise
from envs.simulator import Simulator


def with_own_noise(env: VectorFunctionalEnv) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """``env.reset`` and ``env.step`` with noise from the counter hash.

    Returns pure functions ``(seed) -> state, Decision`` and ``(state, actions, seed, count) ->
    state, Decision, Outcome``; seed and count are uint32 scalars, count the steps since reset.
    """
    rows = np.arange(env.num_envs, dtype=np.uint32)

    def first(seed: Any) -> Any:
        return env.reset(draw_reset_noise(env.spec, seed, 0, rows, jnp))

    def step(state: Any, actions: Any, seed: Any, count: Any) -> Any:
        step_noise = draw_step_noise(env.spec, seed, count, rows, jnp)
        reset_noise = draw_reset_noise(env.spec, seed, count + 1, rows, jnp)
        return env.step(state, actions, step_noise, reset_noise)

    return first, step


class FunctionalBatched(BatchedEnv):
    """A functional environment for NumPy users; noise from the counter hash of the seed."""

    def __init__(self, env: VectorFunctionalEnv, *, copy: bool = True) -> None:
        super().__init__(env.spec, env.num_envs, copy=copy)
        first, step = with_own_noise(env)
        self._jit_reset = jax.jit(first)
        self._jit_step = jax.jit(step, donate_argnums=0)
        self._state: Any = None
        self._seed = self._count = np.uint32(0)

    def _reset(self, seed: int) -> Decision:
        self._seed, self._count = np.uint32(seed), np.uint32(0)
        self._state, decision = self._jit_reset(self._seed)
        return jax.tree.map(np.asarray, decision)

    def _step(self, actions: np.ndarray) -> tuple[Decision, Outcome]:
        self._state, *results = self._jit_step(self._state, actions, self._seed, self._count)
        self._count = np.uint32((int(self._count) + 1) % 2**32)
        decision, outcome = jax.tree.map(np.asarray, results)
        return decision, outcome


class FunctionalSimulator(Simulator):
    """A functional environment with its state kept inside, for verification."""

    def __init__(self, env: VectorFunctionalEnv) -> None:
        super().__init__(env.spec, env.num_envs)
        self._env = env
        self._jit_reset = jax.jit(env.reset)
        self._jit_step = jax.jit(env.step)
        self._jit_observe = jax.jit(env.observe)
        self._state: Any = None

    def _reset(self, reset_noise: Any) -> Decision:
        self._state, decision = self._jit_reset(reset_noise)
        return _own(decision)

    def _step(
        self, actions: np.ndarray, step_noise: Any, reset_noise: Any
    ) -> tuple[Decision, Outcome]:
        self._state, *results = self._jit_step(self._state, actions, step_noise, reset_noise)
        decision, outcome = _own(results)
        return decision, outcome

    def _get_state(self) -> Mapping[str, np.ndarray]:
        return self._env.state_fields(self._state)

    def _set_state(self, fields: dict[str, np.ndarray]) -> Decision:
        self._state = jax.tree.map(jnp.asarray, self._env.state_from_fields(fields))
        return _own(self._jit_observe(self._state))

    def _snapshot(self) -> bytes:
        leaves = jax.tree.leaves(self._state)
        buffer = io.BytesIO()
        np.savez(buffer, identity=self._identity(), **{str(i): x for i, x in enumerate(leaves)})
        return buffer.getvalue()

    def _restore(self, data: bytes) -> Decision:
        rows = np.arange(self.num_envs, dtype=np.uint32)
        noise = draw_reset_noise(self.spec, 0, 0, rows)
        structure: Any = jax.tree.structure(jax.eval_shape(self._env.reset, noise)[0])
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as saved:
                identity = str(saved["identity"])
                leaves = [jnp.asarray(saved[str(i)]) for i in range(structure.num_leaves)]
        except Exception as error:  # damaged bytes can fail in zipfile and NumPy in any way
            raise ValueError(f"{self.spec.name}: not a readable snapshot ({error})") from error
        if identity != self._identity():
            raise ValueError(
                f"{self.spec.name}: the snapshot is of another environment, backend or num_envs"
            )
        self._state = jax.tree.unflatten(structure, leaves)
        return _own(self._jit_observe(self._state))

    def _identity(self) -> str:
        text = f"{self.spec.digest} {self._env.implementation} {self.num_envs}"
        return hashlib.sha256(text.encode()).hexdigest()


def _own(tree: Any) -> Any:
    """Every leaf as a NumPy array that belongs to the caller."""
    return jax.tree.map(np.array, tree)
