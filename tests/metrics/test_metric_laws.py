"""Laws that every metric of the catalogue obeys."""

import copy
import json
from typing import get_args

import pytest
import torch
from metric_cases import network, one, samples
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from spherometer import HalfSquaredError, Problem
from spherometer.metrics import measure, metrics
from spherometer.values import Source

CATALOGUE = list(metrics())
# Of the loss alone: they take any loss and any network, where those of logits and layers ask for certain ones.
OF_THE_LOSS = "curvature scale layers normalised_sharpness relative_flatness noise stability worst_case".split()
GENERAL = [name for name, entry in metrics().items() if entry.function.__module__.split(".")[-1] in OF_THE_LOSS]
every_metric = pytest.mark.parametrize("name", CATALOGUE)
every_general_metric = pytest.mark.parametrize("name", GENERAL)
# Small settings, where the defaults are meant for real networks.
QUICK = {
    "sampled_adaptive_sharpness": ":num=3",
    "sampled_gradient_ratio": ":num=3",
    "descent_ratio": ":num=5",
    "worst_adaptive_sharpness": ":steps=2",
    "keskar_sharpness": ":steps=2",
    "top_eigenvalues": ":num=2",
    "log_determinant": ":num=2",
    "spectral_density": ":num_vectors=2:num_steps=5",
    "hessian_variance_bound": ":batch_size=3",
}


def quick(name):
    return name + QUICK.get(name, "")


