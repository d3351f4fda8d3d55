"""Equivalence, difference, intervals and planned sample sizes; knows nothing of environments.

Two questions are asked of every pair of arms: is the gap provably inside the margin (TOST, two
one-sided tests), and is there provably a gap (Welch's or the paired t test). Four verdicts follow.
Inputs are one-dimensional sequences of finite numbers; one value per replicate (a training seed,
an episode pair, a repeated timing).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from scipy import special
from scipy.stats import binomtest
from statsmodels.stats.weightstats import CompareMeans, DescrStatsW

Values = Sequence[float] | np.ndarray

PLANNED_POWER = 0.9
# Planning uses the normal approximation, in which such figures are usually quoted. With few
# replicates it promises too much; n is raised until the t tests keep what it promised, up to this.
_POWER_SLACK = 0.02
_QUADRATURE_POINTS = 256
_LARGEST = 1e150  # squares of what is larger leave float64


class Verdict(StrEnum):
    """What a comparison has shown; see :func:`compare`."""

    EQUIVALENT = "EQUIVALENT"
    DIFFERENT = "DIFFERENT"
    BIASED = "EQUIVALENT-BUT-BIASED"
    INCONCLUSIVE = "INCONCLUSIVE"


@dataclass(frozen=True)
class Interval:
    """An estimate and its two-sided confidence interval.

    ``low`` and ``high`` are None where one value gives no interval; such an interval covers
    everything.
    """

    estimate: float
    low: float | None
    high: float | None
    level: float
    n: int

    @property
    def covers_zero(self) -> bool:
        """Whether zero is a value that the data do not exclude."""
        return self.low is None or self.high is None or self.low <= 0.0 <= self.high

    def to_json(self) -> dict[str, Any]:
        return dict(asdict(self), covers_zero=self.covers_zero)


@dataclass(frozen=True)
class Comparison:
    """Two arms compared; ``difference`` is mean(a) - mean(b), in the values' own unit.

    Args:
        design: "paired" or "independent".
        difference_interval: at level 1 - alpha; excludes zero exactly when the difference test
            is significant.
        tost_interval: at level 1 - 2 alpha; lies inside the margin exactly when TOST passes.
        p_difference: of Welch's or the paired t test, two-sided.
        p_equivalence: the larger of TOST's two one-sided p values.
        n_needed: only where the verdict is INCONCLUSIVE: replicates per arm for 90 % power to
            show equivalence at the observed spread if there were no gap. It can be below the
            present n: then the gap, not the spread, is what stands in the way.
    """

    design: str
    n_a: int
    n_b: int
    mean_a: float
    mean_b: float
    difference: float
    difference_interval: Interval
    tost_interval: Interval
    p_difference: float
    p_equivalence: float
    margin: float
    alpha: float
    verdict: Verdict
    n_needed: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain numbers, strings and None; never NaN or infinity."""
        return dict(
            asdict(self),
            verdict=str(self.verdict),
            difference_interval=self.difference_interval.to_json(),
            tost_interval=self.tost_interval.to_json(),
        )


# --- intervals --------------------------------------------------------------------------------


def mean_interval(values: Values, level: float = 0.95) -> Interval:
    """Student's t interval of the mean; no bounds for one value, no width for equal ones.

    Raises:
        ValueError: empty, not one-dimensional, or not finite; level outside (0, 1).
    """
    array = _checked(values, "values")
    _check_fraction("level", level)
    if len(array) == 1:
        return Interval(float(array[0]), None, None, level, 1)
    mean, variance = _moments(array)
    error = math.sqrt(variance / len(array))
    return _t_interval(mean, error, len(array) - 1, level, len(array))


def wilson_interval(successes: int, n: int, level: float = 0.95) -> Interval:
    """Wilson's score interval of a proportion.

    Raises:
        ValueError: n < 1, or successes outside [0, n].
        TypeError: counts that are not integers.
    """
    _check_fraction("level", level)
    successes, n = operator.index(successes), operator.index(n)
    if n < 1 or not 0 <= successes <= n:
        raise ValueError(f"need 0 <= successes <= n and n >= 1, got {successes} of {n}")
    bounds = binomtest(successes, n).proportion_ci(level, method="wilson")
    return Interval(successes / n, float(bounds.low), float(bounds.high), level, n)


