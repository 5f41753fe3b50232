"""Tests of hypotheses are held against simulation: false alarms, coverage, power; and against naive twins."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from scipy import stats

from spherometer.recipes.statistics import holm, mean_above, mean_within, pearson, spearman, spread_of, stronger


def assert_rate(hits: int, trials: int, rate: float) -> None:
    """A share of hits within four standard errors of a rate."""
    error = math.sqrt(rate * (1 - rate) / trials)
    assert abs(hits / trials - rate) < 4 * error, f"{hits}/{trials} against {rate}"


def assert_rate_at_most(hits: int, trials: int, rate: float) -> None:
    """A share of hits not more than four standard errors above a rate."""
    assert hits / trials < rate + 4 * math.sqrt(rate * (1 - rate) / trials), f"{hits}/{trials} above {rate}"


def test_the_assertions_fail_on_wrong_rates():
    with pytest.raises(AssertionError):
        assert_rate(80, 1000, 0.05)
    with pytest.raises(AssertionError):
        assert_rate_at_most(80, 1000, 0.05)
    assert_rate_at_most(0, 1000, 0.05)


def drawn(num: int, trials: int, *, mean: float = 0.0, seed: int = 0) -> np.ndarray:
    return mean + np.random.default_rng(seed).standard_normal((trials, num))


def correlated(num: int, trials: int, r: float, seed: int = 0) -> np.ndarray:
    """(trials, 2, num) pairs of correlation r."""
    raw = np.random.default_rng(seed).standard_normal((trials, 2, num))
    raw[:, 1] = r * raw[:, 0] + math.sqrt(1 - r * r) * raw[:, 1]
    return raw


def test_t_test_is_that_of_scipy():
    values = drawn(7, 1, mean=0.4)[0]
    found, known = mean_above(values, 0.1), stats.ttest_1samp(values, 0.1, alternative="greater")
    interval = stats.ttest_1samp(values, 0.1).confidence_interval(0.95)
    assert found.p == pytest.approx(known.pvalue)
    assert found.against == pytest.approx(1 - known.pvalue)
    assert (found.low, found.high) == pytest.approx(tuple(interval))
    assert found.value == pytest.approx(values.mean())


@pytest.mark.parametrize("num", [3, 8])
def test_false_alarms_and_coverage_of_means(num):
    tests = [mean_above(values, 0.7) for values in drawn(num, 2000, mean=0.7)]
    assert_rate(sum(test.p < 0.05 for test in tests), 2000, 0.05)
    assert_rate(sum(test.against < 0.025 for test in tests), 2000, 0.025)
    assert_rate(sum(test.low < 0.7 < test.high for test in tests), 2000, 0.95)


@pytest.mark.parametrize(("mean", "alpha"), [(1.2, 0.05), (0.6, 0.0125)])
def test_the_needed_number_has_the_power(mean, alpha):
    values = np.array([mean - 1, mean, mean + 1])  # mean, and spread 1
    num = mean_above(values).needed(alpha)
    assert num is not None
    powers = [
        sum(mean_above(sample).p < alpha for sample in drawn(size, 1500, mean=mean)) / 1500 for size in (num - 1, num)
    ]
    assert powers[1] == pytest.approx(0.8, abs=0.1)
    assert powers[1] > 0.8 - 4 * math.sqrt(0.16 / 1500)
    assert powers[0] < 0.8 + 4 * math.sqrt(0.16 / 1500)


def test_no_number_of_seeds_turns_a_sign():
    assert mean_above([-1.0, -0.5, 0.3]).needed(0.05) is None
    assert pearson([1, 2, 3, 4], [4, 3, 3, 1]).needed(0.05) is None
    assert mean_above([1e-9, -1.0, 1.0]).needed(0.05) is None  # beyond any budget


def test_equivalence_keeps_its_level_at_the_border_and_has_its_power():
    tests = [mean_within(values, 1.0, 1.5) for values in drawn(20, 2000, mean=2.5)]
    assert_rate(sum(test.p < 0.05 for test in tests), 2000, 0.05)
    values = np.array([0.0, 1.0, 2.0])
    num = mean_within(values, 1.0, 1.0).needed(0.05)
    assert num is not None
    power = sum(mean_within(sample, 1.0, 1.0).p < 0.05 for sample in drawn(num, 1500, mean=1.0)) / 1500
    assert power == pytest.approx(0.8, abs=0.08)
    assert mean_within([3.0, 3.1, 2.9], 1.0, 1.0).against < 0.01
    assert mean_within([-3.0, -3.1, -2.9], 1.0, 1.0).against < 0.01


def test_pearson_is_that_of_scipy():
    x, y = correlated(12, 1, 0.4)[0]
    found, known = pearson(x, y), stats.pearsonr(x, y, alternative="greater")
    interval = stats.pearsonr(x, y).confidence_interval(0.95)
    assert found.value == pytest.approx(known.statistic)
    assert found.p == pytest.approx(known.pvalue)
    assert (found.low, found.high) == pytest.approx(tuple(interval))
    assert spearman(x, y) == pytest.approx(stats.spearmanr(x, y).statistic)


def test_false_alarms_coverage_and_power_of_correlations():
    tests = [pearson(x, y) for x, y in correlated(10, 2000, 0.0)]
    assert_rate(sum(test.p < 0.05 for test in tests), 2000, 0.05)
    tests = [pearson(x, y) for x, y in correlated(15, 2000, 0.6, seed=1)]
    assert_rate(sum(test.low < 0.6 < test.high for test in tests), 2000, 0.95)
    side = math.sqrt(0.75)
    seen = pearson([1, -1, 0, 0], [0.5, -0.5, side, -side])
    assert seen.value == pytest.approx(0.5)
    num = seen.needed(0.05)
    assert num is not None
    power = sum(pearson(x, y).p < 0.05 for x, y in correlated(num, 1500, 0.5, seed=2)) / 1500
    assert power == pytest.approx(0.8, abs=0.05)


def test_partial_correlation_takes_the_common_cause_out():
    rng = np.random.default_rng(0)
    rate, batch = rng.uniform(size=(2, 40))
    noise = rng.standard_normal((2, 40))
    x, y = 5 * rate + 3 * batch + noise[0], 5 * rate - 2 * batch + noise[1]
    found = pearson(x, y, [rate, batch])
    inverse = np.linalg.inv(np.cov(np.stack([x, y, rate, batch])))  # the naive twin: from the precision matrix
    assert found.value == pytest.approx(-inverse[0, 1] / math.sqrt(inverse[0, 0] * inverse[1, 1]))
    t = found.value * math.sqrt(36 / (1 - found.value**2))
    assert found.p == pytest.approx(stats.t.sf(t, 36))
    assert pearson(5 * rate, y, [rate]).num == 40
    assert math.isnan(pearson(5 * rate, y, [rate]).value)  # nothing is left of x


def test_false_alarms_of_partial_correlations():
    rng, hits = np.random.default_rng(3), 0
    for _ in range(1500):
        rate, first, second = rng.standard_normal((3, 12))
        hits += pearson(rate + first, rate + second, [rate]).p < 0.05
    assert_rate(hits, 1500, 0.05)


def triples(num: int, trials: int, first: float, second: float, seed: int, *, tails: int | None = None) -> np.ndarray:
    """x, y, z with corr(x, z) = first and corr(y, z) = second, dependent through z; or long tails: Student's t."""
    rng = np.random.default_rng(seed)
    raw = rng.standard_normal((trials, 3, num))
    for place, r in ((0, first), (1, second)):
        raw[:, place] = r * raw[:, 2] + math.sqrt(1 - r * r) * raw[:, place]
    return raw if tails is None else raw / np.sqrt(rng.chisquare(tails, (trials, 1, num)) / tails)


