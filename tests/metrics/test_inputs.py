"""Input Jacobians: every statistic against singular values of one sample at a time."""

import pytest
import torch
from hypothesis import given, settings
from torch import nn

from metrics.jacobian_cases import dense_network, entries_of, input_jacobians, problem_of, seeds, value_of
from reference.agreement import assert_close
from reference.cases import BY_NAME
from reference.naive_jacobians import singular_values
from spherometer import Problem
from spherometer.metrics import measure
from spherometer.metrics.secants import pairs_of

MODELS = ["relu in place", "conv2d", "conv residual", "batch norm eval", "attention", "transformer layer"]
every_model = pytest.mark.parametrize("name", MODELS)


def truth(name):
    case = BY_NAME[name]
    return input_jacobians(case.model(), case.data()[0]), case.data()[0]


def tops(jacobians):
    return torch.stack([singular_values(jacobian)[0] for jacobian in jacobians])


def assert_agree(actual, expected, tolerance=1e-8):
    assert_close(
        torch.as_tensor(actual, dtype=torch.float64), torch.as_tensor(expected, dtype=torch.float64), tolerance
    )


@every_model
def test_norms_over_samples(name):
    jacobians, inputs = truth(name)
    problem, norms = BY_NAME[name].problem(), tops(jacobians)
    frobenius = torch.stack([jacobian.norm() for jacobian in jacobians])
    assert_agree(value_of(problem, "input_jacobian_norm"), norms.max())
    assert_agree(value_of(problem, "mls"), norms.mean())
    assert_agree(value_of(problem, "input_jacobian_frobenius"), frobenius.mean())
    assert_agree(value_of(problem, "batch_jacobian_frobenius"), frobenius.square().sum().sqrt())
    assert_agree(value_of(problem, "normalised_mls"), (inputs.flatten(1).square().sum(1) * norms.square()).mean())
    spread = entries_of(problem, "input_jacobian_quantiles")
    assert_agree([spread["smallest"], spread["median"], spread["largest"]], [norms.min(), norms.median(), norms.max()])


@every_model
def test_singular_values(name):
    jacobians, _ = truth(name)
    values = torch.stack([singular_values(jacobian) for jacobian in jacobians])
    found = measure(BY_NAME[name].problem(), ["input_singular_values"])["input_singular_values"].estimate
    assert_close(found.value, values.mean(0), 1e-6)
    assert_close(found.error, values.std(0) / len(values) ** 0.5, 1e-6)
    assert found.labels == ("σ1", "σ2", "σ3")
    assert len(value_of(BY_NAME[name].problem(), "input_singular_values:num=2")) == 2


@every_model
def test_softmaxed_model(name):
    case = BY_NAME[name]
    softmaxed = nn.Sequential(case.model(), nn.Softmax(1))
    norms = tops(input_jacobians(softmaxed, case.data()[0]))
    assert_agree(value_of(case.problem(), "softmax_input_jacobian_norm"), norms.max())
    assert_agree(value_of(case.problem(), "softmax_mls"), norms.mean())


@every_model
def test_input_invariant_mls(name):
    jacobians, inputs = truth(name)
    terms = [(j.square().sum(0) * x.flatten().square()).sum() for j, x in zip(jacobians, inputs, strict=True)]
    assert_agree(value_of(BY_NAME[name].problem(), "input_invariant_mls"), torch.stack(terms).mean())


def test_secants():
    model, inputs = dense_network(5)
    inputs = torch.cat([inputs, inputs[:1]])  # two samples are the same
    outputs = model(inputs).detach()
    slopes = torch.stack([
        (outputs[i] - outputs[j]).norm() / (inputs[i] - inputs[j]).norm()
        for i in range(len(inputs)) for j in range(i) if not torch.equal(inputs[i], inputs[j])
    ])  # fmt: skip
    found = measure(problem_of(model, inputs), ["secant_slope", "secant_quantiles"])
    assert_agree(found["secant_slope"].value, slopes.max())
    assert found["secant_slope"].estimate.note == f"{len(slopes)} pairs, 1 pairs of equal inputs left out"
    assert_agree(found["secant_quantiles"].value[[0, -1]], torch.stack([slopes.min(), slopes.max()]))


