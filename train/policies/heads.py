"""Action distributions. A head turns network outputs into samples, log-probabilities, entropies.

Samples are stored as drawn; ``to_env`` is the one place where they become the environment's
actions. Leading axes ``[...]`` are free throughout.
"""

from __future__ import annotations

import math
from typing import Protocol

import gymnasium
import jax
import jax.numpy as jnp
from gymnasium import spaces

Array = jax.Array


class Head(Protocol):
    """``size``: network outputs per row; ``num_uniforms``: uniform draws a sample takes."""

    size: int
    num_uniforms: int

    def sample(self, outputs: Array, legal: Array | None, uniforms: Array) -> Array: ...

    def mode(self, outputs: Array, legal: Array | None) -> Array: ...

    def log_prob(self, outputs: Array, legal: Array | None, action: Array) -> Array: ...

    def entropy(self, outputs: Array, legal: Array | None) -> Array: ...

    def to_env(self, action: Array) -> Array: ...


class Categorical:
    """One choice of n; illegal actions have probability 0."""

    num_uniforms = 1

    def __init__(self, n: int) -> None:
        self.size = n

    def sample(self, outputs: Array, legal: Array | None, uniforms: Array) -> Array:
        """int32 ``[...]`` by inverting the distribution function at ``uniforms [..., 1]``."""
        probabilities = jnp.exp(self._log_probabilities(outputs, legal))
        below = jnp.cumsum(probabilities, axis=-1)
        # Scaling by the last sum keeps rounding from ever choosing past the last legal action.
        chosen = (below <= uniforms * below[..., -1:]).sum(-1)
        if legal is None:
            return jnp.minimum(chosen, self.size - 1).astype(jnp.int32)
        last_legal = self.size - 1 - jnp.argmax(legal[..., ::-1], axis=-1)
        return jnp.minimum(chosen, last_legal).astype(jnp.int32)

    def mode(self, outputs: Array, legal: Array | None) -> Array:
        return jnp.argmax(self._masked(outputs, legal), axis=-1).astype(jnp.int32)

    def log_prob(self, outputs: Array, legal: Array | None, action: Array) -> Array:
        table = self._log_probabilities(outputs, legal)
        return jnp.take_along_axis(table, action[..., None], axis=-1)[..., 0]

    def entropy(self, outputs: Array, legal: Array | None) -> Array:
        table = self._log_probabilities(outputs, legal)
        terms = jnp.exp(table) * table
        return -(terms if legal is None else jnp.where(legal, terms, 0.0)).sum(-1)

    def to_env(self, action: Array) -> Array:
        return action

    def _log_probabilities(self, outputs: Array, legal: Array | None) -> Array:
        return jax.nn.log_softmax(self._masked(outputs, legal), axis=-1)

    def _masked(self, outputs: Array, legal: Array | None) -> Array:
        outputs = outputs.astype(jnp.float32)
        if legal is None:
            return outputs
        return jnp.where(legal, outputs, jnp.finfo(jnp.float32).min)


class Gaussian:
    """Independent normals; outputs are ``[mean, log standard deviation]``, each of ``dim``.

    The unbounded sample is what is stored and scored; ``to_env`` clips it to the Box.
    """

    _LOG_STD_RANGE = (-5.0, 2.0)

    def __init__(self, space: spaces.Box) -> None:
        self._low, self._high = jnp.asarray(space.low), jnp.asarray(space.high)
        self._shape = space.shape
        self.dim = math.prod(space.shape)
        self.size = 2 * self.dim
        self.num_uniforms = 2 * self.dim

    def sample(self, outputs: Array, legal: Array | None, uniforms: Array) -> Array:
        """float32 ``[..., dim]`` by Box-Muller from ``uniforms [..., 2 * dim]``."""
        mean, log_std = self._split(outputs)
        radius = jnp.sqrt(-2.0 * jnp.log1p(-uniforms[..., : self.dim]))
        return mean + jnp.exp(log_std) * radius * jnp.cos(2 * jnp.pi * uniforms[..., self.dim :])

    def mode(self, outputs: Array, legal: Array | None) -> Array:
        return self._split(outputs)[0]

    def log_prob(self, outputs: Array, legal: Array | None, action: Array) -> Array:
        mean, log_std = self._split(outputs)
        z = (action - mean) * jnp.exp(-log_std)
        return -(0.5 * z**2 + log_std + 0.5 * math.log(2 * math.pi)).sum(-1)

    def entropy(self, outputs: Array, legal: Array | None) -> Array:
        return (self._split(outputs)[1] + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)

    def to_env(self, action: Array) -> Array:
        shaped = action.reshape(*action.shape[:-1], *self._shape)
        return jnp.clip(shaped, self._low, self._high).astype(self._low.dtype)

    def _split(self, outputs: Array) -> tuple[Array, Array]:
        outputs = outputs.astype(jnp.float32)
        mean, log_std = outputs[..., : self.dim], outputs[..., self.dim :]
        return mean, jnp.clip(log_std, *self._LOG_STD_RANGE)


def make_head(space: gymnasium.Space) -> Head:
    """The head of an action space.

    Raises:
        ValueError: a space that no head serves.
    """
    if isinstance(space, spaces.Discrete):
        return Categorical(int(space.n))
    if isinstance(space, spaces.Box):
        return Gaussian(space)
    raise ValueError(f"no policy head for the action space {space}; Discrete and Box have one")
