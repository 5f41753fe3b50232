"""What cannot be measured is refused with a message that says what was expected, what came, and what to do."""

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from reference.agreement import assert_close
from spherometer import EmpiricalFisher, Fisher, GaussNewton, HalfSquaredError, Hessian, Preconditioned, Problem
from spherometer.metrics import measure
from spherometer.operators import DerivativeError
from spherometer.problems import NonFiniteError

INPUTS = torch.randn(6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
TARGETS = torch.tensor([0, 1, 1, 0, 1, 0])
DATA = (INPUTS, TARGETS)


def small(*middle: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), *(middle or (nn.Tanh(),)), nn.Linear(4, 2)).double()


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (nn.CrossEntropyLoss(reduction="sum"), r"a scalar mean over samples, got reduction='sum'"),
        (nn.CrossEntropyLoss(reduction="none"), r"a scalar mean over samples, got reduction='none'"),
        (nn.BCEWithLogitsLoss(reduction="sum"), r"got reduction='sum': use reduction='mean'"),
        (lambda f, y: functional.cross_entropy(f, y, reduction="sum"), r"doubles when every sample is seen twice"),
        (lambda f, y: functional.cross_entropy(f, y, reduction="none"), r"got a tensor of shape \(6,\)"),
        (lambda f, y: 1.0, r"scalar mean over samples, got float"),
    ],
    ids=["sum", "none", "binary sum", "function sum", "function none", "number"],
)
def test_a_loss_that_is_no_scalar_mean(loss, message):
    with pytest.raises(ValueError, match=message):
        Problem(small(), loss, DATA)


def test_partial_with_another_reduction():
    from functools import partial

    with pytest.raises(ValueError, match="got reduction='sum'"):
        Problem(small(), partial(functional.cross_entropy, reduction="sum"), DATA)


def test_a_loss_that_cannot_be_called():
    with pytest.raises(TypeError, match=r"a loss function \(outputs, targets\) -> scalar, got str"):
        Problem(small(), "cross_entropy", DATA)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ("0.wieght", r"no parameter of the model matches '0.wieght': did you mean '0.weight'\?"),
        ("decoder", r"no parameter of the model matches 'decoder': the names are 0.weight, 0.bias, 2.weight, 2.bias"),
        (["0", "3.weight"], r"matches '3.weight': did you mean '\d.weight'"),
        ([], r"at least one trainable parameter for '', got none"),
    ],
)
def test_parameters_that_do_not_exist(parameters, message):
    with pytest.raises(ValueError, match=message):
        Problem(small(), nn.CrossEntropyLoss(), DATA, parameters=parameters)


def test_parameters_that_are_all_frozen():
    model = small().requires_grad_(False)
    with pytest.raises(ValueError, match=r"got none: all that match are frozen \(requires_grad=False\)"):
        Problem(model, nn.CrossEntropyLoss(), DATA)
    model[2].requires_grad_()
    with pytest.raises(ValueError, match="all that match are frozen"):
        Problem(model, nn.CrossEntropyLoss(), DATA, parameters="0")


def test_a_model_without_parameters():
    with pytest.raises(ValueError, match="got none: the model has none"):
        Problem(nn.Tanh(), nn.CrossEntropyLoss(), DATA)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_weights_that_are_not_finite(value):
    model = small()
    model[2].weight.data[0, 0] = value
    with pytest.raises(NonFiniteError, match=r"parameter '2.weight' holds values that are not finite"):
        Problem(model, nn.CrossEntropyLoss(), DATA)


def test_weights_that_become_infinite_later():
    model = small()
    problem = Problem(model, nn.CrossEntropyLoss(), [(INPUTS[:3], TARGETS[:3]), DATA])
    model[2].weight.data[0, 0] = torch.nan
    with pytest.raises(NonFiniteError, match="the loss is nan on batch 0"):
        Hessian(problem)


class Root(nn.Module):
    """|x|^½ has a finite value and no finite slope at zero."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs.abs().sqrt()


def test_a_gradient_that_is_not_finite_names_the_batch():
    model = nn.Sequential(nn.Linear(3, 2, bias=False), Root()).double()
    batches = [DATA, (torch.zeros(2, 3), TARGETS[:2])]
    operator = Hessian(Problem(model, nn.CrossEntropyLoss(), batches))
    with pytest.raises(NonFiniteError, match="the gradient is not finite on batch 1"):
        operator.gradient()


class Kink(nn.Module):
    """x^1.5 of the positive part: finite slope, infinite bend at zero."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs.clamp_min(0).pow(1.5)


