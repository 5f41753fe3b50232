"""Sentences of a paper as statistical tests, fixed before anything runs.

A claim knows how to get its numbers from the results of an experiment, and never looks at them otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from spherometer.recipes.statistics import (
    LEAST_RUNS,
    Numbers,
    Tested,
    holm,
    mean_above,
    mean_within,
    pearson,
    pearson_below,
    spearman,
    spread_of,
    stronger,
)
from spherometer.recipes.verdicts import Answer, Verdict

MISSING = 0.2  # a larger share of missing numbers leaves a claim undecided
MISSED = (ArithmeticError, LookupError, ValueError)  # what is raised where numbers are missing; the rest are mistakes


@dataclass(frozen=True)
class Evidence:
    """What a claim finds: a test, the border of what is claimed, how many numbers are missing, and remarks.

    `spare` are the shares of missing numbers with which it may hold, and fail, all the same.
    """

    tested: Tested
    missing: int
    remarks: tuple[str, ...] = ()
    least: float | None = 0.0
    most: float | None = None
    spare: tuple[float, float] = (MISSING, MISSING)

    def allows(self, answer: Answer) -> bool:
        """Whether so few numbers are missing that it may hold, or fail."""
        share = self.spare[0 if answer == "holds" else 1]
        return bool(self.tested.num) and self.missing <= share * (self.tested.num + self.missing)


@dataclass(frozen=True)
class Claim:
    """One margin for each seed, positive where the sentence is right; a one-sided t-test of their mean over `least`.

    Example:
        >>> Claim("more smoothing, less sharpening", lambda results: falling(results, "sharpness", over="smoothing"))
    """

    sentence: str
    margins: Callable[[Any], Numbers]
    unit: str = ""
    least: float = 0.0
    source: str = ""

    def evidence(self, results: Any, level: float) -> Evidence:
        """The t-test."""
        found = _column(self.margins(results))
        (margins,), missing = _finite(found)
        wrong, right = int(np.isneginf(found).sum()), int(np.isposinf(found).sum())
        tested = mean_above(margins, self.least, level=level)
        spare = (0.0 if wrong else MISSING, 0.0 if right else MISSING)
        return Evidence(tested, missing, _sameness(margins) + _endless(wrong), self.least, spare=spare)


@dataclass(frozen=True)
class Near:
    """Numbers whose mean is within `tolerance` of `target`, by two one-sided t-tests."""

    sentence: str
    values: Callable[[Any], Numbers]
    target: float
    tolerance: float
    unit: str = ""
    source: str = ""

    def evidence(self, results: Any, level: float) -> Evidence:
        """The two t-tests."""
        found = _column(self.values(results))
        (values,), missing = _finite(found)
        wrong = int(np.isinf(found).sum())
        tested = mean_within(values, self.target, self.tolerance, level=level)
        least, most = self.target - self.tolerance, self.target + self.tolerance
        remarks = _sameness(values) + _endless(wrong)
        return Evidence(tested, missing, remarks, least, most, spare=(0.0 if wrong else MISSING, MISSING))


@dataclass(frozen=True)
class Correlation:
    """Two columns over runs go together (`sign` 1) or against each other (−1): Pearson's r; Spearman's is told.

    Args:
        given: columns, such as learning rate and batch size, whose linear share is taken out first: a partial r.
        beside: columns given which the partial r is told in the remark, while the plain r is tested.
    """

    sentence: str
    pairs: Callable[[Any], tuple[Numbers, Numbers]]
    sign: int = 1
    given: Callable[[Any], Sequence[Numbers]] | None = None
    beside: Callable[[Any], Mapping[str, Numbers]] | None = None
    unit: str = "Pearson's r"
    source: str = ""

    def evidence(self, results: Any, level: float) -> Evidence:
        """The test of r, or of the partial r."""
        if self.sign not in (1, -1):
            raise ValueError(f"expected sign 1 or -1, got {self.sign}")
        given = () if self.given is None else self.given(results)
        pairs = self.pairs(results)
        (x, y, *others), missing = _finite(*pairs, *given)
        tested = pearson(self.sign * x, y, others, level=level)
        words = [f"Spearman's ρ {spearman(x, y):.2f}"] if len(x) > 2 else []
        words += ["partial, given others"] if self.given is not None else []
        words += [] if self.beside is None else [_told_partial(*pairs, self.beside(results), level)]
        if math.isnan(tested.value) and len(x) > 2 + len(others):
            words.append("a column is constant: it has no correlation")
        if self.sign > 0:
            return Evidence(tested, missing, tuple(words))
        turned = replace(tested, value=-tested.value, low=-tested.high, high=-tested.low)
        return Evidence(turned, missing, tuple(words), None, 0.0)


@dataclass(frozen=True)
class Weak:
    """Two columns over runs hardly go together, or against each other: Pearson's r is below `most`.

    0.3 is where Cohen (1988) has correlations of medium size begin.
    """

    sentence: str
    pairs: Callable[[Any], tuple[Numbers, Numbers]]
    most: float = 0.3
    unit: str = "Pearson's r"
    source: str = ""

    def evidence(self, results: Any, level: float) -> Evidence:
        """Fisher's test of r against the border."""
        (x, y), missing = _finite(*self.pairs(results))
        return Evidence(pearson_below(x, y, self.most, level=level), missing, (), None, self.most)


