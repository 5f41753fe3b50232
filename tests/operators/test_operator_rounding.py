"""What float32 does to v'Av is measured, not guessed."""

import pytest
import torch

from reference.cases import BY_NAME, random_block
from spherometer import GaussNewton, Hessian, Preconditioned
from spherometer.operators.curvature import NUM_ROUNDED, NUM_ROUNDED_TOGETHER

CASES = [BY_NAME[name] for name in ("linear", "conv2d", "batch norm train", "layer norm", "attention")]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("kind", [Hessian, GaussNewton])
def test_rounding_is_the_difference_between_float32_and_float64(case, kind):
    whole = case.problem(dtype=torch.float32)
    few = whole.sample(NUM_ROUNDED if whole.splittable else NUM_ROUNDED_TOGETHER)
    single, double = kind(few), kind(few.in_dtype(torch.float64))
    size = float(torch.linalg.matrix_norm(double.dense(), 2))
    columns = torch.nn.functional.normalize(random_block(single.shape[0], 3), dim=0).float()
    found = kind(whole).rounding(columns)
    for k, vector in enumerate(columns.T):
        truth = float(vector.double() @ (double @ vector.double()))
        error = abs(float(vector.double() @ (single @ vector).double()) - truth)
        assert float(found[k]) == pytest.approx(error, abs=1e-12)
        assert error < 1e-5 * size


def test_float64_knows_of_no_rounding():
    operator = Hessian(BY_NAME["linear"].problem())
    assert operator.rounding(torch.ones(operator.shape[0], 1)) is None


def test_rounding_passes_through_the_algebra():
    operator = Hessian(BY_NAME["linear"].problem(dtype=torch.float32))
    vector = torch.nn.functional.normalize(torch.ones(operator.shape[0], 1), dim=0)
    assert float((-3.0 * operator).rounding(vector)) == pytest.approx(3 * float(operator.rounding(vector)))
    assert float(operator.shifted(2.0).rounding(vector)) == pytest.approx(float(operator.rounding(vector)))
    assert Preconditioned(operator, torch.ones(operator.shape[0])).dtype == torch.float32
