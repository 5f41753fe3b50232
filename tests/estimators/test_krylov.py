"""The machinery below the estimators: basis, subspace, what a chain can have missed."""

import numpy as np
import pytest
import torch
from spectra import generator, uniform, with_spectrum

from spherometer.estimators.basis import Basis
from spherometer.estimators.krylov import Krylov
from spherometer.estimators.matrices import SymmetricMatrix
from spherometer.estimators.randomness import child_stream, rademacher, unit_vector
from spherometer.estimators.samples import mean_and_error, student_factor
from spherometer.estimators.unseen import least_mass, surely_seen

MATRIX = with_spectrum(uniform(-1, 1, 60))


def rows(krylov):
    return torch.stack([krylov.basis[index] for index in range(krylov.size)])


def assert_residuals_are_true(krylov):
    """A V[:done]' = V' H shows in the residuals: those of H are those of the matrix."""
    ritz = krylov.ritz()
    vectors = krylov.vectors(ritz.coordinates)
    truth = torch.linalg.vector_norm(MATRIX @ vectors - vectors * torch.as_tensor(ritz.values), dim=0)
    assert np.allclose(truth.numpy(), ritz.residuals, atol=1e-12)
    gram = rows(krylov) @ rows(krylov).T
    assert torch.allclose(gram, torch.eye(krylov.size, dtype=torch.float64), atol=1e-12)


def new_krylov():
    return Krylov(SymmetricMatrix(MATRIX), child_stream(0, "test"))


def test_residuals_of_chain_block_restart_and_fresh_vector():
    krylov = new_krylov()
    for _ in range(3):
        krylov.add_random()
    for _ in range(9):
        krylov.step()
    assert_residuals_are_true(krylov)
    krylov.restart(krylov.ritz(), np.array([0, 4, 8]))
    assert krylov.done == 3
    assert_residuals_are_true(krylov)
    for _ in range(5):
        krylov.step()
    assert_residuals_are_true(krylov)
    krylov.add_random()
    for _ in range(3):
        krylov.step()
        krylov.bring_forward()
    assert_residuals_are_true(krylov)


def test_that_the_residual_check_itself_can_fail():
    krylov = new_krylov()
    krylov.add_random()
    for _ in range(4):
        krylov.step()
    krylov.basis[1].mul_(0.9)
    with pytest.raises(AssertionError):
        assert_residuals_are_true(krylov)


def test_whole_space_is_complete():
    krylov = new_krylov()
    while not krylov.complete:
        if krylov.invariant:
            krylov.add_random()
        krylov.step()
    assert np.allclose(krylov.ritz().values, torch.linalg.eigvalsh(MATRIX).numpy(), atol=1e-12)
    assert krylov.matrix.products == 60


def test_basis_in_chunks_equals_dense_algebra():
    basis = Basis(50, dtype=torch.float64, device=torch.device("cpu"), rows_per_chunk=3)
    orthonormal = torch.linalg.qr(torch.randn(50, 10, generator=generator(), dtype=torch.float64)).Q.T
    for row in orthonormal:
        basis.append(2 * row, 0.5)
    vector = torch.randn(50, generator=generator(1), dtype=torch.float64)
    expected = vector - orthonormal.T @ (orthonormal @ vector)
    coefficients, norm = basis.orthogonalise(vector.clone(), near=[4])
    assert np.allclose(coefficients, (orthonormal @ vector).numpy())
    assert norm == pytest.approx(float(expected.norm()))
    weights = np.random.default_rng(0).standard_normal((8, 2))
    assert torch.allclose(basis.combine(weights), orthonormal[:8].T @ torch.as_tensor(weights))
    basis.rotate(weights)
    assert basis.size == 4
    assert torch.allclose(basis[1], (torch.as_tensor(weights).T @ orthonormal[:8])[1])
    assert torch.equal(basis[3], orthonormal[9])


def test_hidden_mass_is_bounded_by_the_christoffel_function():
    """An eigenvalue with a known share of the start vector is never declared impossible where it is."""
    values = torch.cat([torch.tensor([1.0]), uniform(-0.3, 0.3, 59)])
    start = torch.full((60,), 1e-4, dtype=torch.float64)
    start[1:] = torch.randn(59, generator=generator(2), dtype=torch.float64)
    start /= start.norm()
    krylov = Krylov(SymmetricMatrix(torch.diag(values)), child_stream(0, "test"))
    krylov.add(start)
    hidden = float(start[0] ** 2)
    verdicts = []
    for _ in range(8):
        krylov.step()
        if krylov.ritz().values[-1] < 0.9:
            verdicts.append(surely_seen(*krylov.recurrence(0), at=1.0, mass=hidden))
    assert verdicts
    assert not any(verdicts)
    assert surely_seen(*krylov.recurrence(0), at=1.5, mass=hidden)
    assert surely_seen(np.array([1.0]), np.array([0.0]), at=2.0, mass=1e-9)


def test_least_mass_is_exceeded_as_often_as_it_says():
    shares = torch.stack(
        [unit_vector(50, dtype=torch.float64, stream=child_stream(seed, "x"))[0] ** 2 for seed in range(4000)]
    )
    assert float((shares < least_mass(50, risk=0.1)).double().mean()) == pytest.approx(0.1, abs=0.02)


def test_streams_are_independent_and_prefixes_agree():
    assert not torch.equal(*(torch.rand(5, generator=child_stream(0, name)) for name in ("a", "b")))
    short, long = (rademacher(7, k, dtype=torch.float64, stream=child_stream(0, "a")) for k in (2, 5))
    assert torch.equal(short, long[:, :2])
    assert set(long.flatten().tolist()) == {-1.0, 1.0}


def test_student_factor_widens_few_samples():
    assert student_factor(0) == float("inf")
    assert student_factor(1e9) == pytest.approx(1, abs=1e-6)
    assert student_factor(3) > student_factor(11) > 1
    assert mean_and_error(np.array([2.0]))[1] == float("inf")
