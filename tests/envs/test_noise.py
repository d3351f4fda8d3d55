"""The counter noise: the same words everywhere, the right distributions, no visible structure."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from envs.core import EnvSpec, Field, NoiseSite
from envs.noise import (
    draw_reset_noise,
    draw_step_noise,
    draw_uniform,
    pcg4d,
    uniform_from_words,
)

# Seeds are fixed, so a test passes or fails for ever; this is how unlikely it was to fail at first.
FALSE_ALARM = 1e-6
ROWS = np.arange(4096, dtype=np.uint32)
SITES = {
    "uniform": NoiseSite("uniform", (), -0.05, 0.05),
    "integers": NoiseSite("integers", (), -3, 7),
    "normal": NoiseSite("normal"),
    "bits": NoiseSite("bits"),
}
U32 = st.integers(0, 2**32 - 1)


def spec_of(reset_noise, step_noise=None):
    return EnvSpec(
        name="noisy",
        version="1",
        observation_space=spaces.Box(-1, 1, (1,), np.float32),
        action_space=spaces.Discrete(2),
        reset_noise=reset_noise,
        step_noise=step_noise or {},
        state={"x": Field((), "float32")},
    )


def draw(site, seed=0, step=0, rows=ROWS, xp=np):
    """One step site's array."""
    return draw_step_noise(spec_of({"r": NoiseSite("bits")}, {"s": site}), seed, step, rows, xp).s


def words(seed=0, step=0, rows=ROWS, count=4):
    """uint32 ``[N, count]`` as a site of raw words gives them."""
    return draw(NoiseSite("bits", (count,)), seed, step, rows)


# --- words -------------------------------------------------------------------------------------


def pcg4d_by_hand(a, b, c, d):
    """The published hash in Python integers."""
    mask = 2**32 - 1
    v = [(x * 1664525 + 1013904223) & mask for x in (a, b, c, d)]
    for turn in range(2):
        v[0] = (v[0] + v[1] * v[3]) & mask
        v[1] = (v[1] + v[2] * v[0]) & mask
        v[2] = (v[2] + v[0] * v[1]) & mask
        v[3] = (v[3] + v[1] * v[2]) & mask
        if turn == 0:
            v = [x ^ (x >> 16) for x in v]
    return tuple(v)


@given(U32, U32, U32, U32)
@settings(max_examples=100, deadline=None, derandomize=True)
def test_hash_is_the_published_one(a, b, c, d):
    got = pcg4d(*(np.array([v], np.uint32) for v in (a, b, c, d)))
    assert tuple(int(v[0]) for v in got) == pcg4d_by_hand(a, b, c, d)


def fold(v):
    return v ^ (v >> 16)


def test_words_are_the_hash_of_the_counters_folded_before_and_after():
    rows = np.array([7, 2**31 + 9], np.uint32)
    got = words(seed=5 << 20, step=6, rows=rows, count=6)
    for row, line in zip(rows, got, strict=True):
        counters = [(fold(5 << 20), 6, fold(int(row)), block) for block in (0, 1)]
        blocks = [[fold(w) for w in pcg4d_by_hand(*c)] for c in counters]
        assert line.tolist() == [block[word] for word in range(3) for block in blocks]


@pytest.mark.parametrize("kind", SITES)
def test_numpy_and_jitted_jax_draw_the_same(kind):
    site = NoiseSite(kind, (3, 2), SITES[kind].low, SITES[kind].high)
    spec = spec_of({"a": site, "b": NoiseSite("bits")}, {"c": site})
    rows = np.array([0, 1, 5, 2**32 - 1], np.uint32)
    for draw_noise in (draw_reset_noise, draw_step_noise):
        jitted = jax.jit(lambda seed, step, f=draw_noise: f(spec, seed, step, rows, jnp))
        for seed, step in ((0, 0), (2**32 - 1, 3), (17, 2**32 - 1)):
            expected = draw_noise(spec, seed, step, rows)
            got = jitted(np.uint32(seed), np.uint32(step))
            assert type(got) is type(expected)
            for a, b in zip(expected, got, strict=True):
                assert a.dtype == b.dtype == (site.dtype if a.ndim > 1 else np.uint32)
                if kind in ("integers", "bits"):
                    np.testing.assert_array_equal(a, b)
                elif a.dtype == np.float32:
                    np.testing.assert_allclose(a, b, rtol=2e-6, atol=1e-8)


def test_a_draw_depends_on_its_own_counters_only():
    some = words(3, 4, np.array([9, 2, 9], np.uint32))
    np.testing.assert_array_equal(some[0], some[2])
    np.testing.assert_array_equal(some[1], words(3, 4)[2])
    for changed in (words(4, 4), words(3, 5)):
        assert (changed != words(3, 4)).mean() > 0.999


# --- distributions -----------------------------------------------------------------------------


