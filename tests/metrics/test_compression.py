"""Volumes, network sensitivity and dimensions against one sample and one layer at a time."""

import math

import pytest
import torch
from hypothesis import given, settings
from torch import nn

from metrics.jacobian_cases import (
    dense_network,
    entries_of,
    input_jacobians,
    layer_jacobians,
    problem_of,
    seeds,
    value_of,
)
from reference.agreement import assert_close, assert_unbiased
from reference.cases import BY_NAME
from reference.naive_jacobians import layer_names, singular_values
from spherometer import Problem
from spherometer.metrics import measure
from spherometer.metrics.representations import corrected_ratio, naive_ratio, spectral_norm

MODELS = ["linear", "gelu", "conv2d", "conv residual", "batch norm eval", "attention", "transformer layer"]
every_model = pytest.mark.parametrize("name", MODELS)


def truth(name):
    case = BY_NAME[name]
    return case.model(), case.data()[0], case.problem()


def log_volumes(jacobians):
    return torch.stack([singular_values(jacobian).log().sum() for jacobian in jacobians])


def approximately(value, rel=1e-7):
    return pytest.approx(float(value), rel=rel, abs=1e-9)


@every_model
def test_volumes_at_the_input_and_at_layers(name):
    model, inputs, problem = truth(name)
    logs = log_volumes(input_jacobians(model, inputs))
    assert value_of(problem, "log_volume") == approximately(logs.mean())
    assert value_of(problem, "log_volume:average=volume") == approximately(logs.exp().mean().log())
    by_layer = [log_volumes(layer_jacobians(model, inputs, layer)) for layer in layers_of(problem)]
    profile = value_of(problem, "layer_log_volume")
    assert profile.tolist() == [approximately(part.mean()) for part in by_layer]
    geometric, arithmetic = (torch.stack([f(part) for part in by_layer]).sum().log() for f in (geo, mean_volume))
    assert value_of(problem, "network_log_volume") == approximately(geometric)
    assert value_of(problem, "network_log_volume:average=volume") == approximately(arithmetic)


def layers_of(problem):
    return measure(problem, ["layer_mls"])["layer_mls"].estimate.labels


def geo(logs):
    return logs.mean().exp()


def mean_volume(logs):
    return logs.exp().mean()


@every_model
def test_sensitivity_of_layers(name):
    model, inputs, problem = truth(name)
    profile = entries_of(problem, "layer_mls")
    assert set(profile) == set(layer_names(model))
    for layer, value in profile.items():
        norms = [singular_values(jacobian)[0] for jacobian in layer_jacobians(model, inputs, layer)]
        assert value == approximately(torch.stack(norms).mean())
    assert value_of(problem, "nmls") == approximately(sum(profile.values()))  # a sum, not a mean (B-e7)


@every_model
def test_local_dimension(name):
    model, inputs, problem = truth(name)
    squares = [singular_values(jacobian).square() for jacobian in input_jacobians(model, inputs)]
    ratios = torch.stack([part.sum() ** 2 / part.square().sum() for part in squares])
    assert value_of(problem, "participation_ratio") == approximately(ratios.mean())


@settings(max_examples=40, deadline=None)
@given(seeds)
def test_local_dimension_is_between_one_and_the_rank_and_has_no_scale(seed):
    """T39."""
    model, inputs = dense_network(seed)
    found = measure(problem_of(model, inputs), ["participation_ratio"])["participation_ratio"]
    jacobians = input_jacobians(model, inputs)
    ranks = [int(torch.linalg.matrix_rank(jacobian)) for jacobian in jacobians]
    if not any(ranks):
        assert math.isnan(float(found))
        return
    assert 1 - 1e-9 <= float(found) <= max(ranks) + 1e-9
    last = [module for module in model if isinstance(module, nn.Linear)][-1]
    last.weight.data.mul_(7)
    assert value_of(problem_of(model, inputs), "participation_ratio") == approximately(float(found))


