"""Student's t, Pearson's r, Holm: the few tests that verdicts need.  Knows nothing of networks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import special, stats

Numbers = Sequence[float] | np.ndarray
MOST = 100_000  # a needed number beyond this is no advice
POWER = 0.8
LEAST_RUNS = 8  # fewer runs say nothing about the difference of two correlations


@dataclass(frozen=True)
class Tested:
    """A value with its interval, and two p-values: a small `p` speaks for the claim, `against` for its opposite.

    `needed(alpha)` is about how many numbers would show the claim with power 0.8 if the value seen is the true one;
    None when it lies on the wrong side.
    """

    value: float
    low: float
    high: float
    p: float
    against: float
    num: int
    needed: Callable[[float], int | None] = lambda _: None


def mean_above(values: Numbers, least: float = 0.0, *, level: float = 0.95) -> Tested:
    """One-sided t-test of mean > least, and the two-sided interval of the mean.

    p = P(T_{n-1} > (x̄ − least) √n / s). Equal numbers have no spread to judge by: the interval is a point, and p is 0
    or 1 by the side they are on.

    Example:
        >>> mean_above([1.0, 1.2, 0.9]).p < 0.01
        True
    """
    found = np.asarray(values, dtype=float)
    if len(found) < 2:
        return Tested(float(found.mean()) if len(found) else math.nan, -math.inf, math.inf, 1.0, 1.0, len(found))
    num, mean, spread = len(found), float(found.mean()), spread_of(found)
    if spread == 0:
        return Tested(mean, mean, mean, float(mean <= least), float(mean >= least), num)
    error = spread / math.sqrt(num)
    reach = float(special.stdtrit(num - 1, (1 + level) / 2)) * error
    p, against = _tails((mean - least) / error, num - 1)
    return Tested(
        mean, mean - reach, mean + reach, p, against, num, lambda alpha: _seeds([mean - least], spread, alpha)
    )


def mean_within(values: Numbers, target: float, tolerance: float, *, level: float = 0.95) -> Tested:
    """Equivalence, |mean − target| < tolerance, by two one-sided t-tests (Schuirmann 1987): the larger p counts."""
    found = np.asarray(values, dtype=float)
    above = mean_above(found, target - tolerance, level=level)
    below = mean_above(-found, -target - tolerance, level=level)
    distances = [above.value - target + tolerance, target + tolerance - above.value]
    return Tested(
        above.value,
        above.low,
        above.high,
        max(above.p, below.p),
        min(above.against, below.against),
        above.num,
        lambda alpha: _seeds(distances, spread_of(found), alpha),
    )


def spread_of(values: Numbers) -> float:
    """The standard deviation with n − 1; what rounding leaves of equal numbers counts as zero."""
    found = np.asarray(values, dtype=float)
    spread = float(found.std(ddof=1)) if len(found) > 1 else 0.0
    return 0.0 if spread <= 1e-12 * float(np.abs(found).max(initial=0.0)) else spread


def pearson(x: Numbers, y: Numbers, given: Sequence[Numbers] = (), *, level: float = 0.95) -> Tested:
    """Pearson's r, or the partial r given other columns, with Fisher's interval; p is one-sided for r > 0.

    artanh r is normal with variance 1 / (n − 3 − k) for k given columns; p comes from the exact t-test of r. A constant
    column, or a number that is not finite, has no correlation: nan.

    Example:
        >>> round(pearson([1, 2, 3, 4, 5], [1, 2, 3, 5, 4]).value, 2)
        0.9
    """
    columns = [np.asarray(column, dtype=float) for column in (x, y, *given)]
    num, freedom = len(columns[0]), len(columns[0]) - 2 - len(given)
    if freedom < 1 or not all(np.isfinite(column).all() for column in columns):
        return Tested(math.nan, -1.0, 1.0, 1.0, 1.0, num)
    first, second = (_residual(column, columns[2:]) for column in columns[:2])
    size = float(np.linalg.norm(first) * np.linalg.norm(second))
    if size == 0:
        return Tested(math.nan, -1.0, 1.0, 1.0, 1.0, num)
    r = float(first @ second) / size
    if abs(r) > 1 - 1e-12:
        whole = math.copysign(1.0, r)
        return Tested(whole, whole, whole, float(r < 0), float(r > 0), num)
    t, needed = r * math.sqrt(freedom / (1 - r * r)), lambda alpha: _pairs(r, len(given), alpha)
    reach = float(special.ndtri((1 + level) / 2)) / math.sqrt(freedom - 1) if freedom > 1 else math.inf
    low, high = (math.tanh(math.atanh(r) + sign * reach) for sign in (-1, 1))
    return Tested(r, low, high, *_tails(t, freedom), num, needed)


def pearson_below(x: Numbers, y: Numbers, most: float, *, level: float = 0.95) -> Tested:
    """Pearson's r < most by Fisher's artanh r, which is normal with variance 1 / (n − 3)."""
    found = pearson(x, y, level=level)
    if math.isnan(found.value) or found.num < 4:
        return replace(found, p=1.0, against=1.0, needed=lambda _: None)
    reach = (math.atanh(min(max(found.value, -1 + 1e-12), 1 - 1e-12)) - math.atanh(most)) * math.sqrt(found.num - 3)
    return replace(found, p=float(special.ndtr(reach)), against=float(special.ndtr(-reach)), needed=lambda _: None)


def spearman(x: Numbers, y: Numbers) -> float:
    """Spearman's ρ: Pearson's r of the ranks; nan where a column is constant."""
    return pearson(stats.rankdata(x), stats.rankdata(y)).value


def stronger(x: Numbers, y: Numbers, z: Numbers, *, absolute: bool = False, level: float = 0.95) -> Tested:
    """artanh r(x, z) − artanh r(y, z) on the same runs, by the jackknife over runs and Student's t with n − 2 degrees.

    `absolute` compares |artanh r|, how strong and not which way: x and y are turned to go with z in all runs, and stay
    so turned where one is left out. Folding each r by itself would hide its error near 0.

    The two correlations share z and the runs, so their errors are dependent; leaving whole runs out keeps that. artanh
    makes the errors alike at any r (Miller 1974, Hinkley 1978). It keeps its level with few runs, where a percentile
    bootstrap does not, and with long tails, where the t of Williams (1959), made for normal columns, does not.

    Example:
        >>> stronger([1, 2, 3, 4, 5, 6, 7, 9], [2, 1, 4, 3, 8, 5, 6, 7], [1, 2, 3, 4, 5, 6, 7, 8]).value > 0
        True
    """
    columns = np.stack([np.asarray(column, dtype=float) for column in (x, y, z)])
    num = columns.shape[1]
    if absolute and num:
        columns[:2] *= _directions(columns)
    value = float(_difference(columns[:, None])[0]) if num else math.nan
    nothing = Tested(value, -math.inf, math.inf, 1.0, 1.0, num)
    if num < LEAST_RUNS:
        return nothing
    found = _difference(columns[:, [np.delete(np.arange(num), left_out) for left_out in range(num)]])
    error = math.sqrt((num - 1) * float(found.var()))
    if not math.isfinite(value + error):
        return nothing
    if error <= 1e-12:
        return replace(nothing, low=value, high=value, p=float(value <= 0), against=float(value >= 0))
    reach = float(special.stdtrit(num - 2, (1 + level) / 2)) * error
    p, against = _tails(value / error, num - 2)
    spread = error * math.sqrt(num)
    return Tested(value, value - reach, value + reach, p, against, num, lambda alpha: _seeds([value], spread, alpha))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction: sorted p times the number of those not yet passed, never falling, at most 1.

    Example:
        >>> holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]
    """
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    corrected, least = [0.0] * len(p_values), 0.0
    for passed, place in enumerate(order):
        least = max(least, min(1.0, (len(p_values) - passed) * p_values[place]))
        corrected[place] = least
    return corrected


