"""Toy models and counterexamples of paper D (T17, T18, D-e1, D-e4), and Kaniel-Paige against Lanczos (D-e14)."""

import math
from decimal import Decimal, localcontext
from itertools import pairwise

import pytest
import torch
from torch import nn

from spherometer import Hessian, Problem
from spherometer.theory import DeepLinear, TwoClusters, TwoWeights, kaniel_paige, lanczos_errors


class Product(nn.Module):
    """z = Π w_k · x."""

    def __init__(self, *factors):
        super().__init__()
        self.factors = nn.ParameterList([torch.tensor(float(factor), dtype=torch.float64) for factor in factors])

    def forward(self, inputs):
        for factor in self.factors:
            inputs = inputs * factor
        return inputs


def dense_hessian(loss, factors, scale=1.0):
    data = torch.full((3, 1), scale, dtype=torch.float64), torch.zeros(3)
    return Hessian(Problem(Product(*factors), loss, data)).dense()


@pytest.mark.parametrize("weights", [(1, -1, 1), (2, -2, 2), (0.3, 0.7, -1.2), (-1.3, -1.3, -1.3)])
def test_T17_closed_forms_against_the_instrument(weights):
    toy = DeepLinear(weights, 0.7)
    dense = dense_hessian(lambda z, _: z.exp().mean(), weights, 0.7)
    torch.testing.assert_close(toy.hessian, dense, rtol=1e-12, atol=1e-14)
    assert toy.trace == pytest.approx(float(dense.trace()))
    torch.testing.assert_close(toy.eigenvalues, torch.linalg.eigvalsh(dense).flip(0))
    assert not torch.allclose(toy.printed_hessian, dense, rtol=0.1)  # D-e1


def test_T17_the_largest_eigenvalue_is_the_trace_only_in_the_limit():
    ratios = [
        float(DeepLinear((s, -s, s), 0.7).eigenvalues[0]) / DeepLinear((s, -s, s), 0.7).trace for s in range(1, 5)
    ]
    assert ratios == pytest.approx([0.476, 0.881, 0.965, 0.985], abs=1e-3)
    printed = DeepLinear((1, -1, 1), 0.7).printed_hessian
    assert float(torch.linalg.eigvalsh(printed)[-1]) == pytest.approx(float(printed.trace()))  # what the paper says
    w, X = -1.3, 0.7
    L = math.exp(w**3 * X)
    assert DeepLinear((w, w, w), X).eigenvalues.tolist() == pytest.approx(
        [L * (3 * X**2 * w**4 + 2 * X * w)] + 2 * [-L * X * w]
    )


def test_De4_low_loss_bounds_no_sharpness():
    """Same loss 2e-9; balanced 8e-8, unbalanced 4.9e8."""
    balanced, leaning = TwoWeights.of_margin(20), TwoWeights(math.exp(20), 20 * math.exp(-20))
    for toy, sharpness in ((balanced, 8.04e-8), (leaning, 4.9e8)):
        assert toy.loss == pytest.approx(2.06e-9, rel=1e-2)
        assert toy.sharpness == pytest.approx(sharpness, rel=0.01)
        dense = dense_hessian(lambda z, _: nn.functional.softplus(-z).mean(), (toy.first, toy.second))
        torch.testing.assert_close(toy.hessian, dense, rtol=1e-6, atol=1e-18)


def test_T18_along_balanced_growth_the_sharpness_goes_to_zero_but_not_all_the_way_down():
    margins = [0.01, 0.3, 1, 2, 4, 8, 16, 32]
    toys = [TwoWeights.of_margin(margin) for margin in margins]
    losses, tops = [toy.loss for toy in toys], [toy.sharpness for toy in toys]
    assert losses == sorted(losses, reverse=True)
    assert any(later > before for before, later in pairwise(tops))  # not monotone
    assert tops[-1] < 1e-10
    fixed = [TwoWeights(1 / k, 20 * k).sharpness for k in (1e2, 1e4, 1e6)]  # one weight is not bounded below
    assert fixed[0] < fixed[1] < fixed[2]