@pytest.mark.parametrize(("seed", "step"), [(0, 0), (1, 0), (0, 1), (12345, 678), (2**32 - 1, 99)])
def test_floats_follow_their_distribution(seed, step):
    rows = np.arange(1 << 15, dtype=np.uint32)
    uniform = draw(SITES["uniform"], seed, step, rows)
    assert stats.kstest(uniform, stats.uniform(-0.05, 0.1).cdf).pvalue > FALSE_ALARM
    normal = draw(SITES["normal"], seed, step, rows)
    assert stats.kstest(normal, stats.norm.cdf).pvalue > FALSE_ALARM
    assert abs(normal.mean()) < 5 / math.sqrt(len(rows))
    assert abs(normal.var() - 1) < 5 * math.sqrt(2 / len(rows))
    assert abs(uniform.mean()) < 5 * 0.1 / math.sqrt(12 * len(rows))
    assert 3.5 < abs(normal).max() < 6  # tails, but none beyond what 24 bits can say


@pytest.mark.parametrize("span", [2, 3, 4, 5, 6, 10, 256, 1000])
@pytest.mark.parametrize("seed", [0, 1, 7])
def test_integers_are_equally_frequent(span, seed):
    values = draw(NoiseSite("integers", (), -1, span - 1), seed, 3, np.arange(1 << 15))
    counts = np.bincount(values + 1, minlength=span)
    assert len(counts) == span
    assert stats.chisquare(counts).pvalue > FALSE_ALARM


def along(counter, first, count):
    """One word ``[count]`` for each value of a counter from ``first`` on, the others fixed."""
    if counter == "row":
        return words(2, 3, np.arange(first, first + count), 1)[:, 0]
    if counter == "block":
        return words(2, 3, np.array([first]), 4 * count)[0, :count]
    values = range(first, first + count)
    return np.array([words(**{counter: v}, rows=ROWS[:1], count=1)[0, 0] for v in values])


@pytest.mark.parametrize("counter", ["seed", "step", "row", "block"])
@pytest.mark.parametrize("first", [0, 1000, 2**31])
def test_every_nibble_is_balanced_along_every_counter(counter, first):
    line = along(counter, first, 1 << 12)
    for shift in range(0, 32, 4):
        nibbles = (line >> np.uint32(shift)) & np.uint32(15)
        assert stats.chisquare(np.bincount(nibbles, minlength=16)).pvalue > FALSE_ALARM


def pairs_pvalue(a, b):
    """p value of independence of the lowest nibbles and of the highest ones, the smaller."""
    p_values = []
    for shift in (0, 28):
        x, y = ((v >> np.uint32(shift)) & np.uint32(15) for v in (a, b))
        p_values.append(stats.chisquare(np.bincount(x * 16 + y, minlength=256)).pvalue)
    return min(p_values)


MANY = np.arange(1 << 15, dtype=np.uint32)
NEIGHBOURS = {
    "next row": words(2, 3, MANY + 1)[:, 0],
    "row 4096 further": words(2, 3, MANY + 4096)[:, 0],
    "next step": words(2, 4, MANY)[:, 0],
    "next row and step": words(2, 4, MANY + 1)[:, 0],
    "next seed": words(3, 3, MANY)[:, 0],
    "seed and step swapped": words(3, 2, MANY)[:, 0],
    "next word": words(2, 3, MANY)[:, 1],
    "next block": words(2, 3, MANY, count=8)[:, 1],
}


@pytest.mark.parametrize("which", NEIGHBOURS)
def test_neighbouring_draws_are_independent(which):
    one, other = words(2, 3, MANY)[:, 0], NEIGHBOURS[which]
    assert pairs_pvalue(one, other) > FALSE_ALARM
    x, y = uniform_from_words(np, one), uniform_from_words(np, other)
    assert abs(np.corrcoef(x, y)[0, 1]) < 5 / math.sqrt(len(x))


@pytest.mark.parametrize("counter", ["seed", "step", "row"])
@pytest.mark.parametrize("bit", range(32))
def test_one_flipped_counter_bit_changes_every_output_bit_half_of_the_time(counter, bit):
    rows = np.arange(1 << 14, dtype=np.uint32)
    rows = rows[(rows >> bit) & 1 == 0][: 1 << 13]  # no pair twice
    counters = {"seed": 3, "step": 17, "rows": rows}
    name = "rows" if counter == "row" else counter
    before = words(**counters)
    after = words(**counters | {name: counters[name] ^ np.uint32(1 << bit)})
    flips = [((before ^ after) >> np.uint32(k) & np.uint32(1)).mean(axis=0) for k in range(32)]
    assert np.abs(np.array(flips) - 0.5).max() < 6 * 0.5 / math.sqrt(len(before))
    for word in range(4):
        assert pairs_pvalue(before[:, word], after[:, word]) > FALSE_ALARM / 100