def test_a_product_that_is_not_finite_names_the_batch():
    model = nn.Sequential(nn.Linear(3, 2, bias=True), Kink()).double()
    model[0].bias.data.zero_()
    batches = [DATA, (torch.zeros(2, 3), TARGETS[:2])]
    operator = Hessian(Problem(model, nn.CrossEntropyLoss(), batches))
    with pytest.raises(NonFiniteError, match="the product is not finite on batch 1"):
        _ = operator @ torch.ones(operator.shape[0])


@pytest.mark.parametrize("name", ["mls", "nmls", "logit_jacobian_norms", "batch_jacobian_norm", "log_volume"])
def test_jacobians_of_data_that_are_not_finite_name_the_batch(name):
    bad = INPUTS.clone()
    bad[2, 0] = torch.nan
    problem = Problem(small(), nn.CrossEntropyLoss(), [DATA, (bad, TARGETS)])
    with pytest.raises(NonFiniteError, match=r"is (nan|not finite) on batch 1"):
        measure(problem, name)


def test_a_jacobian_that_is_not_finite_names_the_batch():
    model = nn.Sequential(nn.Linear(3, 2, bias=False), Root()).double()
    problem = Problem(model, nn.CrossEntropyLoss(), [DATA, (torch.zeros(2, 3), TARGETS[:2])])
    with pytest.raises(NonFiniteError, match="the Jacobian is not finite on batch 1"):
        measure(problem, "mls")


class RandomModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = small()

    def forward(self, inputs: Tensor) -> Tensor:
        return functional.dropout(self.inner(inputs), 0.5)  # forgets training=self.training


def test_dropout_that_cannot_be_switched_off():
    with pytest.raises(ValueError, match=r"draws random numbers even in eval mode.*Problem\(\.\.\., dropout=seed\)"):
        Problem(RandomModel(), nn.CrossEntropyLoss(), DATA)
    replayed = Problem(RandomModel(), nn.CrossEntropyLoss(), DATA, dropout=3)
    assert replayed.loss_at() == replayed.loss_at()


class Once(torch.autograd.Function):
    @staticmethod
    def forward(context, inputs):
        context.save_for_backward(inputs)
        return inputs.sin()

    @staticmethod
    @once_differentiable
    def backward(context, slope):
        return slope * context.saved_tensors[0].cos()


class Outside(torch.autograd.Function):
    """Its gradient is computed outside torch, as many a kernel does it."""

    @staticmethod
    def forward(context, inputs):
        context.slope = inputs.detach().cos().numpy()
        return inputs.sin()

    @staticmethod
    def backward(context, slope):
        return torch.from_numpy(slope.detach().numpy() * context.slope)


