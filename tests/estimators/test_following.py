"""The top eigenvalue of matrices that change from call to call: bounds held, crossings and newcomers seen, few
products.
"""

import numpy as np
import pytest
import torch

from spherometer.estimators import Nearby, eigenvalues, follow
from spherometer.estimators.following import KEPT
from spherometer.estimators.search import FEW_ROWS

NUM_ROWS = FEW_ROWS + 500


class Turning:
    """Q' diag(λ) Q in float64, known by its products, with outliers whose eigenvectors turn into one another."""

    dtype, device, symmetric = torch.float64, torch.device("cpu"), True

    def __init__(self, values, angle, seed=0, scale=1.0):
        generator = torch.Generator().manual_seed(seed)
        num = len(values)
        frame = torch.randn(NUM_ROWS, 2 * num, generator=generator, dtype=torch.float64)
        frame = torch.linalg.qr(frame).Q
        mixing = torch.randn(2 * num, 2 * num, generator=generator, dtype=torch.float64)
        turn = torch.linalg.matrix_exp(angle * (mixing - mixing.T) / num**0.5)
        self.outliers, self.values = (frame @ turn)[:, :num], scale * torch.as_tensor(values, dtype=torch.float64)
        self.bulk = scale * torch.linspace(-0.2, 0.2, NUM_ROWS, dtype=torch.float64)
        self.shape = NUM_ROWS, NUM_ROWS

    def __matmul__(self, vector):
        """Outliers on top of a diagonal bulk; the truth is found by a cold search in `truth`."""
        return self.outliers @ (self.values * (self.outliers.T @ vector)) + self.bulk * vector

    @property
    def truth(self):
        return float(eigenvalues(self, num=3, rtol=1e-8, seed=7).value[0])


def followed(matrices, rtol=1e-2):
    """Estimate and truth for each matrix in turn."""
    nearby, found = None, []
    for matrix in matrices:
        estimate, nearby = follow(matrix, nearby, rtol=rtol)
        found.append((estimate, matrix.truth))
    return found


def assert_bounds_hold(found, rtol=1e-2):
    for number, (estimate, truth) in enumerate(found):
        value, error = float(estimate.value[0]), float(estimate.error[0])
        assert abs(value - truth) <= error, f"call {number}: {value} ± {error}, in truth {truth}"
        assert error <= rtol * abs(value), f"call {number}: error {error} of {value}"
        assert estimate.status


def test_the_assertion_finds_a_broken_bound():
    matrix = Turning([3.0, 1.0], 0.0)
    estimate, _ = follow(matrix)
    with pytest.raises(AssertionError, match="in truth 4"):
        assert_bounds_hold([(estimate, 4.0)])


CROWD = np.linspace(1.0, 0.6, 10)


@pytest.mark.parametrize("scale", [1.0, 1e5, 1e-5])
def test_a_crowded_top_that_grows_and_turns_costs_few_products(scale):
    found = followed(Turning((1 + 0.02 * step) * CROWD, 0.03 * step, scale=scale) for step in range(40))
    assert_bounds_hold(found)
    products = [estimate.products for estimate, _ in found[3:]]
    assert np.median(products) <= 4
    assert np.mean(products) <= 6
    cold = [eigenvalues(Turning(CROWD, 0.03 * step), rtol=1e-2).products for step in range(3)]
    assert min(cold) > 2 * np.median(products)


@pytest.mark.parametrize("rival", [1, 2, 5])
def test_an_eigenvalue_that_overtakes_is_seen_at_once(rival):
    def values(step):
        falling, rising = CROWD.copy(), 0.01 * step
        falling[0] -= rising
        falling[rival] += rising
        return falling

    assert_bounds_hold(followed(Turning(values(step), 0.01 * step) for step in range(50)))


def test_a_jump_is_followed():
    """The spectrum and all its vectors are other ones from one call to the next."""
    found = followed(Turning(3 * CROWD if step > 5 else CROWD, 0.01 * step, seed=int(step > 5)) for step in range(10))
    assert_bounds_hold(found)
    assert found[6][0].products > 5


