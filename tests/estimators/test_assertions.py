import numpy as np
import pytest
import torch

from assertions import assert_bounded, assert_converged, assert_honest
from spherometer import Estimate, Status


def test_assert_bounded_fails_outside_the_bound():
    assert_bounded(Estimate(torch.tensor([1.0, 2.0]), torch.tensor([0.1, 0.1])), torch.tensor([1.05, 2.0]))
    with pytest.raises(AssertionError, match="does not cover"):
        assert_bounded(Estimate(torch.tensor([1.0, 2.0]), torch.tensor([0.1, 0.1])), torch.tensor([1.05, 2.2]))
    with pytest.raises(AssertionError, match="expected a bound"):
        assert_bounded(Estimate(1.0, 0.1, "standard error"), 1.0)
    with pytest.raises(AssertionError, match="expected shape"):
        assert_bounded(Estimate(torch.ones(2), torch.ones(2)), torch.ones(3))


def test_assert_converged_fails_on_status_and_on_numbers():
    assert_converged(Estimate(1.0, 0.01), rtol=0.01)
    with pytest.raises(AssertionError, match="not converged: too few"):
        assert_converged(Estimate(1.0, 0.01, status=Status(False, "too few")), rtol=0.01)
    with pytest.raises(AssertionError, match="above rtol"):
        assert_converged(Estimate(1.0, 0.02), rtol=0.01)


def test_assert_honest_fails_on_bias_and_on_wrong_spread():
    z = np.random.default_rng(0).standard_normal(400)
    assert_honest(z)
    with pytest.raises(AssertionError, match="biased"):
        assert_honest(z + 0.3)
    with pytest.raises(AssertionError, match="dishonest"):
        assert_honest(1.4 * z)
    with pytest.raises(AssertionError, match="dishonest"):
        assert_honest(0.7 * z)
    with pytest.raises(AssertionError, match="at least 200"):
        assert_honest(z[:100])
