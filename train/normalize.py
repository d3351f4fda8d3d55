"""Running observation statistics: read during a rollout and its epochs, updated after them."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

Array = jax.Array
_COUNT_LIMIT = 1 << 30  # the count stops there: int32 would overflow


class RunningStatistics(NamedTuple):
    """``samples`` int32 scalar; ``mean`` and ``variance`` float32 of one observation's shape."""

    samples: Array
    mean: Array
    variance: Array


def init_statistics(shape: tuple[int, ...]) -> RunningStatistics:
    """Statistics that leave observations unchanged until the first update."""
    return RunningStatistics(jnp.int32(0), jnp.zeros(shape), jnp.ones(shape))


def normalize(statistics: RunningStatistics | None, x: Array, clip: float = 10.0) -> Array:
    """``(x - mean) / std``, clipped, of ``x [..., *shape]``; ``x`` itself without statistics."""
    if statistics is None:
        return x
    scaled = (x - statistics.mean) * jax.lax.rsqrt(statistics.variance + 1e-8)
    return jnp.clip(scaled, -clip, clip)


def update_statistics(statistics: RunningStatistics, x: Array, weight: Array) -> RunningStatistics:
    """Merge a batch (Chan, Golub and LeVeque 1979).

    Args:
        x: ``[..., *shape]``.
        weight: the leading axes of ``x``; 1 where the entry counts, 0 where it doesn't.
    """
    axes = tuple(range(weight.ndim))
    expanded = weight.reshape(weight.shape + (1,) * statistics.mean.ndim)
    added = weight.sum()
    batch_count = jnp.maximum(added, 1.0)
    batch_mean = (x * expanded).sum(axes) / batch_count
    batch_variance = (((x - batch_mean) ** 2) * expanded).sum(axes) / batch_count
    old = statistics.samples.astype(jnp.float32)
    share = added / jnp.maximum(old + added, 1.0)
    delta = batch_mean - statistics.mean
    variance = (
        (1.0 - share) * statistics.variance
        + share * batch_variance
        + share * (1.0 - share) * delta**2
    )
    count = jnp.minimum(statistics.samples + added.astype(jnp.int32), _COUNT_LIMIT)
    merged = RunningStatistics(count, statistics.mean + share * delta, variance)
    return jax.tree.map(lambda new, kept: jnp.where(added > 0, new, kept), merged, statistics)
