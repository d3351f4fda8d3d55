"""Noise for training and evaluation: a counter hash of (seed, step, row, site).

One function for all environments and both array libraries, so that the same counters give the
same words in a jitted rollout and in a NumPy loop (floats made from them: to the last bit or
two). It is stateless: resuming at a step needs nothing but the step's number. Verification may
use recorded or crafted arrays instead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import numpy as np

from envs.core import EnvSpec, NoiseSite

# Sites of a step and of a reset draw from separate ranges of the fourth counter.
_RESET_OFFSET = 1 << 30


def pcg4d(a: Any, b: Any, c: Any, d: Any) -> tuple[Any, Any, Any, Any]:
    """Four uint32 counters to four well-mixed uint32 words (same shape).

    Source: M. Jarzynski and M. Olano, "Hash Functions for GPU Rendering", JCGT 9(3), 2020.
    """
    a, b, c, d = (v * 1664525 + 1013904223 for v in (a, b, c, d))
    a, b, c, d = _stir(a, b, c, d)
    return _stir(*map(_fold, (a, b, c, d)))


def _stir(a: Any, b: Any, c: Any, d: Any) -> tuple[Any, Any, Any, Any]:
    a = a + b * d
    b = b + c * a
    c = c + a * b
    return a, b, c, d + b * c


def _fold(v: Any) -> Any:
    """The high half onto the low one; loses nothing."""
    return v ^ (v >> 16)


def _words(xp: ModuleType, seed: Any, step: Any, rows: Any, site: int, count: int) -> Any:
    """``[N, count]`` uint32 words of one site."""
    blocks = math.ceil(count / 4)
    shape = (rows.shape[0], blocks)
    counters = (
        xp.asarray(seed, np.uint32),
        xp.asarray(step, np.uint32),
        rows.astype(np.uint32)[:, None],
        np.uint32(site) + xp.arange(blocks, dtype=np.uint32),
    )
    # Bare pcg4d is weak at both ends: a difference in a counter's high bits reaches the high output
    # bits only (draws of two streams correlate), and the low output bits are biased along a counter
    # (the lowest is 1 in 75 % of the rows for some seeds). Folding cures both; test_noise.py holds
    # the result to every single-bit change.
    folded = (xp.broadcast_to(_fold(counter), shape) for counter in counters)
    return xp.concatenate([_fold(word) for word in pcg4d(*folded)], axis=-1)[:, :count]


def uniform_from_words(xp: ModuleType, words: Any) -> Any:
    """uint32 words to float32 in [0, 1) on a grid of 2**-24."""
    return (words >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)


def _site_draw(
    xp: ModuleType, site: NoiseSite, seed: Any, step: Any, rows: Any, offset: int
) -> Any:
    size = math.prod(site.shape)
    shape = (rows.shape[0], *site.shape)
    if site.distribution == "normal":  # Box-Muller, one pair of words for each draw
        u = uniform_from_words(xp, _words(xp, seed, step, rows, offset, 2 * size))
        radius = xp.sqrt(-2.0 * xp.log(np.float32(1.0) - u[:, :size]))
        return (radius * xp.cos(np.float32(2 * math.pi) * u[:, size:])).reshape(shape)
    words = _words(xp, seed, step, rows, offset, size).reshape(shape)
    if site.distribution == "bits":
        return words
    if site.distribution == "integers":
        span = int(site.high) - int(site.low)
        # Modulo bias is below span / 2**32.
        return (words % np.uint32(span)).astype(np.int32) + np.int32(site.low)
    low, high = np.float32(site.low), np.float32(site.high)
    # The sum can round up to high, which the domain excludes.
    below = np.nextafter(high, low)
    return xp.minimum(low + np.float32(site.high - site.low) * uniform_from_words(xp, words), below)


def _draw(
    xp: ModuleType,
    record: type,
    sites: Mapping[str, NoiseSite],
    seed: Any,
    step: Any,
    rows: Any,
    first: int,
) -> Any:
    offsets, following = [], first
    for site in sites.values():
        offsets.append(following)
        following += 1 + math.prod(site.shape)  # enough for a normal's pairs as well
    return record(
        *(
            _site_draw(xp, site, seed, step, rows, offset)
            for site, offset in zip(sites.values(), offsets, strict=True)
        )
    )


def draw_step_noise(spec: EnvSpec, seed: Any, step: Any, rows: Any, xp: ModuleType = np) -> Any:
    """``StepNoise`` arrays ``[N, ...]`` of one step.

    Args:
        seed, step: uint32 scalars; a step is counted from the first reset, over all episodes.
        rows: uint32 ``[N]``, the environments' numbers.
        xp: ``numpy`` or ``jax.numpy``.
    """
    return _draw(xp, spec.StepNoise, spec.step_noise, seed, step, rows, 0)


def draw_reset_noise(spec: EnvSpec, seed: Any, step: Any, rows: Any, xp: ModuleType = np) -> Any:
    """``ResetNoise`` arrays ``[N, ...]`` for the resets after one step; arguments as above."""
    return _draw(xp, spec.ResetNoise, spec.reset_noise, seed, step, rows, _RESET_OFFSET)


def draw_uniform(
    seed: Any, step: Any, rows: Any, count: int = 1, stream: int = 0, xp: ModuleType = np
) -> Any:
    """float32 ``[N, count]`` in [0, 1) for an environment's clients (action sampling).

    Independent of the environments' own draws under the same seed; ``stream`` keeps several
    clients apart.
    """
    return uniform_from_words(xp, _words(xp, seed, step, rows, (1 << 31) + (stream << 16), count))