def test_secants_over_many_blocks(monkeypatch):
    model, inputs = dense_network(6)
    whole = value_of(problem_of(model, inputs), "secant_slope")
    monkeypatch.setattr("spherometer.metrics.secants.BLOCK", 2)
    assert_agree(value_of(problem_of(model, inputs), "secant_slope"), whole)


@settings(max_examples=40, deadline=None)
@given(seeds)
def test_orders_that_hold_for_all_networks(seed):
    """T40, Q29: mean ≤ max; softmax halves; T29: spectral ≤ Frobenius; A Eq 23 on a linear model: secants ≤ norm."""
    problem = problem_of(*dense_network(seed))
    names = ["mls", "input_jacobian_norm", "softmax_input_jacobian_norm", "input_jacobian_frobenius", "softmax_mls"]
    found = {name: float(entry) for name, entry in measure(problem, names).items()}
    slack = 1 + 1e-9
    assert found["mls"] <= found["input_jacobian_norm"] * slack
    assert found["mls"] <= found["input_jacobian_frobenius"] * slack
    assert found["softmax_input_jacobian_norm"] <= 0.5 * found["input_jacobian_norm"] * slack
    assert found["softmax_mls"] <= found["softmax_input_jacobian_norm"] * slack


def test_softmax_norm_is_below_the_impurity_times_the_logit_norm():
    """Q29: ‖M J‖ ≤ λ⁽¹⁾ ‖J‖ for a single sample."""
    case = BY_NAME["linear"]
    inputs, targets = case.data()
    for sample, target in zip(inputs, targets, strict=True):
        problem = Problem(case.model(), nn.CrossEntropyLoss(), (sample[None], target[None]))
        found = measure(problem, ["softmax_mls", "impurity", "mls"])
        assert float(found["softmax_mls"]) <= float(found["impurity"]) * float(found["mls"]) * (1 + 1e-9)


def test_the_norm_of_a_batch_in_eval_mode_is_the_largest_of_its_samples():
    """T43."""
    problem = BY_NAME["batch norm eval"].problem()
    found = measure(problem, ["batch_jacobian_norm", "input_jacobian_norm"])
    difference = abs(float(found["batch_jacobian_norm"]) - float(found["input_jacobian_norm"]))
    assert difference <= float(found["batch_jacobian_norm"].error)


@pytest.mark.parametrize("num", [3, 4, 10])
def test_train_mode_batch_norm_in_closed_form(num):
    """T44: J_T = σ⁻¹(I − 11'/N − x̂x̂'/N), with the norm σ⁻¹ of eval mode for N ≥ 3."""
    model = nn.Sequential(nn.BatchNorm1d(1, eps=1e-14, affine=False), nn.Linear(1, 1, bias=False)).double()
    model[1].weight.data.fill_(1)
    inputs = torch.randn(num, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(num))
    problem = Problem(model, nn.MSELoss(), (inputs, torch.zeros(num, 1)), batchnorm="train")
    deviation = inputs.std(correction=0)
    measured = measure(problem, ["batch_jacobian_norm:rtol=1e-8"])["batch_jacobian_norm:rtol=1e-8"]
    assert_agree(measured.value, 1 / deviation, 1e-7)
    normal = (inputs - inputs.mean()) / deviation
    closed = (torch.eye(num).double() - 1 / num - normal @ normal.T / num) / deviation
    model.train()
    dense = torch.autograd.functional.jacobian(lambda x: model(x)[:, 0], inputs)[:, :, 0]
    assert_close(dense, closed, 1e-6)


def test_train_mode_has_no_jacobian_of_each_sample():
    with pytest.raises(ValueError, match="samples that do not see each other"):
        measure(BY_NAME["batch norm train"].problem(), ["mls"])


