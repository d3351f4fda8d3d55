"""Statistics: agreement with scipy and statsmodels, exact cases, verdicts, error rates, plans."""

import json
import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats import weightstats
from statsmodels.stats.proportion import proportion_confint

from verification.statistics import (
    Verdict,
    compare,
    mean_interval,
    required_n,
    share_interval,
    tost_power,
    wilson_interval,
)

REPEATS = 2000
ALPHA = 0.05


def arms(seed, n_a=20, n_b=30, gap=0.3, sd_b=2.0):
    rng = np.random.default_rng(seed)
    return rng.normal(1.0, 1.0, n_a), rng.normal(1.0 - gap, sd_b, n_b)


def count_bounds(probability, n=REPEATS, miss=1e-6):
    """Counts that a binomial leaves with a chance of ``miss`` on either side."""
    return stats.binom.ppf([miss, 1 - miss], n, probability)


# --- agreement with the libraries ---------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_independent_comparison_agrees_with_scipy_and_statsmodels(seed):
    a, b = arms(seed)
    got = compare(a, b, margin=0.8, paired=False)
    welch = stats.ttest_ind(a, b, equal_var=False)
    assert got.p_difference == pytest.approx(welch.pvalue, rel=1e-9)
    tost = weightstats.ttost_ind(a, b, -0.8, 0.8, usevar="unequal")
    assert got.p_equivalence == pytest.approx(tost[0], rel=1e-9)
    for interval, level in ((got.difference_interval, 0.95), (got.tost_interval, 0.90)):
        expected = welch.confidence_interval(level)
        assert (interval.low, interval.high) == pytest.approx(tuple(expected), rel=1e-9)
        assert interval.level == pytest.approx(level)
    assert (got.mean_a, got.mean_b) == pytest.approx((a.mean(), b.mean()))
    assert got.difference == pytest.approx(a.mean() - b.mean())
    assert (got.design, got.n_a, got.n_b) == ("independent", 20, 30)


@pytest.mark.parametrize("seed", range(5))
def test_paired_comparison_agrees_with_scipy_and_statsmodels(seed):
    a, noise = arms(seed, 25, 25, sd_b=0.4)
    b = a + noise
    got = compare(a, b, margin=0.9, paired=True)
    paired = stats.ttest_rel(a, b)
    assert got.p_difference == pytest.approx(paired.pvalue, rel=1e-9)
    assert got.p_equivalence == pytest.approx(weightstats.ttost_paired(a, b, -0.9, 0.9)[0])
    for interval, level in ((got.difference_interval, 0.95), (got.tost_interval, 0.90)):
        expected = paired.confidence_interval(level)
        assert (interval.low, interval.high) == pytest.approx(tuple(expected), rel=1e-9)
    assert got.design == "paired"


@pytest.mark.parametrize("level", [0.5, 0.9, 0.95, 0.99])
def test_mean_interval_is_students(level):
    values = arms(7)[0]
    got = mean_interval(values, level)
    expected = stats.t.interval(level, 19, values.mean(), stats.sem(values))
    assert (got.low, got.high) == pytest.approx(expected)
    assert (got.estimate, got.level, got.n) == (pytest.approx(values.mean()), level, 20)


@pytest.mark.parametrize("successes", [0, 1, 170, 178, 179])
def test_wilson_interval_is_that_of_statsmodels(successes):
    got = wilson_interval(successes, 179)
    expected = proportion_confint(successes, 179, method="wilson")
    assert (got.low, got.high) == pytest.approx(expected, abs=1e-12)
    assert got.estimate == successes / 179
    assert 0.0 <= got.low <= got.estimate <= got.high <= 1.0


# --- exact cases --------------------------------------------------------------------------------