def test_a_spectrum_that_changes_its_sign_is_followed():
    def values(step):
        return (CROWD if step < 4 else -CROWD) - (0.2 if step < 4 else 0.0)

    matrices = [Turning(values(step) if step < 8 else CROWD, 0.01 * step) for step in range(12)]
    for matrix in matrices[4:8]:
        matrix.bulk = torch.linspace(-0.5, -0.4, NUM_ROWS, dtype=torch.float64)
    found = followed(matrices)
    assert [truth > 0 for _, truth in found] == [True] * 4 + [False] * 4 + [True] * 4
    for estimate, truth in found:
        assert abs(float(estimate.value[0]) - truth) <= float(estimate.error[0])


def test_a_newcomer_from_nowhere_is_found_before_it_is_at_the_top():
    """Its vector has no part in any other: only a random look can find it, and looks come often enough."""

    def values(step):
        return np.append(CROWD, 0.3 * 1.015**step)

    found = followed(Turning(values(step), 0.0) for step in range(100))
    assert values(99)[-1] > 1.3 * CROWD[0]
    assert_bounds_hold(found)


def test_two_newcomers_at_once_are_both_found():
    def values(step):
        return np.append(CROWD, [0.3 * 1.015**step, 0.28 * 1.016**step])

    assert_bounds_hold(followed(Turning(values(step), 0.0) for step in range(100)))


def test_a_top_that_falls_below_what_may_be_unseen_is_searched_for_anew():
    """Twelve outliers, ten of them remembered: all but two fall by a third from one call to the next."""
    before, after = np.append(CROWD, [0.58, 0.57]), np.append(0.5 * CROWD, [0.58, 0.57])
    found = followed(Turning(before if step < 20 else after, 0.0) for step in range(24))
    assert_bounds_hold(found)


def test_near_ties_stay_within_their_bars():
    """The second eigenvalue creeps past the first, in steps far below the tolerance, whoever is looked at."""

    def values(step):
        return np.array([1.0, 0.985 + 0.001 * step, 0.5, 0.4, 0.3])

    found = followed(Turning(values(step), 0.0) for step in range(30))
    assert_bounds_hold(found[1:])  # a single cold search may take the second for the first: docs/estimators.md


def test_finer_tolerances_and_float32():
    class Single(Turning):
        dtype = torch.float32

        def __matmul__(self, vector):
            return super().__matmul__(vector.double()).float()

    assert_bounds_hold(followed((Turning(CROWD, 0.02 * step) for step in range(10)), rtol=1e-5), rtol=1e-5)
    assert_bounds_hold(followed((Single(CROWD, 0.02 * step) for step in range(10)), rtol=1e-3), rtol=1e-3)


def test_what_is_remembered():
    _, nearby = follow(Turning(CROWD, 0.0))
    _, nearby = follow(Turning(CROWD, 0.01), nearby)
    assert nearby.vectors.shape == (NUM_ROWS, KEPT)
    assert nearby.values.shape == (KEPT,)
    assert nearby.ceilings.shape == (KEPT, KEPT)
    identity = nearby.vectors.T @ nearby.vectors
    torch.testing.assert_close(identity, torch.eye(KEPT, dtype=torch.float64), atol=1e-6, rtol=0)
    _, small = follow(Turning(CROWD, 0.0), memory=6 * 8 * NUM_ROWS * 5)
    assert small.vectors.shape == (NUM_ROWS, 5)


def test_what_a_followed_bound_rests_on_is_said():
    cold, nearby = follow(Turning(CROWD, 0.0))
    warm, _ = follow(Turning(CROWD, 0.01), nearby)
    assert not cold.note
    assert warm.entry().note.startswith("followed: a bound if no other eigenvalue has gained more than 2 %")


def test_memories_of_another_size_or_without_values_do_no_harm():
    matrix = Turning(CROWD, 0.0)
    _, nearby = follow(matrix)
    assert_bounds_hold([(follow(matrix, Nearby.unknown(nearby.vectors))[0], matrix.truth)])
    assert_bounds_hold([(follow(matrix, Nearby.unknown(torch.eye(5, 2)))[0], matrix.truth)])


@pytest.mark.parametrize("values", [[-1.0, -2.0, -3.0], [0.0, 0.0, 0.0], [1.0, 1.0, 1.0]])
def test_small_negative_zero_and_multiple(values):
    matrix, nearby = torch.diag(torch.tensor(values, dtype=torch.float64)), None
    for _ in range(3):
        estimate, nearby = follow(matrix, nearby)
        assert float(estimate.value[0]) == pytest.approx(max(values), abs=1e-12)