@pytest.mark.parametrize("num", [8, 13, 30])
@pytest.mark.parametrize(("r", "tails"), [(0.0, None), (0.6, None), (0.9, None), (0.0, 5), (0.9, 5)])
def test_false_alarms_and_coverage_of_dependent_correlations(num, r, tails):
    tests = [stronger(*columns) for columns in triples(num, 1000, r, r, seed=num, tails=tails)]
    assert_rate_at_most(sum(test.p < 0.05 for test in tests), 1000, 0.05)
    assert_rate_at_most(sum(test.against < 0.025 for test in tests), 1000, 0.025)
    assert_rate_at_most(sum(not test.low <= 0.0 <= test.high for test in tests), 1000, 0.05)
    assert all((test.low > 0) == (test.p < 0.025) for test in tests)


@pytest.mark.parametrize("num", [8, 13, 30])
def test_coverage_where_one_correlation_is_stronger(num):
    distance = math.atanh(0.9) - math.atanh(0.2)
    tests = [stronger(*columns) for columns in triples(num, 1000, 0.9, 0.2, seed=num)]
    assert_rate_at_most(sum(not test.low <= distance <= test.high for test in tests), 1000, 0.05)
    assert sum(test.p < 0.05 for test in tests) > {8: 400, 13: 750, 30: 980}[num]


@pytest.mark.parametrize("num", [8, 13, 30])
@pytest.mark.parametrize(("first", "second"), [(0.0, 0.0), (0.3, -0.3), (-0.9, 0.9), (0.6, 0.0), (-0.9, 0.2)])
def test_false_alarms_and_coverage_of_how_strong_a_correlation_is(num, first, second):
    distance = abs(math.atanh(first)) - abs(math.atanh(second))
    tests = [stronger(*columns, absolute=True) for columns in triples(num, 1000, first, second, seed=num)]
    assert_rate_at_most(sum(not test.low <= distance <= test.high for test in tests), 1000, 0.05)
    if not distance:
        assert_rate_at_most(sum(test.p < 0.05 for test in tests), 1000, 0.05)
        assert_rate_at_most(sum(test.against < 0.025 for test in tests), 1000, 0.025)


