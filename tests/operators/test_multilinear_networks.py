"""T12 is used only where it holds: everything that bends, squares or shares a weight is noticed."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from reference.agreement import assert_close
from spherometer import GaussNewton, HalfSquaredError, Hessian, Problem

INPUTS = torch.randn(6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
TARGETS = torch.tensor([0, 1, 2, 0, 1, 2])


class Formula(nn.Module):
    """Two linear layers and any formula around them."""

    def __init__(self, formula) -> None:
        super().__init__()
        self.first, self.second, self.formula = nn.Linear(3, 3), nn.Linear(3, 3), formula
        self.scale = nn.Parameter(torch.full((3,), 0.7))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.formula(self, inputs) + 0 * self.scale


class HiddenSquare(torch.autograd.Function):
    """A bend that no function mode sees."""

    @staticmethod
    def forward(context, inputs):
        context.save_for_backward(inputs)
        return inputs**2

    @staticmethod
    def backward(context, slope):
        return 2 * slope * context.saved_tensors[0]


def make(formula) -> Problem:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = Formula(formula).double()
    return Problem(model, nn.CrossEntropyLoss(), (INPUTS, TARGETS), parameters=["first", "second"])


BENT = {
    "tanh": lambda m, x: m.second(torch.tanh(m.first(x))),
    "gelu": lambda m, x: m.second(functional.gelu(m.first(x))),
    "softmax": lambda m, x: m.second(m.first(x).softmax(1)),
    "sigmoid head": lambda m, x: m.second(m.first(x)).sigmoid(),
    "shared layer": lambda m, x: m.first(m.first(x).relu()),
    "shared weight": lambda m, x: functional.linear(m.first(x), m.first.weight.t()),
    "shared weight, transposed attribute": lambda m, x: functional.linear(m.first(x), m.first.weight.T),
    "view used twice": lambda m, x: functional.linear(functional.linear(x, w := m.first.weight.view(3, 3)), w),
    "square": lambda m, x: m.first(x) * m.first(x),
    "one product twice": lambda m, x: (h := m.first(x)) * h,
    "power": lambda m, x: m.first(x) ** 2,
    "square method": lambda m, x: m.first(x).square(),
    "two layers multiplied": lambda m, x: m.first(x) * m.second(m.first(x)),
    "layer as weight": lambda m, x: functional.linear(m.first(x), m.first(x)[:3]),
    "divided by a layer": lambda m, x: torch.div(torch.ones_like(x), 3 + m.first(x)),
    "one over a layer": lambda m, x: 1 / (3 + m.first(x)),
    "matrix product": lambda m, x: m.first(x) @ m.first(x)[:3],
    "einsum": lambda m, x: torch.einsum("ni,nj->ni", m.first(x), m.first(x)),
    "norm": lambda m, x: functional.normalize(m.first(x)),
    "function by hand": lambda m, x: HiddenSquare.apply(m.first(x)),
    "aten": lambda m, x: torch.ops.aten.tanh(m.first(x)),
    "in place": lambda m, x: m.second(m.first(x).tanh_()),
    "exponential in place": lambda m, x: m.first(x).clone().exp_(),
    "concatenated weights": lambda m, x: functional.linear(m.first(x), torch.cat([m.first.weight] * 2)[1:4]),
    "out argument": lambda m, x: m.first(x).mul(m.second(m.first(x))),
}  # fmt: skip
PIECEWISE = {
    "relu": lambda m, x: m.second(m.first(x).relu()),
    "relu in place": lambda m, x: m.second(m.first(x).relu_()),
    "hard tanh": lambda m, x: m.second(functional.hardtanh(m.first(x))),
    "residual": lambda m, x: m.first(x).relu() + m.second(x),
    "chain": lambda m, x: m.second(m.first(x)),
    "known factor": lambda m, x: m.second(2 * m.first(x).relu() / 3),
    "known mask": lambda m, x: m.second(m.first(x) * (x > 0).double()),
    "pooling": lambda m, x: m.second(functional.max_pool1d(m.first(x)[:, None], 3, 1, 1)[:, 0]),
    "bilinear": lambda m, x: functional.linear(m.first.weight, m.second.weight)[:, 0] + x,
}


@pytest.mark.parametrize("name", BENT)
def test_what_is_not_multilinear_is_noticed(name):
    operator = Hessian(make(BENT[name]))
    assert not operator.multilinear()
    assert operator.exact_trace() is None
    assert operator.exact_diagonal() is None


@pytest.mark.parametrize("name", PIECEWISE)
def test_what_is_multilinear_is_recognised_and_t12_holds(name):
    problem = make(PIECEWISE[name])
    operator = Hessian(problem)
    assert operator.multilinear()
    dense = operator.dense()
    assert float(dense.trace()) == pytest.approx(float(GaussNewton(problem).dense().trace()))
    exact = operator.exact_trace()
    assert exact is None or exact == pytest.approx(float(dense.trace()))
    assert (exact is None) == (name == "bilinear")


def test_frozen_weights_do_not_count_as_shared():
    """The chosen layer is linear in front of anything frozen that is linear, but not in front of a bend."""
    problem = make(lambda m, x: m.second(torch.tanh(m.first(x))))
    assert Hessian(problem.select("second")).multilinear()
    assert Hessian(problem.select("second")).exact_trace() == pytest.approx(
        float(Hessian(problem).block("second").dense().trace())
    )
    assert not Hessian(problem.select("first")).multilinear()


def networks():
    dense = nn.Sequential(nn.Linear(12, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))
    image = nn.Unflatten(1, (3, 2, 2))
    conv = nn.Sequential(
        image, nn.Conv2d(3, 4, 2, padding=1), nn.ReLU(), nn.MaxPool2d(2, 1), nn.Flatten(), nn.Linear(16, 3)
    )

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.inner, self.head = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 3, padding=1), nn.Linear(12, 3)

        def forward(self, inputs: Tensor) -> Tensor:
            stem = self.stem(image(inputs)).relu()
            return self.head((stem + self.inner(stem).relu()).flatten(1))

    return {"dense": dense, "conv": conv, "residual": Residual()}


@pytest.mark.parametrize("name", ["dense", "conv", "residual"])
@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), HalfSquaredError(), nn.CrossEntropyLoss(label_smoothing=0.3)])
def test_t12_trace_of_the_hessian_is_that_of_gauss_newton(name, loss):
    with torch.random.fork_rng():
        torch.manual_seed(2)
        model = networks()[name].double()
        inputs, targets = torch.randn(9, 12, dtype=torch.float64), torch.randint(3, (9,))
    problem = Problem(model, loss, (inputs, targets))
    hessian = Hessian(problem).dense()
    gauss_newton = GaussNewton(problem).dense()
    assert_close(hessian.diagonal().contiguous(), gauss_newton.diagonal().contiguous())
    assert not torch.allclose(hessian, gauss_newton)
    assert Hessian(problem).exact_trace() == pytest.approx(float(hessian.trace()), rel=1e-10)


def test_t12_label_smoothing_does_not_change_the_trace():
    with torch.random.fork_rng():
        torch.manual_seed(2)
        model = networks()["conv"].double()
        data = (torch.randn(9, 12, dtype=torch.float64), torch.randint(3, (9,)))
    traces = [
        float(Hessian(Problem(model, nn.CrossEntropyLoss(label_smoothing=degree), data)).dense().trace())
        for degree in (0.0, 0.1, 0.9)
    ]
    assert traces == pytest.approx([traces[0]] * 3, rel=1e-12)