def noisy_model(dtype=torch.float32):
    """Batch norm and dropout in train mode, a gradient left over, one frozen parameter."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Dropout(0.5), nn.Linear(5, 3)).to(dtype)
    model.train()
    model[0].weight.grad = torch.ones_like(model[0].weight)
    model[1].bias.requires_grad_(False)
    model[2].eval()
    return model


def snapshot(model):
    return {
        "tensors": {key: value.clone() for key, value in copy.deepcopy(model.state_dict()).items()},
        "gradients": {key: None if p.grad is None else p.grad.clone() for key, p in model.named_parameters()},
        "modes": [module.training for module in model.modules()],
        "trainable": [p.requires_grad for p in model.parameters()],
        "hooks": [(len(m._forward_hooks), len(m._forward_pre_hooks), len(m._backward_hooks)) for m in model.modules()],
        "random": torch.get_rng_state(),
        "enabled": torch.is_grad_enabled(),
    }


def assert_unchanged(before, after):
    assert before.keys() == after.keys()
    for key, value in before["tensors"].items():
        assert torch.equal(value, after["tensors"][key]), key
    for key, value in before["gradients"].items():
        now = after["gradients"][key]
        assert (value is None and now is None) or torch.equal(value, now), key
    assert torch.equal(before["random"], after["random"])
    for key in ("modes", "trainable", "hooks", "enabled"):
        assert before[key] == after[key], key


@every_metric
def test_measuring_leaves_everything_as_it_was(name):
    """A new pass over a loader draws from the global stream, too."""
    model, data = noisy_model(), TensorDataset(*samples("tanh", dtype=torch.float32))
    problem = Problem(model, nn.CrossEntropyLoss(), DataLoader(data, batch_size=len(data)))
    before = snapshot(model)
    found = one(problem, quick(name))
    assert_unchanged(before, snapshot(model))
    assert name not in GENERAL or torch.isfinite(torch.as_tensor(found.value)).all()


def test_assert_unchanged_sees_a_change():
    model = noisy_model()
    before = snapshot(model)
    model[1].running_mean.add_(1)
    with pytest.raises(AssertionError, match="running_mean"):
        assert_unchanged(before, snapshot(model))


@every_metric
def test_measuring_works_where_gradients_are_switched_off(name):
    problem = Problem(network("tanh"), nn.CrossEntropyLoss(), samples("tanh"))
    with torch.no_grad():
        switched = one(problem, quick(name))
    assert_same(switched.value, one(problem, quick(name)).value)


@every_metric
def test_the_same_seed_gives_the_same_number(name):
    problem = Problem(network("tanh"), nn.CrossEntropyLoss(), samples("tanh"))
    first = one(problem, quick(name), seed=3)
    torch.rand(5)
    again = one(problem, quick(name), seed=3)
    assert_same(first.value, again.value)
    assert_same(first.error, again.error)


def assert_same(first, again):
    assert torch.equal(torch.as_tensor(first).nan_to_num(), torch.as_tensor(again).nan_to_num())


@every_general_metric
def test_ragged_batches_change_nothing(name):
    model, (inputs, classes) = network("relu"), samples("relu")
    whole = one(Problem(model, nn.CrossEntropyLoss(), (inputs, classes)), quick(name))
    parts = [(inputs[a:b], classes[a:b]) for a, b in ((0, 3), (3, 4), (4, 7))]
    cut = one(Problem(model, nn.CrossEntropyLoss(), parts), quick(name))
    assert torch.as_tensor(cut.value).tolist() == pytest.approx(
        torch.as_tensor(whole.value).tolist(), rel=1e-6, abs=1e-9
    )


@every_general_metric
def test_a_network_of_three_weights_has_an_answer(name):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(6, 1, generator=generator, dtype=torch.float64)
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Tanh(), nn.Linear(1, 2, bias=False)).double()
    found = one(Problem(model, nn.CrossEntropyLoss(), (inputs, (inputs[:, 0] > 0).long())), quick(name))
    assert torch.isfinite(torch.as_tensor(found.value)).all()


@every_general_metric
def test_single_precision_agrees_with_double(name):
    single, double = network("tanh", torch.float32), network("tanh")
    double.load_state_dict(single.state_dict())
    inputs, classes = samples("tanh", dtype=torch.float32)
    found = one(Problem(single, nn.CrossEntropyLoss(), (inputs, classes)), quick(name))
    truth = one(Problem(double, nn.CrossEntropyLoss(), (inputs.double(), classes)), quick(name))
    scale = float(torch.as_tensor(truth.value).abs().max())
    allowed = 2e-3 * scale + 3 * float(torch.as_tensor(found.error).abs().max()) + 1e-5
    assert float((torch.as_tensor(found.value).double() - torch.as_tensor(truth.value).double()).abs().max()) <= allowed


@every_metric
def test_a_metric_describes_itself(name):
    chosen = metrics()[name]
    for entry in (chosen.symbol, chosen.formula, chosen.unit, chosen.source, chosen.cost, chosen.summary):
        assert entry
        assert "\n" not in entry
    assert "[" not in chosen.symbol, "square brackets are markup in tables"


@every_general_metric
def test_a_measurement_is_plain_data(name):
    found = measure(Problem(network("relu"), HalfSquaredError(), samples("relu")), [quick(name)])
    read = json.loads(json.dumps(found.to_dict()))["measurements"][quick(name)]
    values = read["value"] if isinstance(read["value"], list) else [read["value"]]
    assert not read["labels"] or len(read["labels"]) == len(values)
    assert read["kind"] in ("bound", "standard error")
    assert read["source"] in get_args(Source)
    chosen = metrics()[name]
    assert (read["paper"], read["formula"]) == (chosen.source, chosen.formula)
    assert set(read["options"]) == set(chosen.options)
    assert isinstance(read["error"], list) or read["error"] == "inf" or read["error"] >= 0


def test_a_set_shares_its_work_and_moves_no_number():
    problem = Problem(network("tanh"), nn.CrossEntropyLoss(), samples("tanh"))
    names = [quick(name) for name in ("sampled_adaptive_sharpness", "descent_ratio", "worst_adaptive_sharpness")]
    together = measure(problem, names)
    for name in names:
        assert float(together[name].value) == float(one(problem, name).value)


def test_entries_of_exact_vectors_have_an_error_too():
    problem = Problem(network("tanh"), nn.CrossEntropyLoss(), samples("tanh"))
    found = one(problem, "parameter_norms")
    assert found.entry(1).value == float(found.value[1])
    assert found.entry(1).error == 0
    assert found.first(2).error.tolist() == [0, 0]
