"""Delta-good radii (A Thm 4.2): printed, corrected, solved; their ranges and their promises."""

import math

import pytest
import torch
from covering_cases import CASES, assert_promise_kept, covering_radii
from scipy.optimize import brentq
from scipy.stats import beta

from spherometer.theory import Cube, Manifold, Pushforward, Sphere, TruncatedGaussian, covering_radius

PRINTED_IN_THE_SPECIFICATION = [
    (Cube(1), 50, 0.249, 0.276),
    (Cube(2), 200, 0.440, 0.478),
    (Cube(3), 400, 0.682, 0.734),
    (Sphere(1, gamma=0.05), 60, 0.438, 0.762),
    (Sphere(2, gamma=0.05), 300, 0.474, 0.726),
]


@pytest.mark.parametrize(("support", "num", "printed", "corrected"), PRINTED_IN_THE_SPECIFICATION)
def test_formulas_give_the_numbers_worked_out_by_hand(support, num, printed, corrected):
    radii = support.radii(num, 0.1)
    assert radii.printed.formula == pytest.approx(printed, abs=5.1e-4)
    assert radii.corrected.formula == pytest.approx(corrected, abs=5.1e-4)
    assert radii.corrected.in_range
    assert radii.solved.value <= radii.corrected.value


def test_closed_forms():
    for d, num, eps in [(1, 70, 0.2), (4, 10**5, 0.01), (10, 10**7, 0.3)]:
        level = math.log(num / eps) / num
        cube = 4 * math.gamma(d / 2 + 1) ** (1 / d) / math.sqrt(math.pi) * level ** (1 / d)
        assert Cube(d).radius(num, eps, "printed").formula == pytest.approx(cube)
        sphere = 2 ** (1 + 1 / d) * (1 - 0.3) ** -0.5 * level ** (1 / d)
        assert Sphere(d, gamma=0.3).radius(num, eps, "printed").formula == pytest.approx(sphere)
    assert Cube(1).radius(70, 0.2, "printed").formula == pytest.approx(2 * math.log(350) / 70)


def test_the_side_condition_of_the_sphere_is_the_printed_one():
    for num in range(50, 3000, 50):
        for d in (1, 2, 3):
            condition = (2 * math.log(num / 0.1) / num) ** (2 / d) < 0.05 - 0.05**2
            assert Sphere(d, gamma=0.05).radius(num, 0.1, "printed").in_range == condition
    assert not Sphere(2, gamma=0.05).radius(300, 0.1, "printed").in_range


@pytest.mark.parametrize("d", [1, 2, 3, 10])
def test_sphere_constant(d):
    expected = {1: 1 / math.pi, 2: 0.25, 3: 0.2122, 10: 0.1231}[d]
    assert Sphere(d).ball_probability(1e-3) / 1e-3**d == pytest.approx(expected, abs=6e-5)
    for chord in (0.5, 1.2, math.sqrt(2), 1.7, 2.0):
        # the first coordinate u of a uniform point: (1 + u)/2 ~ Beta(d/2, d/2)
        cap = beta(d / 2, d / 2).sf(1 - chord**2 / 4)
        assert Sphere(d).ball_probability(chord) == pytest.approx(cap, rel=1e-9)
    assert Sphere(2).ball_probability(0.5) == pytest.approx(0.5**2 / 4)  # A-e3: the paper claims at least .117


@pytest.mark.parametrize("d", [1, 2, 3, 7])
@pytest.mark.parametrize("gamma", [None, 0.02, 0.4, 0.5, 0.9])
def test_inside_its_range_the_corrected_form_satisfies_the_argument(d, gamma):
    seen = 0
    for support in (Cube(d), Sphere(d, gamma=gamma)):
        for num in (1, 3, 10, 100, 10**4, 10**7):
            for eps in (0.99, 0.5, 1e-3):
                radii = support.radii(num, eps)
                t = radii.corrected.formula / 2
                assert radii.solved.value <= radii.corrected.value * (1 + 1e-12)
                if radii.corrected.in_range and radii.corrected.formula < support.diameter:
                    seen += 1
                    miss = num * math.log1p(-min(support.ball_probability(t), 1 - 1e-16))
                    assert miss - math.log(support.ball_probability(t / 2)) <= math.log(eps) + 1e-9
    assert seen >= 4


