import pytest
import torch
from hypothesis import given, settings
from logit_twin import NETWORKS, LogitTwin, assert_value, measured, networks, setting
from torch import nn

from spherometer import Problem
from spherometer.metrics import measure
from spherometer.metrics.alignment import histogram, unit
from spherometer.metrics.bench import Bench
from spherometer.metrics.class_means import ClassMeans


def cosine(left, right):
    return left @ right / (left.norm() * right.norm())


def class_means(twin):
    """m̄ⁱ as columns, nan for classes that are never predicted: a loop over samples."""
    directions, predicted = twin.top_directions(), twin.probabilities.argmax(1)
    classes = twin.probabilities.shape[1]
    columns = [directions[predicted == k].mean(0) for k in range(classes)]  # the mean of nothing is nan
    return torch.stack(columns, 1)


@pytest.mark.parametrize("name", NETWORKS)
def test_gradient_alignment_within_its_error_bar(name):
    problem, twin = setting(name)
    _values, vectors = torch.linalg.eigh(twin.hessian())
    gradient = twin.gradients.mean(0)
    truth = torch.stack([cosine(gradient, vectors[:, -k]).abs() for k in (1, 2)])
    found = measured(problem, "gradient_alignment:num=2")
    assert bool(((found.value - truth).abs() <= found.error + 1e-9).all())
    assert float(found.error.max()) < 0.2
    assert "random level" in found.note
    assert found.labels == ("r1", "r2")
    fine = measured(problem, "gradient_alignment:num=2:rtol=1e-10")
    assert_value(fine, truth, 1e-5)


@pytest.mark.parametrize("name", NETWORKS)
def test_sample_alignments_against_explicit_gradients(name):
    problem, twin = setting(name)
    tops = [vectors[:, 0] for _, vectors in twin.eigenpairs()]
    weights = torch.stack([cosine(-g, J.T @ q) for g, J, q in zip(twin.gradients, twin.jacobians, tops, strict=True)])
    labels = nn.functional.one_hot(twin.targets, 3)
    logits = torch.stack([cosine(e - p, q) for e, p, q in zip(labels, twin.probabilities, tops, strict=True)])
    for metric, cosines in (("sample_alignment", weights), ("logit_alignment", logits)):
        quartiles = cosines.quantile(torch.tensor([0.25, 0.5, 0.75]).double())
        truth = torch.cat([cosines.mean()[None], quartiles, cosines.abs().mean()[None]])
        assert_value(measured(problem, metric), truth, 1e-7)


@pytest.mark.parametrize("name", NETWORKS)
def test_class_means_against_loops(name):
    problem, twin = setting(name)
    means = class_means(twin)
    assert_value(measured(problem, "class_mean_norms"), means.norm(dim=0), 1e-8)
    directions = means / means.norm(dim=0)
    assert_value(measured(problem, "class_mean_cosines"), directions.T @ directions, 1e-7)
    units = twin.top_directions()
    units = units / units.norm(dim=1, keepdim=True)
    predicted = twin.probabilities.argmax(1)
    lengths = torch.stack([units[predicted == k].mean(0).norm() for k in range(3)])
    found = measured(problem, "mean_resultant_length")
    assert_value(found, lengths, 1e-7)
    empty = int((predicted.bincount(minlength=3) == 0).sum())
    assert (f"{empty} of 3 classes are never predicted" in found.note) == bool(empty)
    assert found.labels[0] == f"class 0 (n={int((predicted == 0).sum())})"


@pytest.mark.parametrize("name", NETWORKS)
def test_subspace_alignment_against_a_projection(name):
    problem, twin = setting(name)
    means = class_means(twin)
    means = means[:, ~means.isnan().any(0)]
    projector = means @ torch.linalg.pinv(means)
    top = torch.linalg.eigh(twin.hessian())[1][:, -1]
    gradient = twin.gradients.mean(0)
    truth = torch.stack([(projector @ v).norm() / v.norm() for v in (gradient, top)])
    assert_value(measured(problem, "subspace_alignment:rtol=1e-10"), truth, 1e-5)


@given(networks())
@settings(max_examples=20, deadline=None)
def test_lengths_and_cosines_stay_in_their_ranges(network):
    model, inputs, targets = network
    names = ["mean_resultant_length", "class_mean_cosines", "sample_alignment", "logit_alignment"]
    found = measure(Problem(model, nn.CrossEntropyLoss(), (inputs, targets)), names)
    for name in names:
        value = found[name].value
        value = value[torch.isfinite(value)]
        assert bool((value.abs() <= 1 + 1e-12).all()), name
    lengths = found["mean_resultant_length"].value
    single = torch.tensor(["n=1)" in label for label in found["mean_resultant_length"].estimate.labels])
    assert torch.allclose(lengths[single], torch.ones(int(single.sum()), dtype=torch.float64))  # one sample: ρ = 1