def test_sites_of_one_record_are_independent_of_each_other():
    site = NoiseSite("uniform", (3,))
    noise = draw_step_noise(spec_of({"r": site}, {k: site for k in "abc"}), 1, 2, ROWS)
    columns = np.concatenate(noise, axis=1)
    off_diagonal = np.corrcoef(columns.T)[np.triu_indices(9, 1)]
    assert abs(off_diagonal).max() < 5 / math.sqrt(len(ROWS))


@pytest.mark.parametrize("kind", SITES)
def test_reset_and_step_sites_of_the_same_kind_share_no_draw(kind):
    spec = spec_of({"s": SITES[kind]}, {"s": SITES[kind]})
    reset, step = draw_reset_noise(spec, 0, 0, ROWS).s, draw_step_noise(spec, 0, 0, ROWS).s
    equal = (reset == step).mean()
    assert equal < 0.2 if kind == "integers" else equal < 0.01


def test_clients_draw_apart_from_the_environment_and_from_each_other():
    spec = spec_of({"s": NoiseSite("uniform", (2,))}, {"s": NoiseSite("uniform", (2,))})
    drawn = [
        draw_uniform(5, 6, ROWS, 2),
        draw_uniform(5, 6, ROWS, 2, stream=1),
        draw_step_noise(spec, 5, 6, ROWS).s,
        draw_reset_noise(spec, 5, 6, ROWS).s,
    ]
    assert drawn[0].shape == (4096, 2)
    assert drawn[0].dtype == np.float32
    for a, b in itertools.combinations(drawn, 2):
        assert abs(np.corrcoef(a[:, 0], b[:, 0])[0, 1]) < 5 / math.sqrt(len(ROWS))
        assert (a == b).mean() < 0.01


# --- domains and shapes ---------------------------------------------------------------------------


def test_uniform_words_reach_zero_and_stay_below_one():
    ends = uniform_from_words(np, np.array([0, 255, 256, 2**32 - 1], np.uint32))
    assert ends.dtype == np.float32
    assert ends.tolist() == [0.0, 0.0, 2.0**-24, 1.0 - 2.0**-24]


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (1.0, 2.0), (-0.05, 0.05), (-3e8, 7.0)])
@pytest.mark.parametrize("xp", [np, jnp], ids=["numpy", "jax"])
def test_uniform_excludes_high_even_for_the_largest_word(low, high, xp, monkeypatch):
    def extremes(_xp, seed, step, rows, site, count):
        return xp.asarray(np.array([[0], [2**32 - 1]], np.uint32))

    monkeypatch.setattr("envs.noise._words", extremes)
    got = np.asarray(draw(NoiseSite("uniform", (), low, high), rows=ROWS[:2], xp=xp))
    assert got[0] == np.float32(low)
    assert np.float32(low) < got[1] < np.float32(high)


def test_normal_of_the_smallest_and_largest_words_is_finite(monkeypatch):
    ends = np.array([0, 2**32 - 1], np.uint32)
    grid = np.array(list(itertools.product(ends, ends)), np.uint32)
    monkeypatch.setattr("envs.noise._words", lambda *args: grid)
    got = draw(NoiseSite("normal"), rows=ROWS[:4])
    assert np.isfinite(got).all()
    assert abs(got).max() < 6


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-(2**31), 2**31 - 1), (5, 8)])
def test_integers_fill_their_domain(low, high):
    values = draw(NoiseSite("integers", (64,), low, high)).ravel().astype(np.int64)
    assert values.min() >= low
    assert values.max() < high
    width = high - low
    assert values.min() - low <= width / 1000
    assert high - 1 - values.max() <= width / 1000


@given(
    st.sampled_from(sorted(SITES)),
    st.lists(st.integers(0, 4), max_size=3),
    st.integers(1, 5),
    U32,
    U32,
)
@settings(max_examples=100, deadline=None, derandomize=True)
def test_any_shape_is_drawn_with_the_sites_dtype(kind, shape, count, seed, step):
    site = NoiseSite(kind, tuple(shape), SITES[kind].low, SITES[kind].high)
    spec = spec_of({"first": site, "second": site}, {"only": site})
    rows = np.arange(count, dtype=np.uint32)
    for noise in (
        draw_reset_noise(spec, seed, step, rows),
        draw_step_noise(spec, seed, step, rows),
    ):
        for values in noise:
            assert values.shape == (count, *shape)
            assert values.dtype == site.dtype
    first, second = draw_reset_noise(spec, seed, step, rows)
    assert first.size < 20 or (first != second).any()


def test_no_step_sites_give_an_empty_record():
    noise = draw_step_noise(spec_of({"r": NoiseSite("bits")}), 0, 0, ROWS)
    assert noise == ()
    assert type(noise).__name__ == "StepNoise"