def test_zero_jacobians_count_as_zero_and_are_counted():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    model[0].bias.data.fill_(-100)
    model[0].weight.data[0] = torch.tensor([1.0, 0.0, 0.0])
    inputs = torch.eye(4, 3, dtype=torch.float64)
    inputs[0, 0] = 101  # one unit of one sample is alive, and its logits are of moderate size
    found = measure(problem_of(model, inputs), ["mls", "input_jacobian_norm", "softmax_mls", "normalised_mls"])
    assert float(found["mls"]) > 0
    assert all("3 of 4 samples have a zero Jacobian" in entry.estimate.note for entry in found.values())


def test_tokens_are_refused_with_a_way_out():
    with pytest.raises(ValueError, match="'nmls' or 'layer_mls'"):
        measure(BY_NAME["embedding"].problem(), ["mls"])


def test_one_sample_has_no_error_bar_of_a_mean():
    case = BY_NAME["relu"]
    inputs, targets = case.data()
    problem = Problem(case.model(), nn.CrossEntropyLoss(), (inputs[:1], targets[:1]))
    found = measure(problem, ["input_singular_values"])["input_singular_values"]
    assert bool(torch.isinf(found.error).all())
    with pytest.raises(ValueError, match="a secant needs two samples"):
        measure(problem, ["secant_slope"])


class TestManyOutputs:
    """More outputs than C backward passes are worth: Lanczos and random projections, within their error bars."""

    NAMES = ("mls", "input_jacobian_norm", "softmax_mls", "softmax_input_jacobian_norm", "normalised_mls", "nmls")

    def problem(self, dtype=torch.float64):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(12, 30), nn.GELU(), nn.Linear(30, 20), nn.GELU(), nn.Linear(20, 120))
        inputs = torch.randn(10, 12)
        return Problem(model.to(dtype), nn.CrossEntropyLoss(), (inputs.to(dtype), torch.arange(10)))

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
    def test_norms_are_within_their_bounds(self, dtype):
        quick = measure(self.problem(dtype), self.NAMES)
        exact = measure(self.problem(), [*self.NAMES, "log_volume", "layer_log_volume"])
        for name in self.NAMES:
            assert exact[name].estimate.source == "exact"
            assert quick[name].estimate.source == "solver"
            assert quick[name].status
            assert 0 < float(quick[name].error) <= 2.1e-3 * float(exact[name])
            assert abs(float(quick[name]) - float(exact[name])) <= float(quick[name].error) + 1e-6 * float(exact[name])

    def test_random_projections_have_honest_error_bars(self):
        names = ["input_jacobian_frobenius", "batch_jacobian_frobenius"]
        exact = measure(self.problem(), [*names, "log_volume"])
        runs = [measure(self.problem(), names, seed=seed) for seed in range(60)]
        for name in names:
            assert runs[0][name].estimate.source == "random vectors"
            scores = torch.tensor([(float(run[name]) - float(exact[name])) / float(run[name].error) for run in runs])
            assert abs(float(scores.mean())) < 4 / 60**0.5
            assert 0.75 < float(scores.std()) < 1.35

    def test_the_same_seed_gives_the_same_number(self):
        once, again = (float(measure(self.problem(), ["mls"], seed=3)["mls"]) for _ in range(2))
        assert once == again


def test_quantiles_of_many_outputs_have_a_bar_each_and_can_be_shown():
    problem = problem_of(nn.Linear(50, 40).double(), torch.randn(3, 50, dtype=torch.float64))
    found = measure(problem, ["input_jacobian_quantiles"])
    estimate = found["input_jacobian_quantiles"].estimate
    assert estimate.products > 0
    assert estimate.error.shape == estimate.value.shape == (7,)
    assert "largest" in str(found)
    assert repr(estimate).startswith("[")


def test_blocks_of_pairs_come_one_by_one():
    blocks = pairs_of(20_000)
    rows, columns, upper = next(blocks)
    assert rows == columns == slice(0, 512)
    assert int(upper.sum()) == 512 * 511 // 2
    assert sum(int(upper.sum()) for _, _, upper in pairs_of(1100)) == 1100 * 1099 // 2