def share_interval(
    real_seconds: Values, null_seconds: Values, level: float = 0.95, seed: int = 0
) -> Interval:
    """The share of time that a part takes, from timings with it and with a null in its place.

    The share is ``1 - median(null) / median(real)``; its interval is a percentile bootstrap over
    the pairs (10,000 resamples). Timing i of both must have been taken next to each other, so
    that slow phases of the machine hit both. A negative share is noise; ``covers_zero`` of the
    result says whether the part's cost is lost in it.

    Raises:
        ValueError: unequal lengths, fewer than 5 pairs (no such interval reaches 95 % then), or
            timings that are not positive and finite.
    """
    real = _checked(real_seconds, "real_seconds", minimum=5)
    null = _checked(null_seconds, "null_seconds", minimum=5)
    _check_fraction("level", level)
    _check_pairs(real, null)
    if min(real.min(), null.min()) <= 0:
        raise ValueError("timings must be positive")
    picks = np.random.default_rng(seed).integers(len(real), size=(10_000, len(real)))
    shares = 1.0 - np.median(null[picks], axis=1) / np.median(real[picks], axis=1)
    low, high = np.quantile(shares, [(1 - level) / 2, (1 + level) / 2])
    estimate = 1.0 - np.median(null) / np.median(real)
    return Interval(float(estimate), float(low), float(high), level, len(real))


# --- two arms -----------------------------------------------------------------------------------


def compare(a: Values, b: Values, margin: float, paired: bool, alpha: float = 0.05) -> Comparison:
    """Equivalence and difference test of two arms' means.

    EQUIVALENT: the gap is inside ``margin`` and not significant. EQUIVALENT-BUT-BIASED: inside,
    yet significant. DIFFERENT: significant and not shown to be inside. INCONCLUSIVE: neither.
    Arms without any spread (for a paired design: pairs with one constant difference) are judged
    by that difference itself.

    Args:
        margin: the largest gap that does not matter, in the values' unit; fixed before looking.
        paired: a[i] and b[i] share what makes replicates vary (seed, start, noise).
        alpha: level of both tests.

    Raises:
        ValueError: fewer than 2 values in an arm, values that are not finite, unequal lengths
            in a paired design, margin <= 0, alpha outside (0, 0.5).
    """
    a, b = _checked(a, "a", minimum=2), _checked(b, "b", minimum=2)
    _check_margin(margin)
    _check_fraction("alpha", alpha, 0.5)
    if paired:
        _check_pairs(a, b)
    spread = _spread(a, b, paired)
    test = _exact_tests if spread == 0.0 else _t_tests
    p_difference, p_equivalence, wide, narrow = test(a, b, margin, paired, alpha)
    verdict = _verdict(p_difference < alpha, p_equivalence < alpha)
    inconclusive = verdict is Verdict.INCONCLUSIVE
    return Comparison(
        design="paired" if paired else "independent",
        n_a=len(a),
        n_b=len(b),
        mean_a=_moments(a)[0],
        mean_b=_moments(b)[0],
        difference=wide.estimate,
        difference_interval=wide,
        tost_interval=narrow,
        p_difference=p_difference,
        p_equivalence=p_equivalence,
        margin=float(margin),
        alpha=float(alpha),
        verdict=verdict,
        n_needed=_plan(margin, spread, PLANNED_POWER, alpha, paired) if inconclusive else None,
    )


_Tests = tuple[float, float, Interval, Interval]
"""p_difference, p_equivalence, difference_interval, tost_interval."""


def _t_tests(a: np.ndarray, b: np.ndarray, margin: float, paired: bool, alpha: float) -> _Tests:
    levels = (1 - alpha, 1 - 2 * alpha)
    with np.errstate(over="ignore"):  # a vanishing error: t is infinite and p is 0, both right
        if paired:
            one = DescrStatsW(a - b)
            p_difference, p_equivalence = one.ttest_mean(0.0)[1], one.ttost_mean(-margin, margin)[0]
            bounds = [one.tconfint_mean(1 - level) for level in levels]
        else:
            two = CompareMeans(DescrStatsW(a), DescrStatsW(b))
            p_difference = two.ttest_ind(usevar="unequal")[1]
            p_equivalence = two.ttost_ind(-margin, margin, usevar="unequal")[0]
            bounds = [two.tconfint_diff(1 - level, usevar="unequal") for level in levels]
    gap, n = _gap(a, b, paired), min(len(a), len(b))
    wide, narrow = (
        Interval(gap, float(low), float(high), level, n)
        for (low, high), level in zip(bounds, levels, strict=True)
    )
    return float(p_difference), float(p_equivalence), wide, narrow


def _exact_tests(a: np.ndarray, b: np.ndarray, margin: float, paired: bool, alpha: float) -> _Tests:
    """Nothing varies, so the gap is known and decides both questions without a t value."""
    gap, n = _gap(a, b, paired), min(len(a), len(b))
    wide, narrow = (Interval(gap, gap, gap, level, n) for level in (1 - alpha, 1 - 2 * alpha))
    return float(gap == 0.0), float(abs(gap) >= margin), wide, narrow


def _gap(a: np.ndarray, b: np.ndarray, paired: bool) -> float:
    return _moments(a - b)[0] if paired else _moments(a)[0] - _moments(b)[0]


def _verdict(different: bool, equivalent: bool) -> Verdict:
    if equivalent:
        return Verdict.BIASED if different else Verdict.EQUIVALENT
    return Verdict.DIFFERENT if different else Verdict.INCONCLUSIVE


