"""The policy as trainers and evaluation see it, and the multilayer perceptron behind it.

One interface for every trunk: ``init_carry``, ``apply`` over one step ``[R, ...]`` and ``unroll``
over a sequence ``[T, R, ...]``. A feed-forward policy's carry is ``()``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from gymnasium import spaces

from envs.core import EnvSpec
from train.policies.heads import Head, make_head

Array = jax.Array


@dataclass(frozen=True)
class ModelConfig:
    """How large a policy is.

    Args:
        name: as typed on the command line.
        depth: hidden layers of each of the two networks (actor and critic).
        width: units per hidden layer; 0 means "as many as reach ``parameters``".
        parameters: wanted number of parameters; used where ``width`` is 0.
    """

    name: str
    depth: int
    width: int = 0
    parameters: int = 0


class _Network(nn.Module):
    """Two separate tanh networks (Andrychowicz et al. 2021 found sharing to hurt)."""

    width: int
    depth: int
    outputs: int

    @nn.compact
    def __call__(self, x: Array) -> tuple[Array, Array]:
        def network(x: Array, outputs: int, scale: float, name: str) -> Array:
            for layer in range(self.depth):
                dense = nn.Dense(
                    self.width,
                    kernel_init=nn.initializers.orthogonal(math.sqrt(2)),
                    name=f"{name}_{layer}",
                )
                x = nn.tanh(dense(x))
            last = nn.Dense(
                outputs, kernel_init=nn.initializers.orthogonal(scale), name=f"{name}_head"
            )
            return last(x)

        # A nearly uniform first policy, whatever the observation.
        outputs = network(x, self.outputs, 0.01, "actor")
        return outputs, network(x, 1, 1.0, "critic")[..., 0]


class MLPPolicy:
    """A feed-forward policy over a vector observation.

    Raises:
        ValueError: the observation or action space needs another policy.
    """

    def __init__(self, spec: EnvSpec, config: ModelConfig) -> None:
        space = spec.observation_space
        if not isinstance(space, spaces.Box):
            raise ValueError(f"the mlp policy needs a Box observation, {spec.name} has {space}")
        self.spec, self.config = spec, config
        self.observation_ndim = len(space.shape)
        self.observation_size = math.prod(space.shape)
        self.head: Head = make_head(spec.action_space)
        width = config.width or _width_for(
            config.parameters, config.depth, self.observation_size, self.head.size
        )
        self._network = _Network(width, config.depth, self.head.size)

    def init(self, seed: int) -> Any:
        """Fresh parameters."""
        example = jnp.zeros((1, self.observation_size))
        return self._network.init(jax.random.key(seed), example)["params"]

    def init_carry(self, rows: int) -> Any:
        return ()

    def apply(
        self, params: Any, carry: Any, observation: Array, is_first: Array
    ) -> tuple[Array, Array, Any]:
        """Head outputs ``[R, size]``, values ``[R]`` and the next carry."""
        leading = observation.shape[: observation.ndim - self.observation_ndim]
        flat = observation.reshape(*leading, self.observation_size).astype(jnp.float32)
        outputs, value = self._network.apply({"params": params}, flat)
        return outputs, value, carry

    def unroll(
        self, params: Any, carry: Any, observation: Array, is_first: Array
    ) -> tuple[Array, Array]:
        """Head outputs ``[T, R, size]`` and values ``[T, R]`` of a sequence."""
        # As one batch: XLA's CPU matrix products are a third slower with two leading axes.
        time, rows = is_first.shape
        flat = observation.reshape(time * rows, *observation.shape[2:])
        outputs, value, _ = self.apply(params, carry, flat, is_first)
        return outputs.reshape(time, rows, -1), value.reshape(time, rows)


def count_parameters(params: Any) -> int:
    """Number of scalars in a parameter tree."""
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def _width_for(parameters: int, depth: int, inputs: int, outputs: int) -> int:
    """The width whose actor and critic together come closest to the wanted size."""

    def size(width: int) -> int:
        hidden = (inputs + 1) * width + (depth - 1) * (width + 1) * width
        return 2 * hidden + (width + 1) * (outputs + 1)

    low, high = 1, 2
    while size(high) < parameters:
        high *= 2
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if size(middle) < parameters else (low, middle)
    return min((low, max(low - 1, 1)), key=lambda width: abs(size(width) - parameters))