class OutsideLayer(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        return Outside.apply(inputs)


class Cube(torch.autograd.Function):
    """Written by hand, and well: its gradient can be differentiated."""

    @staticmethod
    def forward(context, inputs):
        context.save_for_backward(inputs)
        return inputs**3

    @staticmethod
    def backward(context, slope):
        return 3 * slope * context.saved_tensors[0] ** 2


class CubeLayer(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        return Cube.apply(inputs)


class PlainCube(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        return inputs**3


def test_a_function_written_by_hand_may_be_differentiable():
    model, plain = small(CubeLayer()), small(PlainCube())
    plain.load_state_dict(model.state_dict())
    for kind in (Hessian, GaussNewton):
        matrix = kind(Problem(model, nn.CrossEntropyLoss(), DATA)).dense()
        assert_close(matrix, kind(Problem(plain, nn.CrossEntropyLoss(), DATA)).dense())


class OnceLayer(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        return Once.apply(inputs)


class Block(nn.Module):
    """Not a leaf: the culprit is a function called by a module that has modules inside."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)

    def forward(self, *, values: Tensor) -> Tensor:
        return Once.apply(self.norm(values))


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.block, self.last = nn.Linear(3, 4), Block(), nn.Linear(4, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(self.block(values=self.first(inputs)))


class Bare(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        return Once.apply(self.layer(inputs))


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (lambda: small(nn.Tanh(), OnceLayer()), r"module '2' \(OnceLayer\)"),
        (lambda: small(nn.Tanh(), OutsideLayer()), r"module '2' \(OutsideLayer\)"),
        (Outer, r"module 'block' \(Block\)"),
        (Bare, r"module Bare"),
    ],
    ids=["leaf", "outside torch", "block called by name", "the model itself"],
)
@pytest.mark.parametrize("kind", [Hessian, GaussNewton, EmpiricalFisher])
def test_a_module_without_second_derivatives_is_named(model, name, kind):
    problem = Problem(model().double(), nn.CrossEntropyLoss(), DATA)
    with pytest.raises(DerivativeError, match=rf"{name} cannot be differentiated twice"):
        kind(problem)
    assert not any(module._forward_hooks for module in problem.model.modules())


def test_a_loss_without_second_derivatives():
    problem = Problem(small(), lambda f, y: functional.cross_entropy(Once.apply(f), y), DATA)
    with pytest.raises(DerivativeError, match="a function called in the model's forward or in the loss"):
        Hessian(problem)


def test_a_model_that_detaches():
    class Detached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = small()

        def forward(self, inputs: Tensor) -> Tensor:
            with torch.no_grad():
                return self.inner(inputs)

    with pytest.raises(ValueError, match=r"does not depend on the chosen parameters \(inner.0.weight.*detach\(\)"):
        Problem(Detached(), nn.CrossEntropyLoss(), DATA)


@pytest.mark.parametrize("shape", [(3,), (26, 1, 1), (), (1, 26)])
def test_vectors_of_a_wrong_shape(shape):
    operator = Hessian(Problem(small(), nn.CrossEntropyLoss(), DATA))
    assert operator.shape == (26, 26)
    with pytest.raises(ValueError, match=r"a vector \(26,\) or a block of columns \(26, k\), got shape"):
        _ = operator @ torch.zeros(shape)


def test_weights_of_a_wrong_shape():
    problem = Problem(small(), nn.CrossEntropyLoss(), DATA)
    for attempt in (problem.loss_at, problem.gradient_at, lambda vector: Hessian(problem, at=vector)):
        with pytest.raises(ValueError, match=r"a flat vector of 26 weights, got shape \(25,\)"):
            attempt(torch.zeros(25))


def test_preconditioners_that_are_not_positive_or_not_long_enough():
    operator = Hessian(Problem(small(), nn.CrossEntropyLoss(), DATA))
    with pytest.raises(ValueError, match="a positive diagonal, got a smallest entry of 0"):
        Preconditioned(operator, torch.arange(26.0))
    with pytest.raises(ValueError, match="a positive diagonal"):
        Preconditioned(operator, torch.full((26,), torch.nan))
    with pytest.raises(ValueError, match=r"a diagonal of length 26, got shape \(25,\)"):
        Preconditioned(operator, torch.ones(25))


@pytest.mark.parametrize(
    "loss",
    [
        nn.CrossEntropyLoss(weight=torch.ones(2).double()),
        nn.BCEWithLogitsLoss(),
        lambda f, y: functional.cross_entropy(f, y),
    ],
    ids=["class weights", "binary", "function"],
)
def test_fisher_of_a_loss_that_is_no_known_likelihood(loss):
    targets = functional.one_hot(TARGETS).double() if isinstance(loss, nn.BCEWithLogitsLoss) else TARGETS
    problem = Problem(small(), loss, (INPUTS, targets))
    with pytest.raises(ValueError, match="the Fisher matrix needs a loss that is a negative log-likelihood"):
        Fisher(problem)


def test_wrong_options():
    problem = Problem(small(), nn.CrossEntropyLoss(), DATA)
    with pytest.raises(ValueError, match=r"samples=None \(exact\) or at least 1 label per sample, got 0"):
        Fisher(problem, samples=0)
    with pytest.raises(ValueError, match="batchnorm='eval' or 'train', got 'frozen'"):
        Problem(small(), nn.CrossEntropyLoss(), DATA, batchnorm="frozen")
    with pytest.raises(ValueError, match="memory as a positive number of bytes, got 0"):
        Problem(small(), nn.CrossEntropyLoss(), DATA, memory=0)


def test_outputs_that_are_no_tensor():
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = small()

        def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
            return self.inner(inputs), inputs

    problem = Problem(Two(), lambda f, y: functional.cross_entropy(f[0], y), DATA)
    assert Hessian(problem).dense().isfinite().all()  # any loss will do for H
    with pytest.raises(TypeError, match=r"outputs as one tensor, got tuple: pick the logits"):
        GaussNewton(problem)


def test_half_squared_error_refuses_what_it_cannot_compare():
    with pytest.raises(ValueError, match=r"targets of the outputs' shape \(6, 2\), got \(6, 3\)"):
        Problem(small(), HalfSquaredError(), (INPUTS, INPUTS))
    with pytest.raises(ValueError, match=r"class numbers from 0 to 1 .* got 0 to 2"):
        Problem(small(), HalfSquaredError(), (INPUTS, torch.arange(6) % 3))
