"""Running statistics against NumPy over everything seen."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from train.normalize import init_statistics, normalize, update_statistics


def test_merged_batches_give_the_statistics_of_all_weighted_entries() -> None:
    rng = np.random.default_rng(0)
    statistics, seen = init_statistics((3,)), []
    for _ in range(6):
        x = rng.normal(5.0, [0.1, 1.0, 30.0], size=(11, 7, 3)).astype(np.float32)
        weight = (rng.random((11, 7)) < 0.4).astype(np.float32)
        statistics = update_statistics(statistics, x, weight)
        seen.append(x[weight > 0])
    everything = np.concatenate(seen)
    assert int(statistics.samples) == len(everything)
    np.testing.assert_allclose(statistics.mean, everything.mean(0), rtol=1e-4)
    np.testing.assert_allclose(statistics.variance, everything.var(0), rtol=1e-3)


def test_no_weight_changes_nothing_and_the_start_is_the_identity() -> None:
    statistics = init_statistics((2,))
    x = np.array([[0.5, -3.0]], np.float32)
    np.testing.assert_allclose(normalize(statistics, x), x)
    after = update_statistics(statistics, x * 1e6, np.zeros(1, np.float32))
    for a, b in zip(after, statistics, strict=True):
        np.testing.assert_array_equal(a, b)


def test_counting_goes_on_where_a_float32_counter_would_stand_still() -> None:
    statistics = init_statistics(())._replace(samples=jnp.int32(2**25))
    after = update_statistics(statistics, np.ones(1, np.float32), np.ones(1, np.float32))
    assert int(after.samples) == 2**25 + 1
    full = statistics._replace(samples=jnp.int32(2**30))
    after = update_statistics(full, np.ones(5, np.float32), np.ones(5, np.float32))
    assert int(after.samples) == 2**30