class TestDegenerate:
    """B-e19: dead layers, zero Jacobians, rank-deficient Jacobians and single outputs are answers with counts."""

    def dead(self):
        model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double()
        model[0].bias.data.fill_(-1e3)
        return problem_of(model, torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))

    def test_a_dead_network(self):
        found = measure(self.dead(), ["log_volume", "participation_ratio", "nmls", "network_log_volume", "mls"])
        assert float(found["log_volume"]) == -math.inf
        assert "5 of 5 samples rank-deficient (5 have a zero Jacobian)" in found["log_volume"].estimate.note
        assert math.isnan(float(found["participation_ratio"]))
        assert "5 of 5 samples have a zero Jacobian" in found["participation_ratio"].estimate.note
        assert float(found["mls"]) == 0
        assert float(found["nmls"]) > 0  # the last layer still carries
        assert math.isfinite(float(found["network_log_volume"]))
        assert "rank-deficient samples, by layer: 0 5" in found["network_log_volume"].estimate.note

    def test_some_samples_are_rank_deficient(self):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double()
        inputs = torch.randn(4, 3, dtype=torch.float64)
        model[0].bias.data.fill_(5)
        model[0].weight.data.abs_()
        inputs[0] = -1000
        with torch.no_grad():
            assert int((model[0](inputs[:1]) > 0).sum()) < 2  # fewer units alive than outputs
        problem, jacobians = problem_of(model, inputs), input_jacobians(model, inputs)
        full = [jacobian for jacobian in jacobians if int(torch.linalg.matrix_rank(jacobian)) == 2]
        assert 0 < len(full) < 4
        found = measure(problem, ["log_volume", "log_volume:average=volume"])
        assert float(found["log_volume"]) == approximately(log_volumes(full).mean())
        mean = log_volumes(full).exp().sum().log() - math.log(4)  # a sample without volume counts as zero
        assert float(found["log_volume:average=volume"]) == approximately(mean)
        assert f"{4 - len(full)} of 4 samples rank-deficient" in found["log_volume"].estimate.note

    def test_a_layer_narrower_than_the_outputs_has_no_volume(self):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 2), nn.Tanh(), nn.Linear(2, 3)).double()
        problem = problem_of(model, torch.randn(5, 4, dtype=torch.float64))
        assert value_of(problem, "log_volume") == -math.inf
        assert value_of(problem, "network_log_volume") == -math.inf
        positive = value_of(problem, "log_volume:deficient=positive")
        jacobians = input_jacobians(problem.model, problem.data[0])
        truth = torch.stack([singular_values(jacobian)[:2].log().sum() for jacobian in jacobians]).mean()
        assert positive == approximately(truth)

    def test_float32_noise_is_not_taken_for_volume(self):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(20, 2), nn.Tanh(), nn.Linear(2, 3))
        assert value_of(problem_of(model, torch.randn(30, 20)), "log_volume") == -math.inf

    def test_one_output(self):
        model, inputs = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double(), torch.randn(3, 3).double()
        found = measure(problem_of(model, inputs), ["log_volume", "participation_ratio", "mls"])
        norms = torch.stack([jacobian.norm() for jacobian in input_jacobians(model, inputs)])
        assert float(found["participation_ratio"]) == approximately(1)
        assert float(found["log_volume"]) == approximately(norms.log().mean())
        assert float(found["mls"]) == approximately(norms.mean())

    def test_a_layer_used_twice_says_so(self):
        layer = nn.Linear(3, 3)
        model = nn.Sequential(layer, nn.Tanh(), layer, nn.Tanh(), nn.Linear(3, 2)).double()
        found = measure(problem_of(model, torch.randn(4, 3).double()), ["nmls", "layer_mls"])
        assert found["layer_mls"].estimate.labels == ("0", "0#2", "4")
        assert found["nmls"].estimate.note == "used more than once, each use counts: 0"

    def test_wrong_options_are_refused(self):
        with pytest.raises(ValueError, match="expected average to be one of 'log', 'volume'"):
            value_of(self.dead(), "log_volume:average=mean")
        with pytest.raises(ValueError, match="expected deficient to be one of 'skip', 'positive'"):
            value_of(self.dead(), "log_volume:deficient=drop")

    def test_a_model_without_layers_is_refused(self):
        class Scale(nn.Module):
            def __init__(self):
                super().__init__()
                self.scale = nn.Parameter(torch.ones(2))

            def forward(self, x):
                return self.scale * x

        with pytest.raises(ValueError, match="no linear or convolutional layer"):
            value_of(problem_of(Scale(), torch.randn(3, 2)), "nmls")


