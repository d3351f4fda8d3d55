"""VectorFunctionalEnv -> BatchedEnv (own noise) and Simulator (noise from outside)."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from envs.batched import BatchedEnv, check_actions
from envs.core import Capabilities, Decision, LifecycleError, Outcome, Simulator
from envs.core import VectorFunctionalEnv
from envs.noise import draw_reset_noise, draw_step_noise


def to_numpy(tree: Any) -> Any:
    """Every leaf as a NumPy array of its own."""
    return jax.tree.map(np.array, jax.device_get(tree))


class FunctionalBatched(BatchedEnv):
    """A functional environment for NumPy users; noise from the counter hash of the seed."""

    def __init__(self, env: VectorFunctionalEnv, *, copy: bool = True) -> None:
        super().__init__(env.spec, env.num_envs, copy=copy)
        rows = np.arange(env.num_envs, dtype=np.uint32)

        def first(seed: Any) -> Any:
            return env.reset(draw_reset_noise(env.spec, seed, 0, rows, jnp))

        def step(state: Any, actions: Any, seed: Any, count: Any) -> Any:
            step_noise = draw_step_noise(env.spec, seed, count, rows, jnp)
            reset_noise = draw_reset_noise(env.spec, seed, count + 1, rows, jnp)
            return env.step(state, actions, step_noise, reset_noise)

        self._jit_reset = jax.jit(first)
        self._jit_step = jax.jit(step, donate_argnums=0)
        self._state: Any = None
        self._seed = self._count = np.uint32(0)

    def _reset(self, seed: int) -> Decision:
        self._seed, self._count = np.uint32(seed), np.uint32(0)
        self._state, decision = self._jit_reset(self._seed)
        return to_numpy(decision)

    def _step(self, actions: np.ndarray) -> tuple[Decision, Outcome]:
        self._state, *results = self._jit_step(self._state, actions, self._seed, self._count)
        self._count = np.uint32((int(self._count) + 1) % 2**32)
        decision, outcome = to_numpy(tuple(results))
        return decision, outcome


class FunctionalSimulator(Simulator):
    """A functional environment with its state kept inside, for verification."""

    capabilities = Capabilities()

    def __init__(self, env: VectorFunctionalEnv) -> None:
        self.spec = env.spec
        self.num_envs = env.num_envs
        self._env = env
        self._jit_reset = jax.jit(env.reset)
        self._jit_step = jax.jit(env.step)
        self._jit_observe = jax.jit(env.observe)
        self._state: Any = None
        self._decision: Decision | None = None

    def reset(self, reset_noise: Any) -> Decision:
        self._state, decision = self._jit_reset(reset_noise)
        self._decision = to_numpy(decision)
        return self._decision

    def step(
        self, actions: np.ndarray, step_noise: Any, reset_noise: Any
    ) -> tuple[Decision, Outcome]:
        state = self._require_state()
        actions = check_actions(self.spec, actions, self.num_envs, self._decision)
        self._state, *results = self._jit_step(state, actions, step_noise, reset_noise)
        self._decision, outcome = to_numpy(tuple(results))
        return self._decision, outcome

    def get_state(self) -> dict[str, np.ndarray]:
        fields = to_numpy(self._env.state_fields(self._require_state()))
        return {name: fields[name].astype(f.dtype) for name, f in self.spec.state.items()}

    def set_state(self, fields: Mapping[str, np.ndarray]) -> Decision:
        checked = check_fields(self.spec, fields, self.num_envs)
        self._state = jax.tree.map(jnp.asarray, self._env.state_from_fields(checked))
        self._decision = to_numpy(self._jit_observe(self._state))
        return self._decision

    def snapshot(self) -> bytes:
        leaves = jax.tree.leaves(to_numpy(self._require_state()))
        buffer = io.BytesIO()
        np.savez(buffer, identity=self._identity(), **{str(i): x for i, x in enumerate(leaves)})
        return buffer.getvalue()

    def restore(self, data: bytes) -> Decision:
        structure = jax.tree.structure(jax.eval_shape(self._env.reset, self._noise_shapes())[0])
        with np.load(io.BytesIO(data), allow_pickle=False) as saved:
            if str(saved["identity"]) != self._identity():
                raise ValueError("the snapshot is of another environment, backend or num_envs")
            leaves = [jnp.asarray(saved[str(i)]) for i in range(structure.num_leaves)]
        self._state = jax.tree.unflatten(structure, leaves)
        self._decision = to_numpy(self._jit_observe(self._state))
        return self._decision

    def _identity(self) -> str:
        text = f"{self.spec.digest} {type(self._env).__name__} {self.num_envs}"
        return hashlib.sha256(text.encode()).hexdigest()

    def _noise_shapes(self) -> Any:
        rows = np.arange(self.num_envs, dtype=np.uint32)
        return draw_reset_noise(self.spec, 0, 0, rows)

    def _require_state(self) -> Any:
        if self._state is None:
            raise LifecycleError(f"{self.spec.name}: no state yet; call reset or set_state first")
        return self._state


def check_fields(
    spec: Any, fields: Mapping[str, np.ndarray], num_envs: int
) -> dict[str, np.ndarray]:
    """Canonical fields with the spec's names, shapes and dtypes, or ValueError."""
    missing, unknown = set(spec.state) - set(fields), set(fields) - set(spec.state)
    if missing or unknown:
        raise ValueError(
            f"{spec.name}: set_state needs exactly the fields {', '.join(spec.state)}; "
            f"missing: {sorted(missing)}, unknown: {sorted(unknown)}"
        )
    checked = {}
    for name, f in spec.state.items():
        array = np.asarray(fields[name])
        if array.shape != (num_envs, *f.shape):
            raise ValueError(
                f"{spec.name}: field {name} has shape {array.shape}, "
                f"expected {(num_envs, *f.shape)}"
            )
        if not np.can_cast(array.dtype, f.dtype, "same_kind"):
            raise ValueError(f"{spec.name}: field {name} has dtype {array.dtype}, not {f.dtype}")
        checked[name] = array.astype(f.dtype)
    return checked
