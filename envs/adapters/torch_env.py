"""VectorFunctionalEnv -> torch tensors by DLPack, without copies."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from envs.adapters.numpy_faces import with_own_noise
from envs.checks import check_seed
from envs.core import (
    ActionError,
    Array,
    Decision,
    LifecycleError,
    MissingDependency,
    Outcome,
    VectorFunctionalEnv,
)
from envs.spaces import action_dtype

try:
    import torch
except ImportError as error:
    raise MissingDependency(f"torch is not installed ({error}); run `make setup-torch`") from error

_INT32 = torch.iinfo(torch.int32)


def to_torch(array: Array) -> torch.Tensor:
    """A tensor on the same device and memory as a JAX array; waits until the array is ready."""
    return torch.from_dlpack(array)


def to_jax(tensor: torch.Tensor) -> Array:
    """A JAX array of a tensor: its own memory where that is contiguous and aligned as JAX wants
    it, else a copy. Don't write to the tensor while the array is in use."""
    return jnp.from_dlpack(tensor.detach().contiguous())


class TorchVectorEnv:
    """A functional environment for torch users; the same seeds give the episodes of
    :class:`envs.adapters.numpy_faces.FunctionalBatched`.

    Decisions and Outcomes hold tensors that nobody else writes to or reads: they stay valid, and
    may be written to. As in every pure environment, an action outside the space or illegal is
    replaced by the lowest legal one and flagged in ``Outcome.invalid``.
    """

    def __init__(self, env: VectorFunctionalEnv) -> None:
        self.spec = env.spec
        self.num_envs = env.num_envs
        first, step = with_own_noise(env)
        self._jit_reset = jax.jit(first)
        self._jit_step = jax.jit(step, donate_argnums=0)
        self._state: Any = None
        self._seed = self._count = np.uint32(0)

    def reset(self, seed: int) -> Decision:
        """New episodes in all rows; the same seed gives the same episodes.

        Raises:
            ValueError: the seed is not an integer in [0, 2**32).
        """
        self._seed, self._count = np.uint32(check_seed(seed)), np.uint32(0)
        self._state, decision = self._jit_reset(self._seed)
        return jax.tree.map(to_torch, decision)

    def step(self, actions: torch.Tensor) -> tuple[Decision, Outcome]:
        """Advance all rows, reset those that ended, and observe.

        Args:
            actions: ``[N(,A), ...]`` on the environment's device; any integer dtype for discrete
                spaces, any real one for boxes.

        Raises:
            LifecycleError: before ``reset``.
            ActionError: wrong type, shape or dtype; nothing was stepped then.
        """
        if self._state is None:
            raise LifecycleError(f"{self.spec.name}: step before reset; call reset(seed) first")
        checked = self._checked(actions)
        self._state, *results = self._jit_step(self._state, checked, self._seed, self._count)
        self._count = np.uint32((int(self._count) + 1) % 2**32)
        decision, outcome = jax.tree.map(to_torch, results)
        return decision, outcome

    def _checked(self, actions: torch.Tensor) -> Array:
        name, space = self.spec.name, self.spec.action_space
        if not isinstance(actions, torch.Tensor):
            raise ActionError(f"{name}: actions are a {type(actions).__name__}, expected a tensor")
        expected = (*self.spec.rows(self.num_envs), *space.shape)
        if tuple(actions.shape) != expected:
            raise ActionError(
                f"{name}: actions have shape {tuple(actions.shape)}, expected {expected}"
            )
        discrete = action_dtype(space).kind == "i"
        real = actions.dtype != torch.bool and not actions.is_complex()
        if not real or (discrete and actions.is_floating_point()):
            wanted = "an integer one" if discrete else str(action_dtype(space))
            raise ActionError(f"{name}: actions have dtype {actions.dtype}, expected {wanted}")
        if actions.dtype == torch.int64:  # narrowed by us: JAX would cut off the high bits
            actions = actions.clamp(_INT32.min, _INT32.max).to(torch.int32)
        return to_jax(actions)