EXACT_CASES = {
    "identical pairs": ([1.0, 2.0, 4.0], [1.0, 2.0, 4.0], True, Verdict.EQUIVALENT),
    "identical constants": ([0.1] * 3, [0.1] * 4, False, Verdict.EQUIVALENT),
    "constant gap inside, paired": ([1.5, 2.5, 4.5], [1.0, 2.0, 4.0], True, Verdict.BIASED),
    "constant gap inside": ([1.5] * 3, [1.0] * 5, False, Verdict.BIASED),
    "constant gap outside, paired": ([3.0, 4.0, 6.0], [1.0, 2.0, 4.0], True, Verdict.DIFFERENT),
    "constant gap outside": ([3.0] * 2, [1.0] * 2, False, Verdict.DIFFERENT),
    "constant gap on the margin": ([2.0] * 2, [1.0] * 2, False, Verdict.DIFFERENT),
}


@pytest.mark.parametrize("case", EXACT_CASES)
def test_arms_without_spread_are_judged_exactly(case):
    a, b, paired, verdict = EXACT_CASES[case]
    got = compare(a, b, margin=1.0, paired=paired)
    gap = a[0] - b[0]
    assert got.verdict is verdict
    assert got.difference == got.tost_interval.low == got.difference_interval.high == gap
    assert got.p_equivalence == (0.0 if abs(gap) < 1.0 else 1.0)
    assert got.p_difference == (1.0 if gap == 0.0 else 0.0)


def test_one_constant_arm_is_still_a_t_test():
    a, b = np.full(10, 0.1), arms(3, n_b=40)[1]
    got = compare(a, b, margin=1.0, paired=False)
    assert got.p_difference == pytest.approx(stats.ttest_1samp(b, 0.1).pvalue)


def test_mean_interval_of_equal_values_has_no_width_and_of_one_value_no_bounds():
    flat = mean_interval([0.1] * 3)  # the float mean of these is not 0.1
    assert (flat.low, flat.estimate, flat.high) == (0.1, 0.1, 0.1)
    single = mean_interval([5.0])
    assert (single.low, single.estimate, single.high) == (None, 5.0, None)
    assert single.covers_zero
    assert not flat.covers_zero


reals = st.floats(-1e6, 1e6) | st.sampled_from([0.0, 0.1, 1.0, 1e-300, -1e-160, 1e150, -1e150])


@given(st.lists(st.tuples(reals, reals), min_size=2, max_size=6), st.booleans())
@settings(max_examples=200, deadline=None, derandomize=True)
def test_any_finite_arms_give_a_verdict_without_warnings_or_nan(pairs, paired):
    a, b = zip(*pairs, strict=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = compare(a, b, margin=1.0, paired=paired)
    text = json.dumps(got.to_json(), allow_nan=False)
    assert json.loads(text)["verdict"] == got.verdict
    assert 0.0 <= got.p_difference <= 1.0
    assert 0.0 <= got.p_equivalence <= 1.0


# --- verdicts -----------------------------------------------------------------------------------

# gap, margin, verdict; with n = 50 and unit variances the gap's standard error is 0.2
VERDICTS = [
    (0.0, 1.0, Verdict.EQUIVALENT),
    (0.5, 1.0, Verdict.BIASED),
    (1.0, 1.0, Verdict.DIFFERENT),
    (-2.0, 1.0, Verdict.DIFFERENT),
    (0.1, 0.2, Verdict.INCONCLUSIVE),
]


@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize(("gap", "margin", "verdict"), VERDICTS)
def test_verdict_follows_gap_and_margin(gap, margin, verdict, paired):
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 50))
    a, b = (a - a.mean()) / a.std(ddof=1) + gap, (b - b.mean()) / b.std(ddof=1)
    got = compare(a, b, margin, paired)
    assert got.verdict is verdict
    # The intervals say the same as the tests.
    assert (got.p_difference >= ALPHA) == got.difference_interval.covers_zero
    inside = -margin < got.tost_interval.low and got.tost_interval.high < margin
    assert inside == (got.p_equivalence < ALPHA)
    assert (got.n_needed is None) == (verdict is not Verdict.INCONCLUSIVE)