@dataclass(frozen=True)
class Stronger:
    """Of three columns (x, y, z) over runs, x correlates more with z than y does: the jackknife over runs.

    Args:
        absolute: how strong counts, and not which way: of r = −0.9 and 0.2 the first is stronger.
    """

    sentence: str
    columns: Callable[[Any], tuple[Numbers, Numbers, Numbers]]
    unit: str = "difference of artanh r"
    source: str = ""
    absolute: bool = False

    def evidence(self, results: Any, level: float) -> Evidence:
        """The t-test of the jackknife; both correlations are told."""
        (x, y, z), missing = _finite(*self.columns(results))
        if len(x) < LEAST_RUNS:
            words = f"{len(x)} numbers: at least {LEAST_RUNS} are needed to judge by"
        else:
            words = f"Pearson's r {pearson(x, z).value:.2f} and {pearson(y, z).value:.2f}"
        return Evidence(stronger(x, y, z, absolute=self.absolute, level=level), missing, (words,))


@dataclass(frozen=True)
class Inequality:
    """A statement that must be right in every single measurement: margins ≥ −`error`, whatever the seed.

    −∞ violates it; with a measurement missing it cannot hold.
    """

    sentence: str
    margins: Callable[[Any], Numbers]
    error: float = 0.0
    unit: str = ""
    source: str = ""

    def evidence(self, results: Any, level: float) -> Evidence:  # noqa: ARG002  no matter of chance
        """Counts violations; the effect is the smallest margin, its interval reaches to the largest."""
        found = _column(self.margins(results))
        margins, missing = found[~np.isnan(found)], int(np.isnan(found).sum())
        wrong, num = int((margins < -self.error).sum()), len(margins)
        low, high = (float(margins.min()), float(margins.max())) if num else (math.nan, math.nan)
        words = f"{wrong or 'none'} of {num} measurement{'s' * (num != 1)} violate{'s' * (wrong == 1)} it"
        tested = Tested(low, low, high, float(wrong > 0 or not num), float(not wrong), num)
        return Evidence(tested, missing, (words,) if num else (), -self.error, spare=(0.0, 1.0))


AnyClaim = Claim | Near | Correlation | Weak | Stronger | Inequality


