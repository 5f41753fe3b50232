"""Each helper fails on a wrong answer."""

import pytest
import torch
from metric_cases import assert_exactly, assert_honest, assert_within

from spherometer.values import Estimate


def test_assert_within_refuses_a_truth_outside_the_error():
    with pytest.raises(AssertionError, match="is not"):
        assert_within(Estimate(1.0, 0.1, "bound", "solver"), 1.2)
    with pytest.raises(AssertionError, match="is not"):
        assert_within(Estimate(torch.tensor([1.0, 2.0])), torch.tensor([1.0, 2.1]))
    with pytest.raises(AssertionError, match="shape"):
        assert_within(Estimate(1.0), torch.tensor([1.0, 1.0]))


def test_assert_exactly_refuses_what_is_estimated():
    with pytest.raises(AssertionError):
        assert_exactly(Estimate(1.0, 0.1, "standard error", "random vectors"), 1.0)


def test_assert_honest_refuses_bars_that_are_too_small_or_off():
    noise = torch.randn(100, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert_honest([Estimate(float(x), 1.0) for x in noise], 0.0)
    with pytest.raises(AssertionError, match="spread"):
        assert_honest([Estimate(float(x), 0.5) for x in noise], 0.0)
    with pytest.raises(AssertionError, match="mean"):
        assert_honest([Estimate(float(x), 1.0) for x in noise], 1.0)
