"""Covering radii and intrinsic dimensions of real samples."""

import time

import numpy as np
import pytest
import torch
from covering_cases import uniform
from torch.utils._python_dispatch import TorchDispatchMode

from assertions import assert_honest
from spherometer.theory import Cube, Sphere, covering_radius, levina_bickel, neighbours, two_nearest_neighbours
from spherometer.theory.neighbours import nearest_neighbours


def generator(seed):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("block", [1, 700, neighbours.BLOCK])
@pytest.mark.parametrize("num", [1, 4])
def test_blocks_find_the_neighbours_of_all_pairs(monkeypatch, block, num):
    monkeypatch.setattr(neighbours, "BLOCK", block)
    points = torch.randn(60, 7, generator=generator(0), dtype=torch.float64) + 1e4
    queries = torch.randn(23, 7, generator=generator(1), dtype=torch.float64) + 1e4
    dense = (queries[:, None] - points).norm(dim=2)
    distances, indices = nearest_neighbours(queries, points, num)
    torch.testing.assert_close(distances, dense.sort(1).values[:, :num], rtol=1e-9, atol=0)
    torch.testing.assert_close(dense.gather(1, indices), distances, rtol=1e-9, atol=0)
    own = (points[:, None] - points).norm(dim=2).fill_diagonal_(torch.inf).sort(1).values[:, :num]
    torch.testing.assert_close(nearest_neighbours(points, points, num, same=True)[0], own, rtol=1e-9, atol=0)


class LargestTensor(TorchDispatchMode):
    """The most numbers that one tensor made inside the block holds."""

    numel = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        made = result if isinstance(result, tuple | list) else [result]
        self.numel = max([self.numel, *(part.numel() for part in made if isinstance(part, torch.Tensor))])
        return result


def test_no_tensor_holds_all_pairs(monkeypatch):
    monkeypatch.setattr(neighbours, "BLOCK", 8000)
    points = torch.randn(1000, 3, generator=generator(0), dtype=torch.float64)
    with LargestTensor() as largest:
        nearest_neighbours(points, points, 10, same=True)
    assert largest.numel <= 2 * 1000 * 10  # the answer holds 10 a point
    with LargestTensor() as largest:
        torch.cdist(points, points)
    assert largest.numel == 1000**2


def exact_on_the_interval(samples):
    """The largest gap: half of it inside, all of it at an end."""
    ordered = samples.flatten().sort().values
    return max(float(ordered[0]), float(1 - ordered[-1]), float(ordered.diff().max()) / 2)


def test_probes_bracket_the_covering_radius():
    below, uncovered_right, above = 0, 0, 0
    for seed in range(300):
        draws = generator(seed)
        samples, probes = uniform(Cube(1), 20, draws), uniform(Cube(1), 100, draws)
        found, truth = covering_radius(samples, probes, confidence=0.8), exact_on_the_interval(samples)
        fine = torch.linspace(0, 1, 4001, dtype=torch.float64)[:, None]
        share = float((torch.cdist(fine, samples).amin(1) > found.value).double().mean())
        below += found.value <= truth
        uncovered_right += share <= found.uncovered + 1e-3
        above += found.upper(Cube(1)) >= truth
    assert below == 300
    assert 220 <= uncovered_right <= 262  # 240 promised, and sharp: three standard deviations either side
    assert above >= 220


def test_the_statement_of_a_covering_radius():
    found = covering_radius(torch.zeros(1, 2), torch.tensor([[3.0, 4.0], [0.0, 1.0]]), confidence=0.75)
    assert found.value == 5
    assert found.uncovered == pytest.approx(0.5)
    assert "at most 0.5 of the distribution" in str(found)
    on_sphere = covering_radius(uniform(Sphere(2), 50, generator(0)), uniform(Sphere(2), 50, generator(1)))
    assert on_sphere.value < on_sphere.upper(Sphere(2)) < 2


