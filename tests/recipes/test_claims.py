"""Sentences become verdicts: what holds, what fails, what cannot be said, and how often that is wrong."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from spherometer.recipes.claims import Claim, Correlation, Inequality, Near, Stronger, Weak, judge
from spherometer.recipes.verdicts import Verdict


def verdict_of(claim, results=None, alpha=0.05) -> Verdict:
    (found,) = judge([claim], results, alpha)
    return found


def margins(*values: float) -> Claim:
    return Claim("it rises", lambda _: values, unit="log", source="A-F1")


def test_a_claim_holds_fails_or_is_undecided():
    holds, fails, open_ = (verdict_of(margins(*values)) for values in ((1, 1.2, 0.9), (-1, -1.2, -0.9), (1, -0.5, 2)))
    assert (holds.answer, fails.answer, open_.answer) == ("holds", "fails", "undecided")
    assert holds.effect == pytest.approx(3.1 / 3)
    assert holds.low > 0
    assert holds.p is not None
    assert holds.p < 0.01
    assert (holds.sentence, holds.source, holds.unit, holds.num, holds.needed) == ("it rises", "A-F1", "log", 3, None)
    assert fails.high < 0
    assert fails.needed is None
    assert open_.low < 0 < open_.high
    assert open_.needed is not None
    assert 5 < open_.needed < 30


def test_claims_get_the_results_and_nothing_else():
    claim = Claim("x", lambda results: results["margins"], least=2.0)
    assert verdict_of(claim, {"margins": [1.0, 1.1, 0.9]}).answer == "fails"
    assert verdict_of(claim, {"margins": [3.0, 3.1, 2.9]}).answer == "holds"
    assert verdict_of(claim, {"margins": [3.0, 3.1, 2.9]}).least == 2.0


def test_several_claims_are_corrected():
    one = margins(1, 1.6, 0.5)
    alone = verdict_of(one)
    among = judge([one, *[margins(1, -1, 0.1)] * 4], None)[0]
    assert alone.p is not None
    assert among.p == pytest.approx(5 * alone.p)
    assert (alone.answer, among.answer) == ("holds", "undecided")
    assert among.needed is not None
    opposite = margins(-1, -1.6, -0.5)
    assert verdict_of(opposite, alpha=0.1).answer == "fails"
    assert judge([opposite, *[margins(1, -1, 0.1)] * 4], None, alpha=0.1)[0].answer == "undecided"
    sure = Inequality("always", lambda _: [1.0])
    assert judge([one, sure, sure], None)[0].p == alone.p  # what is no matter of chance does not count


def test_false_answers_are_as_rare_as_promised():
    rng, trials = np.random.default_rng(0), 1000
    wrong = {"holds": 0, "fails": 0}
    for _ in range(trials):
        claims = [margins(*rng.standard_normal(5)) for _ in range(3)]
        answers = {verdict.answer for verdict in judge(claims, None)}
        for answer in wrong:
            wrong[answer] += answer in answers
    limit = 4 * math.sqrt(0.05 * 0.95 / trials)
    assert 0.01 < wrong["holds"] / trials < 0.05 + limit
    assert 0.005 < wrong["fails"] / trials < 0.025 + limit


def test_one_seed_or_none_decides_nothing():
    for values, words in (((1.0,), "1 number: at least 2"), ((), "no numbers: at least 2")):
        found = verdict_of(margins(*values))
        assert found.answer == "undecided"
        assert words in found.remark
        assert found.needed is None


def test_equal_numbers_decide_by_their_side_and_say_so():
    for values, answer in (((2.0, 2.0, 2.0), "holds"), ((-2.0, -2.0, -2.0), "fails"), ((0.0, 0.0), "undecided")):
        found = verdict_of(margins(*values))
        assert found.answer == answer
        assert "no spread to test by" in found.remark
    assert "no spread" not in verdict_of(margins(1, 2)).remark


def test_missing_numbers_are_told():
    few = verdict_of(margins(1, 1.2, 0.9, 1.1, math.nan))
    assert few.answer == "holds"
    assert "1 of 5 numbers missing, undefined or infinite, left out" in few.remark
    assert "too many" not in few.remark
    assert "failed" not in few.remark  # a number may be undefined in a run that finished
    assert few.num == 4
    many = verdict_of(margins(1, 1.2, math.inf))
    assert many.answer == "undecided"
    assert "too many to say that it holds or fails" in many.remark
    assert verdict_of(margins(-1, -1.02, -0.9, -1.1, math.nan)).answer == "fails"
    left = verdict_of(margins(-1, -1.01, math.nan, math.nan, math.nan))
    assert left.answer == "undecided"
    assert (
        "3 of 5 numbers missing, undefined or infinite, left out: too many to say that it holds or fails" in left.remark
    )
    assert verdict_of(margins(math.nan, math.nan)).answer == "undecided"


def test_what_cannot_be_evaluated_is_undecided_and_says_why():
    found = verdict_of(Claim("x", lambda results: results["nothing"]), {})
    assert found.answer == "undecided"
    assert "could not be evaluated: KeyError: 'nothing'" in found.remark
    with pytest.raises(AttributeError):  # a mistake in a recipe is not an answer
        verdict_of(Claim("x", lambda results: results.nothing), {})


def test_inequalities_count_violations():
    fine = verdict_of(Inequality("A ≤ B", lambda _: [0.5, -1e-9, 2.0], error=1e-8))
    assert (fine.answer, fine.p, fine.num) == ("holds", None, 3)
    assert "none of 3 measurements violate it" in fine.remark
    assert (fine.effect, fine.high) == (-1e-9, 2.0)
    broken = verdict_of(Inequality("A ≤ B", lambda _: [0.5, -0.1, 2.0]))
    assert broken.answer == "fails"
    assert "1 of 3 measurements violates it" in broken.remark
    assert verdict_of(Inequality("A ≤ B", lambda _: [])).answer == "undecided"
    assert verdict_of(Inequality("A ≤ B", lambda _: [1.0, math.nan])).answer == "undecided"
    assert verdict_of(Inequality("A ≤ B", lambda _: [-1.0, math.nan])).answer == "fails"


def test_infinities_on_the_wrong_side_are_no_missing_numbers():
    broken = verdict_of(Inequality("A ≤ B", lambda _: [1.0] * 9 + [-math.inf]))
    assert broken.answer == "fails"
    assert "1 of 10 measurements violates it" in broken.remark
    assert verdict_of(Inequality("A ≤ B", lambda _: [1.0] * 9 + [math.inf])).answer == "holds"
    assert verdict_of(Inequality("A ≤ B", lambda _: [1.0] * 9 + [math.nan])).answer == "undecided"
    rises = verdict_of(margins(1, 1.2, 0.9, 1.1, -math.inf))
    assert rises.answer == "undecided"
    assert "1 infinitely far on the wrong side" in rises.remark
    assert verdict_of(margins(1, 1.2, 0.9, 1.1, math.inf)).answer == "holds"
    assert verdict_of(margins(-1, -1.2, -0.9, -1.1, math.inf)).answer == "undecided"
    assert verdict_of(margins(-1, -1.2, -0.9, -1.1, -math.inf)).answer == "fails"
    near = verdict_of(Near("≈ 1", lambda _: [1, 1.1, 0.9, 1.05, math.inf], target=1.0, tolerance=0.5))
    assert near.answer == "undecided"


def test_near_is_equivalence():
    near, far, open_ = (
        verdict_of(Near("≈ 2", lambda _, values=values: values, target=2.0, tolerance=0.5))
        for values in ([2.0, 2.1, 1.9], [4.0, 4.1, 3.9], [1.0, 2.0, 3.2])
    )
    assert (near.answer, far.answer, open_.answer) == ("holds", "fails", "undecided")
    assert (near.least, near.most) == (1.5, 2.5)
    assert open_.needed is not None
    assert open_.needed > 3


def columns(num: int = 40, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    z = rng.standard_normal(num)
    return z + 0.3 * rng.standard_normal(num), rng.standard_normal(num), z


def test_correlations():
    x, y, z = columns()
    good = verdict_of(Correlation("x with z", lambda _: (x, z)))
    assert good.answer == "holds"
    assert good.low < good.effect < good.high
    assert "Spearman's ρ 0.88" in good.remark
    against = verdict_of(Correlation("x against z", lambda _: (-x, z), sign=-1))
    assert against.answer == "holds"
    assert against.effect == pytest.approx(-good.effect)
    assert (against.low, against.high) == pytest.approx((-good.high, -good.low))
    assert (against.least, against.most) == (None, 0.0)
    assert verdict_of(Correlation("x against z", lambda _: (x, z), sign=-1)).answer == "fails"
    assert verdict_of(Correlation("x with y", lambda _: (x, y))).answer == "undecided"
    flat = verdict_of(Correlation("flat", lambda _: (np.ones(9), np.arange(9))))
    assert flat.answer == "undecided"
    assert "a column is constant" in flat.remark
    assert "expected sign" in verdict_of(Correlation("s", lambda _: (x, z), sign=2)).remark


def test_partial_correlations_need_more_than_a_common_cause():
    rng = np.random.default_rng(1)
    rate = rng.standard_normal(60)
    x, y = (rate + 0.5 * rng.standard_normal(60) for _ in range(2))
    plain = Correlation("x with y", lambda _: (x, y))
    partial = Correlation("x with y given the rate", lambda _: (x, y), given=lambda _: [rate])
    assert verdict_of(plain).answer == "holds"
    assert verdict_of(partial).answer == "undecided"
    assert "partial" in verdict_of(partial).remark
    told = verdict_of(Correlation("x with y", lambda _: (x, y), beside=lambda _: {"ln rate": rate}))
    known = verdict_of(partial)
    assert told.to_dict() | {"remark": ""} == verdict_of(plain).to_dict() | {"remark": ""}
    assert f"given ln rate partial r {known.effect:.2f} ({known.low:.2f} … {known.high:.2f})" in told.remark


def test_the_stronger_of_two_correlations():
    x, y, z = columns()
    found = verdict_of(Stronger("x more than y", lambda _: (x, y, z)))
    assert found.answer == "holds"
    assert found.remark == f"Pearson's r {np.corrcoef(x, z)[0, 1]:.2f} and {np.corrcoef(y, z)[0, 1]:.2f}"
    assert verdict_of(Stronger("y more than x", lambda _: (y, x, z))).answer == "fails"
    few = verdict_of(Stronger("few", lambda _: (x[:5], y[:5], z[:5])))
    assert few.answer == "undecided"
    assert "5 numbers: at least 8" in few.remark
    assert "one length" in verdict_of(Stronger("odd", lambda _: (x[:5], y, z))).remark


def test_a_weak_correlation_is_one_below_a_border():
    x, y, z = columns(num=200)
    assert verdict_of(Weak("y hardly with z", lambda _: (y, z))).answer == "holds"
    assert verdict_of(Weak("x hardly with z", lambda _: (x, z))).answer == "fails"
    assert verdict_of(Weak("-x hardly with z", lambda _: (-x, z))).answer == "holds"
    assert verdict_of(Weak("few", lambda _: (y[:3], z[:3]))).answer == "undecided"
    assert verdict_of(Weak("flat", lambda _: (np.ones(9), z[:9]))).answer == "undecided"
    rng, trials = np.random.default_rng(2), 400
    draws = [rng.multivariate_normal([0, 0], [[1, 0.3], [0.3, 1]], size=50).T for _ in range(trials)]
    wrong = sum(verdict_of(Weak("r = 0.3", lambda _, pair=pair: tuple(pair))).answer == "holds" for pair in draws)
    assert 0.01 < wrong / trials < 0.05 + 4 * math.sqrt(0.05 * 0.95 / trials)


def test_verdicts_are_plain_data():
    for claim in (margins(1.0), margins(1, 2, 3), Inequality("i", lambda _: [])):
        found = verdict_of(claim)
        again = Verdict.from_dict(json.loads(json.dumps(found.to_dict(), allow_nan=False)))
        assert again.to_dict() == found.to_dict()
    with pytest.raises(ValueError, match="expected a verdict"):
        Verdict.from_dict({"sentence": "x"})
    with pytest.raises(ValueError, match="expected an answer of holds, fails, undecided, got 'maybe'"):
        Verdict.from_dict(verdict_of(margins(1, 2)).to_dict() | {"answer": "maybe"})