class TestRepresentations:
    def population(self):
        variances = torch.tensor([4.0, 2.0, 1.0, 0.5, 0.1, 0.1], dtype=torch.float64)
        return variances, float(variances.sum() ** 2 / variances.square().sum())

    def test_both_parts_of_the_corrected_ratio_are_unbiased_over_all_samples_of_a_population(self):
        """Every choice of 5 of 7 points without order: U-statistics average to the statistic of the whole."""
        from itertools import combinations

        points = torch.randn(7, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        parts = torch.tensor([self.parts(points[list(chosen)]) for chosen in combinations(range(7), 5)])
        assert_close(parts.mean(0), torch.tensor(self.parts(points)))

    @staticmethod
    def parts(points):
        """Means over four different points of ¼‖a−b‖²‖c−d‖² and of ¼((a−b)'(c−d))², written as loops."""
        from itertools import permutations

        traces, squares, num = 0.0, 0.0, 0
        for a, b, c, d in permutations(points, 4):
            traces += float((a - b).square().sum() * (c - d).square().sum()) / 4
            squares += float((a - b) @ (c - d)) ** 2 / 4
            num += 1
        return traces / num, squares / num

    def test_the_corrected_ratio_is_the_ratio_of_these_loops(self):
        points = torch.randn(6, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        traces, squares = self.parts(points)
        assert corrected_ratio(points) == approximately(traces / squares)

    def test_the_naive_ratio_is_biased_low_and_the_corrected_one_much_less(self):
        variances, true = self.population()
        generator = torch.Generator().manual_seed(0)
        draws = [torch.randn(30, 6, generator=generator, dtype=torch.float64) * variances.sqrt() for _ in range(400)]
        naive = torch.tensor([naive_ratio(draw) for draw in draws])
        corrected = torch.tensor([corrected_ratio(draw) for draw in draws])
        # dividing two unbiased numbers leaves the bias of a ratio, of order 1/n too: here 3 % in 1/PR, naively 9 %
        assert float(naive.mean()) < 0.96 * true
        left, before = (abs(float((1 / ratio).mean()) - 1 / true) for ratio in (corrected, naive))
        assert left < before / 2
        assert float((1 / naive).mean()) == pytest.approx(1 / true + 1 / 30, rel=0.06)
        with pytest.raises(AssertionError):
            assert_unbiased(naive, torch.tensor(true))

    def test_layers_of_a_network(self):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).double()
        inputs = torch.randn(12, 5, dtype=torch.float64)
        inner = torch.tanh(model[0](inputs)).detach()
        for option, ratio in (("", corrected_ratio), (":corrected=False", naive_ratio)):
            found = entries_of(problem_of(model, inputs), "representation_participation_ratio" + option)
            assert found["0"] == approximately(ratio(inputs))
            assert found["2"] == approximately(ratio(inner))
            assert found["outputs"] == approximately(ratio(model(inputs).detach()))
        norms = entries_of(problem_of(model, inputs), "feature_norms")  # Q13
        assert norms["2"] == approximately(torch.linalg.matrix_norm(inner, 2))

    def test_what_does_not_vary_has_no_ratio(self):
        same = torch.ones(6, 3, dtype=torch.float64)
        assert math.isnan(naive_ratio(same))
        assert math.isnan(corrected_ratio(same))
        assert math.isnan(corrected_ratio(torch.randn(3, 4)))

    def test_large_matrices_are_solved_to_a_bound(self, monkeypatch):
        matrix = torch.randn(40, 60, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        exact, _ = spectral_norm(matrix)
        monkeypatch.setattr("spherometer.metrics.representations.MAX_DENSE", 10)
        value, error = spectral_norm(matrix)
        assert 0 < error < 1e-4
        assert abs(value - exact) <= error


def test_tokens_have_layers_to_look_into():
    case = BY_NAME["embedding"]
    problem = Problem(case.model(), nn.CrossEntropyLoss(), case.data())
    norms = [singular_values(jacobian)[0] for jacobian in layer_jacobians(case.model(), case.data()[0], "3")]
    assert value_of(problem, "nmls") == approximately(torch.stack(norms).mean())
