"""Lanczos runs side by side against dense eigenvalues."""

from dataclasses import dataclass

import pytest
import torch

from reference.agreement import assert_close
from spherometer.estimators.krylov import Krylov
from spherometer.estimators.matrices import SymmetricMatrix
from spherometer.estimators.search import error_bounds
from spherometer.estimators.side_by_side import largest_of_each


@dataclass
class Dense:
    matrices: torch.Tensor

    def __post_init__(self):
        self.num, self.size, _ = self.matrices.shape
        self.dtype = self.matrices.dtype

    def __matmul__(self, vectors):
        return torch.einsum("nck,nk->nc", self.matrices.double(), vectors)


def stream(seed=0):
    return torch.Generator().manual_seed(seed)


def decaying(num, size, power, seed=0):
    """Random rotations of the spectrum k^−power."""
    bases = torch.linalg.qr(torch.randn(num, size, size, generator=stream(seed), dtype=torch.float64))[0]
    values = torch.arange(1, size + 1, dtype=torch.float64) ** -power
    return (bases * values) @ bases.mT


@pytest.mark.parametrize("power", [0.1, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("rtol", [1e-2, 1e-3])
def test_errors_are_bounds_and_small_enough(power, rtol):
    matrices = decaying(40, 60, power)
    found = largest_of_each(Dense(matrices), rtol=rtol, generator=stream(1))
    assert bool((found.errors <= rtol * found.values).all())
    assert bool(((found.values - 1).abs() <= found.errors).all())


def test_many_samples_of_all_kinds_finish_together():
    zero, one = torch.zeros(1, 5, 5, dtype=torch.float64), torch.eye(5, dtype=torch.float64)[None]
    rank_one = torch.ones(1, 5, 5, dtype=torch.float64)
    tiny = 1e-12 * decaying(1, 5, 1.0)
    found = largest_of_each(Dense(torch.cat([zero, one, rank_one, tiny])), rtol=1e-6, generator=stream())
    assert_close(found.values, torch.tensor([0, 1, 5, 1e-12], dtype=torch.float64))
    assert float(found.errors[0]) == 0


def test_one_output():
    found = largest_of_each(Dense(torch.full((3, 1, 1), 2.0)), generator=stream())
    assert found.values.tolist() == [2, 2, 2]
    assert found.products == 1


def test_the_limit_of_products_is_kept_and_the_error_says_so():
    found = largest_of_each(Dense(decaying(3, 200, 0.1)), rtol=1e-6, max_products=4, generator=stream())
    assert found.products == 4
    assert bool((found.errors > 1e-6 * found.values).any())


@pytest.mark.parametrize("products", [1, 2, 3, 5, 8])
def test_the_errors_are_those_of_the_general_rule(products):
    """Diagonal matrices and starts that are known, so that both see the same Ritz pairs."""
    matrices = torch.stack([torch.diag(torch.linspace(1, 2, 20, dtype=torch.float64) ** k) for k in (1, 3, 9)])
    found = largest_of_each(Dense(matrices), rtol=1e-9, max_products=products, generator=stream(3))
    starts = torch.randn(3, 20, generator=stream(3), dtype=torch.float64)
    for matrix, start, value, error in zip(matrices, starts, found.values, found.errors, strict=True):
        krylov = Krylov(SymmetricMatrix(matrix), stream())
        krylov.add(start)
        for _ in range(products):
            krylov.step()
        ritz = krylov.ritz()
        assert float(value) == pytest.approx(ritz.values[-1], rel=1e-12)
        assert float(error) == pytest.approx(error_bounds(ritz)[-1], rel=1e-6, abs=4e-15 * float(value))


def test_bad_tolerances_are_refused():
    with pytest.raises(ValueError, match="expected 0 < rtol < 1"):
        largest_of_each(Dense(decaying(1, 3, 1.0)), rtol=0, generator=stream())