def _tails(t: float, freedom: int) -> tuple[float, float]:
    """P(T > t) and P(T < t) of Student's distribution."""
    return float(special.stdtr(freedom, -t)), float(special.stdtr(freedom, t))


def _seeds(distances: Sequence[float], spread: float, alpha: float) -> int | None:
    """How many numbers one-sided t-tests need to see all of some distances to their borders at once.

    The power is that of the noncentral t distribution, of several tests at least the sum of the powers less the others.
    """
    if not (min(distances) > 0 and spread > 0):  # numbers that do not vary tell nothing about how many are needed
        return None

    def enough(num: int) -> bool:
        critical = special.stdtrit(num - 1, 1 - alpha)
        powers = [1 - special.nctdtr(num - 1, distance / spread * math.sqrt(num), critical) for distance in distances]
        return bool(sum(powers) - (len(powers) - 1) >= POWER)

    return _least(enough)


def _pairs(r: float, given: int, alpha: float) -> int | None:
    """How many pairs show a correlation: ((z_α + z_power) / artanh r)² + 3 + k."""
    if not r > 0:
        return None
    num = math.ceil((float(special.ndtri(1 - alpha) + special.ndtri(POWER)) / math.atanh(r)) ** 2 + 3 + given)
    return num if num <= MOST else None


def _least(enough: Callable[[int], bool]) -> int | None:
    """The least number that is enough, by doubling and halving."""
    low, high = 1, 2
    while not enough(high):
        if high > MOST:
            return None
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _residual(column: np.ndarray, given: Sequence[np.ndarray]) -> np.ndarray:
    """What is left of a column after its mean and a linear fit of the given columns; rounding counts as nothing."""
    centred = column - column.mean()
    if given:
        base = np.stack([other - other.mean() for other in given], axis=1)
        centred = centred - base @ np.linalg.lstsq(base, centred, rcond=None)[0]
    rounding = 1e-12 * math.sqrt(len(column)) * float(np.abs(column).max())
    return centred if np.linalg.norm(centred) > rounding else np.zeros_like(column)


def _directions(columns: np.ndarray) -> np.ndarray:
    """1 for each of x and y that goes with z, −1 for one that goes against it."""
    centred = columns - columns.mean(1, keepdims=True)
    return np.where(centred[:2] @ centred[2] < 0, -1.0, 1.0)[:, None]


def _difference(columns: np.ndarray) -> np.ndarray:
    """artanh r(x, z) − artanh r(y, z) for a stack of samples (3, samples, num); nan where a column is constant."""
    centred = columns - columns.mean(2, keepdims=True)
    sizes = np.sqrt((centred**2).sum(2))
    with np.errstate(invalid="ignore", divide="ignore"):
        found = (centred[:2] * centred[2]).sum(2) / (sizes[:2] * sizes[2])
    first, second = np.arctanh(np.clip(found, -1 + 1e-12, 1 - 1e-12))
    return np.asarray(first - second)