@pytest.mark.parametrize(
    ("support", "num", "eps"), [(Cube(2), 200, 0.1), (Cube(6), 10**6, 0.4), (Sphere(3), 900, 1e-6)]
)
def test_solved_is_where_the_inequality_turns(support, num, eps):
    def excess(t):
        return (1 - support.ball_probability(t)) ** num / support.ball_probability(t / 2) - eps

    root = brentq(excess, 0.05, 0.9, xtol=1e-13)
    assert support.radius(num, eps).value == pytest.approx(2 * root, rel=1e-9)


@pytest.mark.parametrize("num", range(1, 12))
def test_two_points_reach_the_promise_exactly(num):
    """Half the mass at 0, half at 1: a draw misses one with probability 2^{1−N}, just what the proof says."""
    pair = Manifold(lambda r: 0.5 if r < 1 else 1.0, dimension=1, diameter=1)
    missed = 2.0 ** (1 - num)
    if num > 1:
        assert pair.radius(num, missed * (1 + 1e-9)).value == pytest.approx(0, abs=1e-12)
    assert pair.radius(num, missed * (1 - 1e-9)).value == 1


@pytest.mark.parametrize("d", [1, 2, 5])
def test_best_gamma_beats_every_other(d):
    for form in ("printed", "corrected"):
        best = Sphere(d).radius(10**5, 0.1, form)
        others = [Sphere(d, gamma=g / 100).radius(10**5, 0.1, form) for g in range(1, 100)]
        for num in range(1, 2000):
            found = Sphere(d).radius(num, 0.1, form)
            assert found.in_range or "must be at most 0.25" in found.reason or "must be at most 1," in found.reason
        assert best.in_range
        assert best.value <= min(other.value for other in others)


def test_out_of_range_the_trivial_radius_is_given_and_said():
    radius = Cube(20).radius(50_000, 0.05, "printed")
    assert radius.formula == pytest.approx(3.19, abs=0.005)  # the specification's number
    assert not radius.in_range
    assert radius.value == math.sqrt(20)
    assert "at most 1" in radius.reason
    assert "trivial" in str(radius)
    assert Cube(784).radius(60_000, 0.05).value == 28
    assert Cube(1).radius(1, 0.9, "corrected").value == 1
    above = Cube(3).radius(14, 0.1, "printed")  # in range, but no better than the diameter
    assert above.in_range
    assert above.value == math.sqrt(3) < above.formula
    assert "diameter" in str(above)


def test_the_printed_cube_is_proved_once_the_logarithm_reaches_two_to_the_d():
    assert Cube(2).radii(10**4, 1e-3).printed_is_proved  # log = 16 ≥ 4
    assert not Cube(5).radii(10**4, 0.1).printed_is_proved  # log = 11.5 < 32
    assert "smaller than the proof" in str(Cube(5).radii(10**4, 0.1))


def test_samples_needed_is_the_first_number_that_is_enough():
    for support in (Cube(3), Sphere(2), Sphere(2, gamma=0.1), Cube(2).pushed_by(3.0)):
        for form in ("printed", "corrected", "solved"):
            num = support.samples_needed(0.5, 0.1, form)
            assert support.radius(num, 0.1, form).value <= 0.5 < support.radius(num - 1, 0.1, form).value
    assert Cube(10).samples_needed(2.0, 0.01, "printed") == pytest.approx(5e3, rel=0.1)
    assert Cube(20).samples_needed(2.0, 0.01, "printed") == pytest.approx(1e9, rel=0.1)
    assert Cube(30).samples_needed(2.0, 0.01, "corrected") == pytest.approx(3e15, rel=0.1)
    assert Cube(4).samples_needed(2.0, 0.1) == 1  # the diameter needs one sample


