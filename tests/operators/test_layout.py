"""Images lie as their convolutions like it; the matrix stays what it is."""

import pytest
import torch
from torch import nn

import spherometer as sm
from spherometer.operators.layout import quicker_layout


class Flat(nn.Module):
    """Takes a `view` of what a convolution gives, which images with their channels last do not have."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.linear = nn.Conv2d(3, 4, 3), nn.Linear(4 * 16, 3)

    def forward(self, images):
        return self.linear(torch.tanh(self.convolution(images)).view(len(images), -1))


def network(*middle: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), *middle, nn.Tanh(), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(16, 3))


def problem(model: nn.Module, dtype: torch.dtype = torch.float32, **options) -> sm.Problem:
    stream = torch.Generator().manual_seed(0)
    data = torch.randn(10, 3, 6, 6, generator=stream, dtype=dtype), torch.randint(3, (10,), generator=stream)
    return sm.Problem(model.to(dtype), nn.CrossEntropyLoss(), data, **options)


@pytest.mark.parametrize("operator", [sm.Hessian, sm.GaussNewton])
@pytest.mark.parametrize("batchnorm", ["eval", "train"])
def test_products_are_the_same_in_either_layout(operator, batchnorm):
    torch.manual_seed(0)
    model = network(nn.BatchNorm2d(4))
    single = operator(problem(model, batchnorm=batchnorm))
    assert single.plan.layout is torch.channels_last
    double = operator(single.problem.in_dtype(torch.float64))
    assert double.plan.layout is torch.preserve_format
    difference = single.dense().double() - double.dense()
    assert float(difference.norm()) < 1e-5 * float(double.dense().norm())


def test_a_model_that_takes_a_view_is_measured_in_the_plain_layout():
    operator = sm.Hessian(problem(Flat()))
    assert quicker_layout(operator.problem) is torch.channels_last
    assert operator.plan.layout is torch.preserve_format


@pytest.mark.parametrize(
    ("model", "options"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(108, 3)), {}),
        (network(), {"dtype": torch.float64}),
    ],
    ids=["no convolution", "float64"],
)
def test_the_plain_layout_where_the_other_was_not_quicker(model, options):
    assert quicker_layout(problem(model, **options)) is torch.preserve_format