def test_inconclusive_names_the_n_of_the_observed_spread():
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(2, 10))
    spread = math.sqrt((a.var(ddof=1) + b.var(ddof=1)) / 2)
    assert compare(a, b, 0.25, paired=False).n_needed == required_n(0.25, spread)
    b = a + 0.9 * b
    difference_sd = (a - b).std(ddof=1)
    # required_n of sd s and correlation 1/2 plans for a difference of standard deviation s.
    planned = required_n(0.25, difference_sd, correlation=0.5)
    assert compare(a, b, 0.25, paired=True).n_needed == planned


def test_comparison_is_invariant_to_shifts_units_order_and_swaps():
    a, b = arms(11, 30, 30)
    base = compare(a, b, 0.8, paired=False)
    shifted = compare(a + 100, b + 100, 0.8, paired=False)
    scaled = compare(8 * a, 8 * b, 6.4, paired=False)
    for other in (shifted, scaled, compare(a[::-1], np.roll(b, 7), 0.8, paired=False)):
        assert other.p_difference == pytest.approx(base.p_difference)
        assert other.p_equivalence == pytest.approx(base.p_equivalence)
    swapped = compare(b, a, 0.8, paired=False)
    assert swapped.p_equivalence == pytest.approx(base.p_equivalence)
    assert swapped.difference == pytest.approx(-base.difference)
    assert swapped.tost_interval.low == pytest.approx(-base.tost_interval.high)


def test_pairing_uses_the_correlation_and_independence_does_not():
    start = np.random.default_rng(5).normal(0, 10, 40)
    a, b = (start + arms(seed, 40)[0] for seed in (7, 8))
    assert compare(a, b, 1.0, paired=True).verdict is Verdict.EQUIVALENT
    assert compare(a, b, 1.0, paired=False).verdict is Verdict.INCONCLUSIVE


# --- error rates, by simulation -----------------------------------------------------------------

SIMULATED = {
    "independent, equal": dict(n_a=20, n_b=20, sd_b=1.0, paired=False),
    "independent, unequal": dict(n_a=15, n_b=40, sd_b=3.0, paired=False),
    "paired": dict(n_a=12, n_b=12, sd_b=0.5, paired=True),
}


def simulate(design, gap, margin, repeats=REPEATS):
    """Comparisons of normal arms whose true gap is given; pairs share their arm a."""
    rng = np.random.default_rng(2024)
    results = []
    for _ in range(repeats):
        b = rng.normal(0.0, design["sd_b"], design["n_b"])
        a = rng.normal(0.0, 1.0, design["n_a"])
        a, b = (a + gap, a + b) if design["paired"] else (a + gap, b)
        results.append(compare(a, b, margin, design["paired"]))
    return results


@pytest.mark.parametrize("name", SIMULATED)
def test_false_equivalence_at_the_margin_is_at_most_alpha(name):
    results = simulate(SIMULATED[name], gap=2.0, margin=2.0)
    passed = sum(r.p_equivalence < ALPHA for r in results)
    assert passed <= count_bounds(ALPHA)[1]
    # The margin lies many standard errors from zero here, so the test should use up its alpha.
    assert passed >= count_bounds(0.8 * ALPHA)[0]


@pytest.mark.parametrize("name", SIMULATED)
def test_false_difference_under_equality_is_alpha_and_intervals_cover(name):
    results = simulate(SIMULATED[name], gap=0.0, margin=1.0)
    low, high = count_bounds(ALPHA)
    assert low <= sum(r.p_difference < ALPHA for r in results) <= high
    missed = sum(not r.tost_interval.covers_zero for r in results)
    low, high = count_bounds(2 * ALPHA)
    assert low <= missed <= high


PLANS = [(0.5, None), (0.25, None), (0.5, 0.9), (0.8, 0.5), (2.0, None)]


@pytest.mark.parametrize(("margin", "correlation"), PLANS)
def test_planned_n_gives_the_planned_power(margin, correlation):
    n = required_n(margin, 1.0, correlation=correlation)
    rng = np.random.default_rng(3)
    shared = math.sqrt(correlation or 0.0)
    own = math.sqrt(1.0 - (correlation or 0.0))
    passed = 0
    for _ in range(REPEATS):
        common, a, b = rng.normal(size=(3, n))
        a, b = shared * common + own * a, shared * common + own * b
        passed += compare(a, b, margin, correlation is not None).p_equivalence < ALPHA
    assert passed / REPEATS == pytest.approx(0.9, abs=0.03)
    low, high = count_bounds(tost_power(n, margin, 1.0, correlation=correlation))
    assert low <= passed <= high