def test_how_strong_a_correlation_is_does_not_ask_for_its_sign():
    x, y, z = triples(30, 1, 0.9, 0.5, seed=4)[0]
    known = stronger(x, y, z)
    assert 0 < pearson(y, z).value < pearson(x, z).value
    for turned in ((x, y, z), (-x, y, z), (x, -y, z), (-x, -y, -z)):
        found = stronger(*turned, absolute=True)
        assert (found.value, found.low, found.p) == pytest.approx((known.value, known.low, known.p))
    assert stronger(-x, y, z).value < 0


def test_the_jackknife_of_dependent_correlations_is_the_textbooks():
    x, y, z = triples(12, 1, 0.7, 0.1, seed=4)[0]

    def distance(kept: list[int]) -> float:
        return math.atanh(stats.pearsonr(x[kept], z[kept])[0]) - math.atanh(stats.pearsonr(y[kept], z[kept])[0])

    everything = list(range(12))
    pseudo = [12 * distance(everything) - 11 * distance([k for k in everything if k != left]) for left in everything]
    error = np.std(pseudo, ddof=1) / math.sqrt(12)
    found = stronger(x, y, z)
    assert found.value == pytest.approx(distance(everything))
    assert found.p == pytest.approx(stats.t.sf(distance(everything) / error, 10))
    assert found.high - found.value == pytest.approx(stats.t.ppf(0.975, 10) * error)


def naive_holm(p_values: list[float], alpha: float) -> list[bool]:
    """The textbook: walk up the sorted p-values, stop at the first that is above alpha / (those left)."""
    rejected = [False] * len(p_values)
    for passed, place in enumerate(np.argsort(p_values)):
        if p_values[place] > alpha / (len(p_values) - passed):
            break
        rejected[place] = True
    return rejected


def test_holm_against_the_textbook():
    rng = np.random.default_rng(0)
    for _ in range(200):
        p_values = list(rng.uniform(size=rng.integers(1, 8)) ** 3)
        corrected = holm(p_values)
        for alpha in (0.01, 0.05, 0.3):
            assert [p <= alpha for p in corrected] == naive_holm(p_values, alpha)
        order = np.argsort(p_values)
        assert all(corrected[a] <= corrected[b] for a, b in pairwise(order))
    assert holm([]) == []
    assert holm([0.6, 0.9]) == [1.0, 1.0]


def test_degenerate_numbers_are_answers():
    assert mean_above([]).num == 0
    assert mean_above([3.0]).p == 1.0
    assert (mean_above([2.0, 2.0]).p, mean_above([2.0, 2.0]).against) == (0.0, 1.0)
    assert (mean_above([-2.0, -2.0]).p, mean_above([-2.0, -2.0]).against) == (1.0, 0.0)
    assert (mean_above([2.0, 2.0], 2.0).p, mean_above([2.0, 2.0], 2.0).against) == (1.0, 1.0)
    assert spread_of([0.1 + 0.2, 0.3]) == 0
    assert spread_of([0.3, 0.300001]) > 0
    for columns in (([1.0, 1.0, 1.0, 1.0], [1, 2, 3, 4]), ([1, 2, 3, math.nan], [1, 2, 3, 4]), ([1, 2], [1, 2])):
        assert math.isnan(pearson(*columns).value)
        assert pearson(*columns).p == 1.0
    assert pearson([1, 2, 3, 4], [2, 4, 6, 8]).p == 0.0
    assert pearson([1, 2, 3, 4], [-2, -4, -6, -8]).against == 0.0
    exact = [pearson(line, line) for line in np.random.default_rng(0).standard_normal((50, 3))]
    assert {(found.value, found.low, found.high) for found in exact} == {(1.0, 1.0, 1.0)}  # and not 1 + 2e-16
    assert pearson([1, 2, 3], [1, 2, 4]).high == 1.0  # three points have no Fisher interval
    assert stronger(*np.ones((3, 20))).p == 1.0
    assert stronger(*triples(5, 1, 0.9, 0.0, seed=0)[0]).p == 1.0
    line = np.arange(9.0)
    assert (stronger(line, -line, line).p, stronger(-line, line, line).against) == (0.0, 0.0)
    assert (stronger(line, line, line).p, stronger(line, line, line).against) == (1.0, 1.0)
    assert stronger(line**2, line == 0, line).p == 1.0  # without the first run a column is constant