@pytest.mark.parametrize("steepness", [1.0, 40.0, 100.0, 5000.0])
def test_the_slope_of_two_clusters_keeps_its_digits(steepness):
    toy = TwoClusters(steepness)
    with localcontext() as context:
        context.prec = 60
        end = 1 / (1 + (-Decimal(steepness) * Decimal(toy.gap)).exp())
        truth = float(Decimal(steepness) * end * (1 - end))
    assert toy.steepest == pytest.approx(truth, rel=1e-12, abs=0)


def random_matrix(size, seed, gap=0.0):
    generator = torch.Generator().manual_seed(seed)
    basis = torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=torch.float64)).Q
    spectrum = torch.randn(size, generator=generator, dtype=torch.float64).sort(descending=True).values
    spectrum[0] += gap
    return (
        basis @ torch.diag(spectrum) @ basis.T,
        spectrum,
        basis[:, 0],
        torch.randn(size, generator=generator).double(),
    )


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("gap", [0.0, 1.0])
def test_kaniel_paige_is_above_every_lanczos_error(seed, gap):
    matrix, spectrum, top, start = random_matrix(30, seed, gap)
    found = lanczos_errors(matrix, start, spectrum, top, 30)
    assert bool((found.observed <= found.bounds + 1e-12).all())
    assert bool((found.observed >= -1e-12).all())
    assert bool((found.observed.diff() <= 1e-12).all())  # T22
    assert float(found.observed[-1]) < 1e-12
    mirror = lanczos_errors(-matrix, start, -spectrum, torch.linalg.eigh(matrix).eigenvectors[:, 0], 30)
    assert bool((mirror.observed <= mirror.bounds + 1e-12).all())


def test_kaniel_paige_is_reached_with_two_eigenvalues_and_in_one_step():
    """m = 1: a Rayleigh quotient of a mixture of λ₁ and λ_n misses (λ₁−λ_n) sin²φ, the bound has tan²φ."""
    matrix = torch.diag(torch.tensor([2.0, -1.0, -1.0], dtype=torch.float64))
    start = torch.tensor([1.0, 0.01, 0.0], dtype=torch.float64)
    found = lanczos_errors(matrix, start, matrix.diagonal(), torch.tensor([1.0, 0, 0]), 3)
    assert float(found.observed[0]) == pytest.approx(float(found.bounds[0]), rel=1e-3)
    assert found.bounds.tolist()[1:] == [0, 0]
    assert float(found.observed[1]) < 1e-14


def test_kaniel_paige_against_its_formula():
    values = torch.tensor([5.0, 3.0, 1.0, -2.0], dtype=torch.float64)
    bound = kaniel_paige(values, 0.6, 4)
    tangent, rho = (1 - 0.36) / 0.36, 2 / 5
    for m in range(1, 5):
        chebyshev = math.cosh((m - 1) * math.acosh(1 + 2 * rho))
        assert float(bound[m - 1]) == pytest.approx(min(7.0, 7 * tangent / chebyshev**2))
    assert kaniel_paige(values, 0.0, 2).tolist() == [7, 7]
    tied = kaniel_paige(torch.tensor([5.0, 5.0, 1.0]), 0.9, 5)
    assert len(set(tied.tolist())) == 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: kaniel_paige(torch.ones(1), 0.5, 3), "at least 2 points"),
        (lambda: kaniel_paige(torch.ones(3), 1.5, 3), "cosine must lie between"),
        (lambda: kaniel_paige(torch.ones(3), 0.5, 0), "num_steps must be at least 1"),
        (lambda: lanczos_errors(torch.eye(3), torch.zeros(3), torch.ones(3), torch.ones(3), 2), "zero vector"),
        (lambda: TwoWeights.of_margin(-1.0), "margin must be positive"),
    ],
)
def test_bad_arguments_get_one_clear_line(call, message):
    with pytest.raises(ValueError, match=message) as error:
        call()
    assert "\n" not in str(error.value)