# --- planning -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("margin", "correlation", "n"),
    [(0.5, None, 87), (0.25, None, 347), (0.2, None, 542), (0.1, None, 2165), (0.25, 0.9, 35)],
)
def test_required_n_gives_the_published_figures(margin, correlation, n):
    assert required_n(margin, 1.0, correlation=correlation) == n
    assert required_n(10 * margin, 10.0, correlation=correlation) == n


def test_pairing_divides_the_required_n_by_ten_at_correlation_0_9():
    assert required_n(0.1, 1.0) / required_n(0.1, 1.0, correlation=0.9) == pytest.approx(
        10, abs=0.1
    )


def test_power_matches_a_direct_simulation_of_the_test_statistic():
    n, margin, gap = 12, 1.0, 0.2
    rng = np.random.default_rng(0)
    differences = rng.normal(gap, 1.0, (100_000, n))
    error = differences.std(axis=1, ddof=1) / math.sqrt(n)
    reach = stats.t.ppf(0.95, n - 1) * error
    passed = np.abs(differences.mean(axis=1)) + reach < margin
    # Correlation 1/2 and sd 1: a pair's difference has standard deviation 1.
    expected = tost_power(n, margin, 1.0, gap, correlation=0.5)
    assert passed.mean() == pytest.approx(expected, abs=0.006)


def test_power_grows_with_n_and_margin_and_falls_with_the_gap():
    powers = [tost_power(n, 0.5, 1.0) for n in (5, 20, 50, 100, 200)]
    assert powers == sorted(powers)
    assert tost_power(100, 0.5, 1.0, gap=0.5) == pytest.approx(0.05, abs=0.005)
    assert tost_power(100, 0.5, 1.0, gap=0.2) < tost_power(100, 0.5, 1.0)
    assert tost_power(100, 0.5, 1.0, gap=-0.2) == pytest.approx(tost_power(100, 0.5, 1.0, gap=0.2))
    assert tost_power(10**6, 0.5, 1.0) == pytest.approx(1.0)


# --- shares of time -----------------------------------------------------------------------------


def test_share_of_time_is_found_under_drift_that_hits_both():
    rng = np.random.default_rng(0)
    drift = rng.lognormal(0.0, 0.3, 30)
    real, null = drift * rng.normal(1.0, 0.01, 30), 0.9 * drift * rng.normal(1.0, 0.01, 30)
    got = share_interval(real, null)
    assert got.estimate == pytest.approx(1 - np.median(null) / np.median(real))
    assert got.low <= got.estimate <= got.high
    assert got.low < 0.1 < got.high
    assert not got.covers_zero
    assert got.n == 30


def test_share_that_is_lost_in_noise_says_so():
    rng = np.random.default_rng(1)
    got = share_interval(rng.normal(1.0, 0.1, 10), rng.normal(1.0, 0.1, 10))
    assert got.covers_zero
    assert got.to_json()["covers_zero"] is True


def test_share_interval_repeats_and_ignores_the_unit():
    rng = np.random.default_rng(2)
    real, null = rng.uniform(1, 2, 12), rng.uniform(0.5, 1.5, 12)
    got = share_interval(real, null)
    assert got == share_interval(real, null)
    assert got.estimate == pytest.approx(share_interval(1e3 * real, 1e3 * null).estimate)
    identical = share_interval(real, real)
    assert (identical.low, identical.estimate, identical.high) == (0.0, 0.0, 0.0)
    assert identical.covers_zero