def test_a_lipschitz_map_scales_the_covering_radius_at_most_by_its_constant():  # T48
    for seed in range(50):
        draws = generator(seed)
        samples, probes = uniform(Cube(2), 30, draws), uniform(Cube(2), 500, draws)
        matrix = torch.randn(5, 2, generator=draws, dtype=torch.float64)
        lipschitz = float(torch.linalg.matrix_norm(matrix, 2))
        image = covering_radius((samples @ matrix.T).tanh(), (probes @ matrix.T).tanh())
        assert image.value <= lipschitz * covering_radius(samples, probes).value * (1 + 1e-12)


def test_ten_thousand_points_in_a_hundred_dimensions_take_seconds():
    samples = torch.rand(10_000, 100, generator=generator(0))
    begin = time.process_time()
    covering_radius(samples, torch.rand(10_000, 100, generator=generator(1)))
    assert time.process_time() - begin < 20


@pytest.mark.parametrize("estimator", [two_nearest_neighbours, levina_bickel])
@pytest.mark.parametrize("dimension", [1, 2])
def test_dimension_bars_are_honest_on_the_sphere(estimator, dimension):
    scores = []
    for seed in range(300):
        found = estimator(uniform(Sphere(dimension), 400, generator(seed)))
        scores.append((found.value - dimension) / found.error)
    assert_honest(scores)


@pytest.mark.parametrize("dimension", [1, 2, 4])
def test_dimension_does_not_see_the_space_around(dimension):
    points = uniform(Cube(dimension), 3000, generator(dimension))
    mixed = points @ torch.linalg.qr(torch.randn(30, dimension, generator=generator(9)).double()).Q.T
    for estimator in (two_nearest_neighbours, levina_bickel):
        assert float(estimator(mixed)) == pytest.approx(float(estimator(points)), rel=1e-6)
        assert float(estimator(mixed)) == pytest.approx(dimension, rel=0.15)
        assert float(estimator(1e3 * mixed)) == pytest.approx(float(estimator(mixed)), rel=1e-6)


def test_levina_bickel_against_its_formula():
    points = torch.randn(40, 3, generator=generator(0), dtype=torch.float64)
    apart = torch.cdist(points, points).fill_diagonal_(torch.inf).sort(1).values[:, :5]
    total = sum(float(torch.log(apart[i, 4] / apart[i, j])) for i in range(40) for j in range(4))
    assert float(levina_bickel(points, 5)) == pytest.approx((40 * 4 - 1) / total)


def test_equal_points_are_left_out_and_counted():
    points = uniform(Cube(2), 100, generator(0))
    doubled = torch.cat([points, points[:30]])
    assert float(two_nearest_neighbours(doubled)) == pytest.approx(float(two_nearest_neighbours(points)))
    assert "30 equal ones left out" in two_nearest_neighbours(doubled).note


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: covering_radius(torch.empty(0, 2), torch.ones(3, 2)), "samples must hold at least 1 points"),
        (lambda: covering_radius(torch.ones(3, 2), torch.empty(0, 2)), "probes must hold at least 1 points"),
        (lambda: covering_radius(torch.ones(3), torch.ones(3)), "one a row, got shape"),
        (lambda: covering_radius(torch.ones(3, 2), torch.ones(3, 4)), "2 coordinates and probes 4"),
        (lambda: covering_radius(torch.ones(3, 2), torch.full((3, 2), np.nan)), "probes must be finite"),
        (lambda: covering_radius(torch.ones(3, 2), torch.ones(3, 2), confidence=1.0), "confidence must lie"),
        (lambda: levina_bickel(torch.empty(0, 2)), "points must hold at least 1"),
        (lambda: levina_bickel(torch.ones(30, 2)), "at least 11 different points, got 1"),
        (lambda: levina_bickel(torch.rand(30, 2), num_neighbours=1), "num_neighbours must be at least 2"),
        (lambda: two_nearest_neighbours(torch.arange(64).view(-1, 1)[:2]), "at least 3 different points"),
        (lambda: levina_bickel(torch.eye(8), num_neighbours=3), "at one distance"),
    ],
)
def test_bad_data_gets_one_clear_line(call, message):
    with pytest.raises(ValueError, match=message) as error:
        call()
    assert "\n" not in str(error.value)
