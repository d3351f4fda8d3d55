"""The arithmetic of PPO, as pure functions over ``[T, R]`` arrays.

``T`` is time, ``R`` rows (environments times agents). A row decides only where ``acting``; all
means and deviations are taken over weighted entries alone, so that padding never changes a loss.
tests/train/test_ppo_math.py holds each function against a ten-line NumPy loop.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

Array = jax.Array


class Advantages(NamedTuple):
    """``advantage``, ``target`` and ``weight`` are ``[T, R]``; weight is 0 where a row made no
    decision, or one whose consequences aren't known yet."""

    advantage: Array
    target: Array
    weight: Array


def gae(
    *,
    reward: Array,
    value: Array,
    acting: Array,
    terminated: Array,
    truncated: Array,
    final_value: Array,
    final_acting: Array,
    last_value: Array,
    last_acting: Array,
    gamma: float,
    gae_lambda: float,
) -> Advantages:
    """Generalised advantage estimation over each row's own decisions (Schulman et al. 2016).

    A reward belongs to the row's previous own decision, and gamma counts own decisions. A
    termination bootstraps from nothing and a truncation from ``final_value``, the critic's value
    of the ended episode's last observation; both cut the recursion. A decision that is still open
    at the end of the batch, or whose episode was truncated while the row wasn't acting, is never
    bootstrapped from a state in which the row doesn't act: its weight is 0.

    Args:
        reward, value, acting, terminated, truncated: ``[T, R]``; the reward and the end follow
            the decision of the same index.
        final_value, final_acting: ``[T, R]``, read only where truncated.
        last_value, last_acting: ``[R]``, at the state after the last step.
    """

    def backwards(carry: tuple, step: tuple) -> tuple[tuple, tuple]:
        rewards, next_value, next_advantage, known = carry
        r, v, act, term, trunc, fin_v, fin_act = step
        ended = term | trunc
        rewards = r + jnp.where(ended, 0.0, rewards)
        next_value = jnp.where(term, 0.0, jnp.where(trunc, fin_v, next_value))
        next_advantage = jnp.where(ended, 0.0, next_advantage)
        known = jnp.where(term, True, jnp.where(trunc, fin_act, known))
        delta = rewards + gamma * next_value - v
        advantage = jnp.where(known, delta + gamma * gae_lambda * next_advantage, 0.0)
        carry = (
            jnp.where(act, 0.0, rewards),
            jnp.where(act, v, next_value),
            jnp.where(act, advantage, next_advantage),
            known | act,
        )
        return carry, (advantage, act & known)

    zeros = jnp.zeros_like(last_value)
    start = (zeros, last_value, zeros, last_acting)
    steps = (reward, value, acting, terminated, truncated, final_value, final_acting)
    _, (advantage, weight) = lax.scan(backwards, start, steps, reverse=True)
    return Advantages(advantage, advantage + value, weight.astype(value.dtype))


def masked_mean(x: Array, weight: Array) -> Array:
    """Mean over the entries with weight 1; 0 where there are none."""
    return (x * weight).sum() / jnp.maximum(weight.sum(), 1.0)


def masked_normalize(x: Array, weight: Array, eps: float = 1e-8) -> Array:
    """Mean 0 and standard deviation 1 (ddof 0) over the entries with weight 1."""
    mean = masked_mean(x, weight)
    variance = masked_mean((x - mean) ** 2, weight)
    return (x - mean) * lax.rsqrt(variance + eps) * weight


def policy_loss(
    log_prob: Array, old_log_prob: Array, advantage: Array, weight: Array, clip_eps: float
) -> tuple[Array, dict[str, Array]]:
    """The clipped surrogate (Schulman et al. 2017), to be minimised, with its diagnostics.

    ``approx_kl`` is the k3 estimator mean(ratio - 1 - log ratio).
    """
    # Rows without weight may hold anything: keep infinities out before the product with zero.
    log_ratio = jnp.where(weight > 0, log_prob - old_log_prob, 0.0)
    ratio = jnp.exp(log_ratio)
    clipped = jnp.clip(ratio, 1.0 - clip_eps, 1.0 + clip_eps)
    loss = -masked_mean(jnp.minimum(ratio * advantage, clipped * advantage), weight)
    return loss, {
        "approx_kl": masked_mean(ratio - 1.0 - log_ratio, weight),
        "clip_fraction": masked_mean((jnp.abs(ratio - 1.0) > clip_eps).astype(ratio.dtype), weight),
        "ratio_max": jnp.where(weight > 0, ratio, 1.0).max(),
    }


def value_loss(value: Array, target: Array, weight: Array) -> Array:
    """Half the mean squared error."""
    return 0.5 * masked_mean((value - target) ** 2, weight)


def explained_variance(value: Array, target: Array, weight: Array) -> Array:
    """1 - Var(target - value) / Var(target); 1 is a perfect critic, 0 a constant one."""

    def variance(x: Array) -> Array:
        return masked_mean((x - masked_mean(x, weight)) ** 2, weight)

    return 1.0 - variance(target - value) / jnp.maximum(variance(target), 1e-8)