@pytest.mark.slow
@pytest.mark.parametrize(("n", "at_least"), [(5, 0.90), (20, 0.93)])
def test_share_interval_covers_the_true_share(n, at_least):
    rng = np.random.default_rng(4)
    covered = 0
    for _ in range(1000):
        drift = rng.lognormal(0.0, 0.1, n)
        real, null = drift * rng.lognormal(0, 0.05, n), 0.8 * drift * rng.lognormal(0, 0.05, n)
        interval = share_interval(real, null)
        covered += interval.low <= 0.2 <= interval.high
    assert covered >= count_bounds(at_least, 1000)[0]


# --- bad input ----------------------------------------------------------------------------------

GOOD = [1.0, 2.0, 3.0]
NAN = float("nan")
BAD_COMPARISONS = {
    "empty": ([], GOOD, 1.0, {}, "a needs at least 2"),
    "one value": (GOOD, [1.0], 1.0, {}, "b needs at least 2"),
    "NaN": ([1.0, NAN, 2.0], GOOD, 1.0, {}, r"a holds 1 value\(s\) of 3"),
    "infinite": (GOOD, [np.inf, -np.inf, 2.0], 1.0, {}, r"b holds 2 value\(s\) of 3"),
    "too large": ([1e200, 1.0], GOOD, 1.0, {}, "1e150"),
    "two axes": (np.ones((2, 2)), GOOD, 1.0, {}, "one-dimensional"),
    "unequal pairs": (GOOD, [1.0, 2.0], 1.0, dict(paired=True), "equal lengths, got 3 and 2"),
    "margin zero": (GOOD, GOOD, 0.0, {}, "margin must be positive"),
    "margin negative": (GOOD, GOOD, -1.0, {}, "margin must be positive"),
    "margin NaN": (GOOD, GOOD, NAN, {}, "margin must be positive"),
    "margin infinite": (GOOD, GOOD, np.inf, {}, "margin must be positive"),
    "alpha": (GOOD, GOOD, 1.0, dict(alpha=0.5), "alpha must be in"),
}


@pytest.mark.parametrize("case", BAD_COMPARISONS)
def test_compare_refuses(case):
    a, b, margin, options, message = BAD_COMPARISONS[case]
    with pytest.raises(ValueError, match=message):
        compare(a, b, margin, **{"paired": False, **options})


BAD_CALLS = {
    "mean of nothing": (lambda: mean_interval([]), "at least 1"),
    "mean of NaN": (lambda: mean_interval([NAN, 1.0]), "1 value"),
    "level 1": (lambda: mean_interval(GOOD, level=1.0), "level"),
    "no trials": (lambda: wilson_interval(0, 0), "0 of 0"),
    "too many successes": (lambda: wilson_interval(4, 3), "4 of 3"),
    "negative successes": (lambda: wilson_interval(-1, 3), "-1 of 3"),
    "few timings": (lambda: share_interval(GOOD, GOOD), "real_seconds needs at least 5"),
    "unpaired timings": (lambda: share_interval([1.0] * 6, [1.0] * 5), "6 and 5"),
    "zero timing": (lambda: share_interval([1.0] * 5, [0.0, 1, 1, 1, 1]), "positive"),
    "NaN timing": (lambda: share_interval([NAN] * 5, [1.0] * 5), r"5 value\(s\) of 5"),
    "no spread to plan for": (lambda: required_n(0.5, 0.0), "sd must be positive"),
    "plan without margin": (lambda: required_n(0.0, 1.0), "margin must be positive"),
    "plan with certainty": (lambda: required_n(0.5, 1.0, power=1.0), "power"),
    "full correlation": (lambda: required_n(0.5, 1.0, correlation=1.0), "correlation"),
    "power of one": (lambda: tost_power(1, 0.5, 1.0), "n must be at least 2"),
    "power without margin": (lambda: tost_power(10, -0.5, 1.0), "margin must be positive"),
}


@pytest.mark.parametrize("case", BAD_CALLS)
def test_other_entry_points_refuse(case):
    call, message = BAD_CALLS[case]
    with pytest.raises(ValueError, match=message):
        call()


def test_counts_that_are_not_integers_are_refused():
    with pytest.raises(TypeError):
        wilson_interval(0.5, 3)