def judge(claims: Sequence[AnyClaim], results: Any, alpha: float = 0.05) -> list[Verdict]:
    """The verdicts of a recipe's claims, corrected for their number by Holm's procedure.

    *holds*: the corrected p is below alpha. *fails*: the corrected p of the opposite is below alpha / 2, which for a
    single claim is an interval that excludes the claimed side. *undecided*: neither, or too many numbers are missing:
    more than a fifth for either, any for an inequality to hold.
    Inequalities are not a matter of chance and stand outside the correction.

    Example:
        >>> judge([Claim("it rises", lambda results: [1.0, 1.2, 0.9])], None)[0].answer
        'holds'
    """
    found = [_evidence(claim, results, 1 - alpha) for claim in claims]
    chance = [place for place, claim in enumerate(claims) if not isinstance(claim, Inequality)]
    corrected = [(one.tested.p, one.tested.against) for one in found]
    for place, p, against in zip(
        chance,
        holm([found[place].tested.p for place in chance]),
        holm([found[place].tested.against for place in chance]),
        strict=True,
    ):
        corrected[place] = (p, against)
    share = alpha / max(1, len(chance))
    return [
        _verdict(claim, one, answer_of(one, p, against, alpha), p, share)
        for claim, one, (p, against) in zip(claims, found, corrected, strict=True)
    ]


def answer_of(evidence: Evidence, p: float, against: float, alpha: float) -> Answer:
    """The answer that corrected p-values give."""
    if against < alpha / 2 and evidence.allows("fails"):
        return "fails"
    return "holds" if p < alpha and evidence.allows("holds") else "undecided"


def _verdict(claim: AnyClaim, one: Evidence, answer: Answer, p: float, share: float) -> Verdict:
    tested, remarks = one.tested, list(one.remarks)
    if one.missing:
        remarks.append(_told_missing(one))
    if answer == "undecided" and tested.num < 2 and not isinstance(claim, Inequality | Stronger):
        remarks.append(f"{tested.num or 'no'} number{'s' * (tested.num != 1)}: at least 2 are needed to judge by")
    needed = tested.needed(share) if answer == "undecided" else None
    return Verdict(
        sentence=claim.sentence,
        source=claim.source,
        answer=answer,
        effect=tested.value,
        low=tested.low,
        high=tested.high,
        unit=claim.unit,
        p=None if isinstance(claim, Inequality) else p,
        num=tested.num,
        needed=None if needed is None else max(needed, tested.num + 1),
        remark="; ".join(remarks),
        least=one.least,
        most=one.most,
    )


def _told_missing(one: Evidence) -> str:
    words = f"{one.missing} of {one.tested.num + one.missing} numbers missing, undefined or infinite, left out"
    answers: tuple[Answer, ...] = ("holds", "fails")
    refused = [answer for answer in answers if not one.allows(answer)]
    return f"{words}: too many to say that it {' or '.join(refused)}" if refused else words


def _evidence(claim: AnyClaim, results: Any, level: float) -> Evidence:
    """What the claim finds; numbers that cannot be had leave it undecided, and say so."""
    try:
        return claim.evidence(results, level)
    except MISSED as error:
        nothing = Tested(math.nan, math.nan, math.nan, 1.0, 1.0, 0)
        return Evidence(nothing, 0, (f"could not be evaluated: {type(error).__name__}: {error}",))


def _told_partial(x: Numbers, y: Numbers, given: Mapping[str, Numbers], level: float) -> str:
    (first, second, *others), _ = _finite(x, y, *given.values())
    found = pearson(first, second, others, level=level)
    return f"given {' and '.join(given)} partial r {found.value:.2f} ({found.low:.2f} … {found.high:.2f})"


def _column(numbers: Numbers) -> np.ndarray:
    return np.asarray(numbers, dtype=float).ravel()


def _endless(num: int) -> tuple[str, ...]:
    """Infinities on the wrong side have no mean to test, and are no reason to leave them out either."""
    return (f"{num} infinitely far on the wrong side",) if num else ()


def _finite(*columns: Numbers) -> tuple[list[np.ndarray], int]:
    """The rows that are finite in all columns, and how many are not."""
    found = [_column(column) for column in columns]
    if len({len(column) for column in found}) > 1:
        raise ValueError(f"expected columns of one length, got {', '.join(str(len(column)) for column in found)}")
    kept = np.isfinite(found).all(0)
    return [column[kept] for column in found], int((~kept).sum())


def _sameness(values: np.ndarray) -> tuple[str, ...]:
    """Equal numbers of different seeds are an answer without chance, or a seed that does nothing."""
    if len(values) < 2 or spread_of(values) > 0:
        return ()
    return (f"all {len(values)} numbers are equal: no spread to test by, the side they are on decides",)