def test_manifold_agrees_with_cube_and_sphere():
    cube, sphere = Cube(2), Sphere(3)
    square = Manifold(lambda r: math.pi / 4 * min(r, 1) ** 2, dimension=2, diameter=math.sqrt(2))
    for form in ("printed", "corrected", "solved"):
        assert square.radius(500, 0.1, form).value == pytest.approx(cube.radius(500, 0.1, form).value)
    area = 2 * math.pi**2
    same = Manifold(lambda r: area * sphere.ball_probability(r), dimension=3, diameter=2, volume=area)
    assert same.radius(500, 0.1).value == pytest.approx(sphere.radius(500, 0.1).value)
    assert "2^1" in Manifold(lambda r: r**2, dimension=1, diameter=1).radius(500, 0.1, "corrected").reason
    assert "probability" in Manifold(lambda r: 1e-4 * r, dimension=1, diameter=1).radius(500, 0.1, "printed").reason


def test_pushforward_multiplies_every_radius():
    for form in ("printed", "corrected", "solved"):
        plain, pushed = Cube(3).radius(1000, 0.1, form), Pushforward(Cube(3), 2.5).radius(1000, 0.1, form)
        assert pushed.value == pytest.approx(2.5 * plain.value)
        assert plain.scaled(2.5).value == pytest.approx(2.5 * plain.value)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_samples_keep_the_promise(case):
    observed = covering_radii(case)
    for form in ("corrected", "solved"):
        radius = case.support.radius(case.num_samples, 0.1, form)
        assert radius.value < case.support.diameter
        assert_promise_kept(observed, radius.value, 0.1)
    assert float(torch.quantile(observed, 0.9)) == pytest.approx(case.observed_quantile, rel=0.08)


def test_the_promise_can_be_broken():
    observed = covering_radii(CASES[0])
    with pytest.raises(AssertionError, match="promised"):
        assert_promise_kept(observed, float(torch.quantile(observed, 0.75)), 0.1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Cube(0), "dimension must be at least 1, got 0"),
        (lambda: Sphere(-2), "dimension must be at least 1"),
        (lambda: Cube(2.5), "whole number.*round"),
        (lambda: Sphere(2, gamma=1.0), "gamma must lie strictly between"),
        (lambda: Cube(2).radii(0, 0.1), "num_samples must be at least 1, got 0"),
        (lambda: Cube(2).radii(2**2000, 0.1), "num_samples must be at most"),
        (lambda: Cube(2).radii(10, 0.0), "epsilon must lie strictly between 0 and 1, got 0.0"),
        (lambda: Cube(2).radii(10, 1.0), "epsilon"),
        (lambda: Cube(2).radii(10, math.nan), "epsilon"),
        (lambda: Cube(2).radius(10, 0.1, "exact"), "form must be"),
        (lambda: Cube(2).samples_needed(0.0, 0.1), "radius must be positive"),
        (lambda: Cube(784).samples_needed(0.1, 0.1), "more than 1e301 samples"),
        (lambda: Cube(2).pushed_by(0.0), "lipschitz must be positive"),
        (lambda: Manifold(lambda r: r**2, dimension=2, diameter=2.0), "at most volume"),
        (lambda: Manifold(lambda r: 1 - r, dimension=2, diameter=1.0), "grow with the radius"),
    ],
)
def test_bad_arguments_get_one_clear_line(call, message):
    with pytest.raises(ValueError, match=message) as error:
        call()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("d", [1, 2])
def test_G5_truncated_normal_keeps_its_promise(d):
    support, generator = TruncatedGaussian(d, tail=0.05), torch.Generator().manual_seed(d)

    def draw(num):
        points = torch.randn(2 * num + 50, d, generator=generator, dtype=torch.float64)
        return points[points.norm(dim=1) <= support.reach][:num]

    probes = draw(20_000)
    assert float((probes.norm(dim=1) <= support.reach).double().mean()) == 1
    num = 300 if d == 1 else 4000
    radius = support.radius(num, 0.1)
    assert radius.in_range
    assert radius.value < support.diameter
    observed = [covering_radius(draw(num), probes[:500]).value for _ in range(40)]
    assert sum(seen > radius.value for seen in observed) <= 4
    edge = torch.zeros(1, d, dtype=torch.float64)
    edge[0, 0] = support.reach
    for reach in (0.3, 1.0):  # the least probable ball lies at the edge, and holds more than is claimed
        share = float(((probes - edge).norm(dim=1) <= reach).double().mean())
        assert share >= support.ball_probability(reach)