def _spread(a: np.ndarray, b: np.ndarray, paired: bool) -> float:
    """Standard deviation of one pair's difference; over sqrt(n) it is the gap's error."""
    return math.sqrt(_moments(a - b)[1] if paired else _moments(a)[1] + _moments(b)[1])


# --- planning -----------------------------------------------------------------------------------


def required_n(
    margin: float,
    sd: float,
    power: float = PLANNED_POWER,
    alpha: float = 0.05,
    correlation: float | None = None,
) -> int:
    """Replicates per arm with which TOST passes with this probability if there is no gap.

    Args:
        sd: standard deviation within an arm, in the margin's unit.
        correlation: between the two members of a pair; None for independent arms.

    Raises:
        ValueError: margin or sd not positive, a fraction out of range.
    """
    return _plan(margin, _pair_sd(sd, correlation), power, alpha, correlation is not None)


def tost_power(
    n: int,
    margin: float,
    sd: float,
    gap: float = 0.0,
    alpha: float = 0.05,
    correlation: float | None = None,
) -> float:
    """Probability that TOST passes with n per arm and a true gap; arguments as above.

    Exact for normal values in the paired design; with independent arms the degrees of freedom
    are those of equal variances, which Welch's come close to.
    """
    if n < 2:
        raise ValueError(f"n must be at least 2, got {n}")
    _check_margin(margin)
    _check_fraction("alpha", alpha, 0.5)
    return _power(n, margin, _pair_sd(sd, correlation), gap, alpha, correlation is not None)


def _pair_sd(sd: float, correlation: float | None) -> float:
    """Standard deviation of the difference of two values, one of each arm."""
    if not (math.isfinite(sd) and sd > 0):
        raise ValueError(f"sd must be positive, got {sd}")
    if correlation is not None and not -1.0 <= correlation < 1.0:
        raise ValueError(f"correlation must be in [-1, 1), got {correlation}")
    return sd * math.sqrt(2.0 * (1.0 - (correlation or 0.0)))


def _plan(margin: float, pair_sd: float, power: float, alpha: float, paired: bool) -> int:
    _check_margin(margin)
    _check_fraction("power", power)
    _check_fraction("alpha", alpha, 0.5)
    quantiles = special.ndtri(1.0 - alpha) + special.ndtri((1.0 + power) / 2.0)
    n = max(2, math.ceil((quantiles * pair_sd / margin) ** 2))
    while _power(n, margin, pair_sd, 0.0, alpha, paired) < power - _POWER_SLACK:
        n += 1
    return n


def _power(n: int, margin: float, pair_sd: float, gap: float, alpha: float, paired: bool) -> float:
    """Average over the estimated error (chi-square quantiles) of the chance to pass given it."""
    freedom = n - 1 if paired else 2 * (n - 1)
    middles = (np.arange(_QUADRATURE_POINTS) + 0.5) / _QUADRATURE_POINTS
    estimated = np.sqrt(special.chdtri(freedom, middles) / freedom)  # in units of the true error
    reach = special.stdtrit(freedom, 1.0 - alpha) * estimated
    error = pair_sd / math.sqrt(n)
    upper, lower = (margin - gap) / error - reach, (-margin - gap) / error + reach
    return float(np.maximum(special.ndtr(upper) - special.ndtr(lower), 0.0).mean())


# --- shared pieces ------------------------------------------------------------------------------


def _moments(values: np.ndarray) -> tuple[float, float]:
    """Mean and sample variance; exactly (value, 0) where all are equal, whatever rounding does."""
    if (values == values[0]).all():
        return float(values[0]), 0.0
    return float(values.mean()), float(values.var(ddof=1))


def _t_interval(estimate: float, error: float, freedom: int, level: float, n: int) -> Interval:
    half = float(special.stdtrit(freedom, (1.0 + level) / 2.0)) * error
    return Interval(estimate, estimate - half, estimate + half, level, n)


def _checked(values: Values, name: str, minimum: int = 1) -> np.ndarray:
    array = np.asarray(values, np.float64)
    if array.ndim != 1:
        raise ValueError(f"{name} must be one-dimensional, got shape {array.shape}")
    if len(array) < minimum:
        raise ValueError(f"{name} needs at least {minimum} value(s), got {len(array)}")
    bad = int((~(np.abs(array) <= _LARGEST)).sum())
    if bad:
        raise ValueError(
            f"{name} holds {bad} value(s) of {len(array)} that are NaN, infinite or past 1e150"
        )
    return array


def _check_pairs(a: np.ndarray, b: np.ndarray) -> None:
    if len(a) != len(b):
        raise ValueError(f"a paired design needs equal lengths, got {len(a)} and {len(b)}")


def _check_margin(margin: float) -> None:
    if not (math.isfinite(margin) and margin > 0):
        raise ValueError(f"margin must be positive, got {margin}")


def _check_fraction(name: str, value: float, high: float = 1.0) -> None:
    if not 0.0 < value < high:
        raise ValueError(f"{name} must be in (0, {high:g}), got {value}")
