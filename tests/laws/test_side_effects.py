"""Measuring changes nothing: not the model, not the random state, not a setting; and it works wherever it is called."""

import random

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import spherometer as sm
from reference.agreement import assert_close
from reference.battery import block_for, every_operator
from reference.cases import BY_NAME
from reference.surroundings import assert_unchanged, snapshot

NAMES = [
    "relu in place",
    "conv2d",
    "batch norm eval",
    "batch norm train",
    "instance norm tracked train",
    "layer norm",
    "transformer layer",
    "lstm",
    "tied language model",
]
every_network = pytest.mark.parametrize("name", NAMES)


def use_everything(problem: sm.Problem) -> list[Tensor]:
    results = []
    for operator in every_operator(problem):
        vectors = block_for(operator, 1)
        results.append(operator @ vectors)
        operator.start()
        operator.rounding(vectors)
        operator.exact_trace()
        operator.exact_diagonal()
    results += [problem.gradient_at(), torch.tensor([problem.loss_at(), problem.num_terms])]
    return results


def trained_model(name: str, dtype: torch.dtype = torch.float64) -> nn.Module:
    """A model in the middle of training: train mode, gradients, a hook, one frozen parameter."""
    model = BY_NAME[name].model(dtype).train()
    for k, parameter in enumerate(model.parameters()):
        if k % 2:
            parameter.grad = torch.full_like(parameter, 0.5)
    next(model.modules()).register_forward_hook(lambda module, inputs, output: None)
    return model


def make(model: nn.Module, name: str, dtype: torch.dtype = torch.float64, **options) -> sm.Problem:
    return sm.Problem(
        model, nn.CrossEntropyLoss(), BY_NAME[name].data(dtype), batchnorm=BY_NAME[name].batchnorm, **options
    )


@every_network
def test_nothing_is_changed(name):
    model = trained_model(name)
    with assert_unchanged(model):
        use_everything(make(model, name))


@pytest.mark.parametrize("name", ["batch norm train", "lstm"])
def test_nothing_is_changed_when_dropout_is_replayed(name):
    model = nn.Sequential(trained_model(name), nn.Dropout(0.3)).train()
    case = BY_NAME[name]
    with assert_unchanged(model):
        use_everything(sm.Problem(model, nn.CrossEntropyLoss(), case.data(), batchnorm=case.batchnorm, dropout=1))


def test_reading_a_loader_does_not_move_the_random_state():
    model, (inputs, targets) = trained_model("relu"), BY_NAME["relu"].data()
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=2)
    with assert_unchanged(model):
        problem = sm.Problem(model, nn.CrossEntropyLoss(), loader)
        _ = sm.Hessian(problem).dense(), sm.GaussNewton(problem).exact_trace(), problem.loss_at(), problem.gradient_at()


def test_replayed_dropout_seeds_no_other_device(monkeypatch):
    model, data = nn.Sequential(trained_model("relu"), nn.Dropout(0.3)), BY_NAME["relu"].data()
    seeded = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    monkeypatch.setattr(torch.cuda, "manual_seed", seeded.append)
    sm.Problem(model, nn.CrossEntropyLoss(), data, dropout=1).loss_at()
    assert not seeded


def test_random_state_does_not_move_the_numbers():
    model = trained_model("conv2d")
    first = use_everything(make(model, "conv2d"))
    torch.manual_seed(12345)
    random.seed(1)
    np.random.seed(1)
    for one, other in zip(first, use_everything(make(model, "conv2d")), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", ["conv2d", "batch norm train", "attention"])
@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_numbers_are_the_same_in_every_grad_mode(name, context):
    model = trained_model(name)
    truth = use_everything(make(model, name))
    with context(), assert_unchanged(model):
        results = use_everything(make(model, name))
    for one, other in zip(results, truth, strict=True):
        assert_close(one, other, 1e-12)


@pytest.mark.parametrize("name", ["conv2d", "attention", "batch norm train"])
def test_operators_made_outside_work_inside_inference_mode_and_back(name):
    made = every_operator(make(trained_model(name), name))
    vectors = [block_for(operator) for operator in made]
    with torch.inference_mode():
        inside = [operator @ vector for operator, vector in zip(made, vectors, strict=True)]
    for operator, vector, result in zip(made, vectors, inside, strict=True):
        assert_close(operator @ vector, result, 1e-12)


@pytest.mark.parametrize("name", ["conv2d", "attention", "lstm"])
def test_autocast_around_a_measurement_does_not_touch_it(name):
    """In float32, which autocast would turn into bfloat16: forward pass, loss and the backward passes of products."""
    model = trained_model(name, torch.float32)
    truth = use_everything(make(model, name, torch.float32))
    with torch.autocast("cpu", dtype=torch.bfloat16), assert_unchanged(model):
        inside = use_everything(make(model, name, torch.float32))
    for one, other in zip(inside, truth, strict=True):
        assert torch.equal(one, other)


def test_autocast_does_not_touch_a_loss_with_matrix_products():
    def products(outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs @ outputs.T @ outputs, targets)

    def gradient() -> Tensor:
        problem = sm.Problem(BY_NAME["relu"].model(torch.float32), products, BY_NAME["relu"].data(torch.float32))
        return torch.cat([problem.gradient_at(), sm.GaussNewton(problem) @ torch.ones(38)])

    truth = gradient()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(gradient(), truth)


def test_train_mode_of_the_model_does_not_matter():
    for name in ("batch norm eval", "attention"):
        training, resting = trained_model(name).train(), trained_model(name).eval()
        for one, other in zip(use_everything(make(training, name)), use_everything(make(resting, name)), strict=True):
            assert torch.equal(one, other)
        assert training.training
        assert not resting.training


def test_an_error_leaves_everything_as_it_was():
    model = trained_model("batch norm train")
    inputs, targets = BY_NAME["batch norm train"].data()
    with assert_unchanged(model):
        with pytest.raises(ArithmeticError, match=r"not finite|is nan"):
            use_everything(sm.Problem(model, nn.CrossEntropyLoss(), (inputs * torch.nan, targets), batchnorm="train"))
        with pytest.raises(ValueError, match="class numbers"):
            sm.Problem(model, nn.CrossEntropyLoss(), (inputs, targets + 7), batchnorm="train")


DAMAGE = {
    "a weight": lambda model: model[0].weight.data.add_(1e-12),
    "a buffer": lambda model: model[1].running_mean.add_(1e-12),
    "a counter": lambda model: model[1].num_batches_tracked.add_(1),
    "a gradient": lambda model: setattr(model[0].weight, "grad", torch.zeros_like(model[0].weight)),
    "a mode": lambda model: model[1].eval(),
    "a hook": lambda model: model[0].register_forward_hook(print),
    "a requirement": lambda model: model[0].bias.requires_grad_(False),
    "a new tensor": lambda model: setattr(model[0], "weight", nn.Parameter(model[0].weight.detach().clone())),
    "torch's random state": lambda model: torch.rand(1),
    "numpy's random state": lambda model: np.random.rand(),
    "python's random state": lambda model: random.random(),
    "an attribute": lambda model: setattr(model[0], "note", 1),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_the_law_notices(damage):
    model = BY_NAME["batch norm train"].model().train()
    with assert_unchanged(model):
        snapshot(model)
    with pytest.raises(AssertionError, match="changed: "), assert_unchanged(model):
        DAMAGE[damage](model)