def test_eigen_histograms_against_loops():
    problem, twin = setting("relu")
    ratios, squares = [], []
    for J, (_, vectors) in zip(twin.jacobians, twin.eigenpairs(), strict=True):
        columns = J.T @ vectors
        lengths = columns.norm(dim=0)
        ratios += (lengths / lengths.mean()).tolist()
        squares += [float(cosine(columns[:, i], columns[:, j]) ** 2) for i in range(3) for j in range(i + 1, 3)]
    for name, values, high in (("eigen_length_histogram", ratios, 3.0), ("eigen_cosine_histogram", squares, 1.0)):
        counts = torch.histc(torch.tensor(values, dtype=torch.float64), 10, 0.0, high)
        found = measured(problem, f"{name}:num_bins=10")
        assert_value(found, counts / counts.sum())
        assert len(found.labels) == 10
        assert float(found.value.sum()) == pytest.approx(1)


def test_histogram_counts_what_it_leaves_out():
    found = histogram(torch.tensor([0.1, 0.9, torch.nan, 1.0 + 1e-12]).double(), 0.0, 1.0, 2)
    assert found.value.tolist() == pytest.approx([1 / 3, 2 / 3])
    assert "1 of 4 left out" in found.note


def test_wrong_labels_point_against_the_top_eigenvector():
    """Two classes: e^y − p is ± q⁽¹⁾, + where the prediction is right."""
    model = nn.Linear(1, 2, dtype=torch.float64)
    model.weight.data, model.bias.data = torch.tensor([[1.0], [-1.0]]).double(), torch.zeros(2).double()
    problem = Problem(
        model, nn.CrossEntropyLoss(), (torch.tensor([[1.0], [1.0], [-2.0]]).double(), torch.tensor([0, 1, 1]))
    )
    found = measured(problem, "logit_alignment")
    assert float(found.value[0]) == pytest.approx(1 / 3)
    assert float(found.value[4]) == pytest.approx(1)
    assert float(measured(problem, "sample_alignment").value[0]) == pytest.approx(1 / 3)


def _saturated():
    model = nn.Linear(2, 3, dtype=torch.float64)
    model.weight.data = torch.tensor([[3000.0, 0.0], [0.0, 1.0], [0.0, 0.0]]).double()
    model.bias.data.zero_()
    inputs = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 2.0]]).double()
    return Problem(model, nn.CrossEntropyLoss(), (inputs, torch.tensor([0, 1, 1])))


def test_one_hot_samples_are_left_out_and_counted():
    found = measure(
        _saturated(), ["sample_alignment", "logit_alignment", "mean_resultant_length", "class_mean_cosines"]
    )
    assert "1 of 3 samples left out" in found["sample_alignment"].estimate.note
    assert "1 of 3 samples left out" in found["logit_alignment"].estimate.note
    lengths = found["mean_resultant_length"]
    assert bool(lengths.value[0].isnan())
    assert float(lengths.value[1]) > 0
    assert "1 samples left out" in lengths.estimate.note
    assert "1 of 3 classes" in lengths.estimate.note
    assert bool(found["class_mean_cosines"].value[0].isnan().all())  # predicted, but its m vanishes


def test_vanishing_gradient_has_no_direction():
    model = nn.Linear(2, 2, dtype=torch.float64)
    for weight in model.parameters():
        weight.data.zero_()
    inputs = torch.tensor([[1.0, 0.0], [1.0, 0.0]]).double()
    found = measured(Problem(model, nn.CrossEntropyLoss(), (inputs, torch.tensor([0, 1]))), "gradient_alignment")
    assert bool(found.value.isnan().all())
    assert "the gradient vanishes" in found.note


def test_basis_drops_dependent_and_empty_classes():
    problem, twin = setting("linear")
    means = ClassMeans(Bench(problem))
    rank = torch.linalg.matrix_rank(means.means)
    assert means.basis.shape[1] == int(rank) < 3 or int((means.sizes == 0).sum()) == 0
    assert torch.allclose(means.basis.T @ means.basis, torch.eye(int(rank), dtype=torch.float64), atol=1e-12)
    assert isinstance(twin, LogitTwin)


def test_unit_is_nan_where_there_is_no_direction():
    columns = unit(torch.tensor([[3.0, 0.0], [4.0, 0.0]]))
    assert columns[:, 0].tolist() == pytest.approx([0.6, 0.8])
    assert bool(columns[:, 1].isnan().all())


def test_class_means_that_vanish_are_noted():
    """With one output softmax is constant: M = 0, so m = 0."""
    problem = Problem(
        nn.Linear(3, 1).double(), nn.CrossEntropyLoss(), (torch.randn(5, 3).double(), torch.zeros(5).long())
    )
    found = measure(problem, "class_mean_cosines")["class_mean_cosines"]
    assert found.value.isnan().all()
    assert found.estimate.note == "1 class means vanish and have no direction"
