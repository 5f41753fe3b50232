"""Ratios and bounds of stochastic gradient descent, held against enumeration of every batch."""

from itertools import combinations, product

import pytest
import torch
from metric_cases import (
    LOSSES,
    NETWORKS,
    NUM_SAMPLES,
    assert_exactly,
    assert_honest,
    assert_within,
    network,
    one,
    problem_and_twin,
    samples,
)
from torch import nn

from spherometer import HalfSquaredError, Hessian, Problem
from spherometer.metrics import Bench, measure
from spherometer.metrics.sample_pool import SamplePool
from spherometer.operators import EmpiricalFisher, HessianVariance, random_gradient

every_network = pytest.mark.parametrize("name", NETWORKS)
every_loss = pytest.mark.parametrize("loss", LOSSES)


def batches(size, replacement):
    return list(product(range(NUM_SAMPLES), repeat=size) if replacement else combinations(range(NUM_SAMPLES), size))


@every_network
@every_loss
@pytest.mark.parametrize(("size", "replacement"), [(1, False), (3, False), (7, False), (2, True)])
def test_gradient_ratio_is_that_of_all_batches(name, loss, size, replacement):
    """T26 by exhaustive enumeration, with and without replacement."""
    problem, twin = problem_and_twin(name, loss)
    gradients = twin.gradients()
    squares = torch.stack([gradients[list(batch)].mean(0).square().sum() for batch in batches(size, replacement)])
    truth = float(gradients.mean(0).square().sum() / squares.mean())
    assert_exactly(one(problem, f"gradient_ratio:batch_size={size}:replacement={replacement}"), truth)


def test_gradient_ratio_grows_with_the_batch_up_to_one():
    problem, _ = problem_and_twin("relu")
    names = [f"gradient_ratio:batch_size={size}" for size in range(1, NUM_SAMPLES + 1)]
    values = [float(entry.value) for entry in measure(problem, names).values()]
    assert values == sorted(values)
    assert values[-1] == pytest.approx(1)


def test_mean_squared_error_counts_samples_not_entries():
    model, (inputs, _) = network("tanh"), samples("tanh")
    targets = torch.randn(len(inputs), 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    half = one(Problem(model, HalfSquaredError(), (inputs, targets)), "gradient_ratio:batch_size=2")
    mean = one(Problem(model, nn.MSELoss(), (inputs, targets)), "gradient_ratio:batch_size=2")
    assert mean.value == pytest.approx(half.value)
    assert "B = 2 of N = 7" in mean.note


def test_large_noise_makes_the_threshold_proportional_to_the_batch():
    """C-e12: ρ_B ≈ B/A for A ≫ B, hence 2ρ_B/η ≈ 2B/(Aη)."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(2000, 3, generator=generator, dtype=torch.float64)
    targets = torch.randn(2000, 1, generator=generator, dtype=torch.float64)
    model = nn.Linear(3, 1).double()
    with torch.no_grad():
        best = torch.linalg.lstsq(torch.cat([inputs, torch.ones(2000, 1)], 1), targets).solution
        model.weight.copy_(best[:3].T + 0.01)
        model.bias.copy_(best[3])
    problem = Problem(model, HalfSquaredError(), (inputs, targets))
    found = measure(problem, [f"stability_threshold:lr=0.5:batch_size={size}" for size in (1, 2, 4)])
    one_, two, four = (float(entry.value) for entry in found.values())
    assert two / one_ == pytest.approx(2, rel=1e-2)
    assert four / one_ == pytest.approx(4, rel=1e-2)


def test_sampled_gradient_ratio_has_honest_bars():
    problem, _ = problem_and_twin("tanh")
    truth = float(one(problem, "gradient_ratio:batch_size=2").value)
    assert_honest([one(problem, "sampled_gradient_ratio:batch_size=2:num=32", seed) for seed in range(24)], truth)
    drawn = one(problem, "sampled_gradient_ratio:batch_size=2:num=200:replacement=True")
    assert_within(drawn, float(one(problem, "gradient_ratio:batch_size=2:replacement=True").value))


@every_network
@every_loss
@pytest.mark.parametrize("size", [1, 3, 7])
def test_descent_ratio_is_that_of_all_batches(name, loss, size):
    problem, twin = problem_and_twin(name, loss)
    gradients, hessian = twin.gradients(), twin.hessian()
    means = torch.stack([gradients[list(batch)].mean(0) for batch in batches(size, replacement=False)])
    truth = float(((means @ hessian) * means).sum() / means.square().sum())
    assert_exactly(one(problem, f"descent_ratio:batch_size={size}"), truth)


def test_descent_ratio_from_random_gradients_has_honest_bars():
    problem, _ = problem_and_twin("tanh")
    truth = float(one(problem, "descent_ratio:batch_size=2").value)
    many = repeated(problem, 50)  # 350 samples: more than num, so that random sums are used
    found = [one(many, "descent_ratio:batch_size=2:num=32:rtol=0.001:replacement=True", seed) for seed in range(24)]
    exact = float(one(problem, "descent_ratio:batch_size=2:replacement=True").value)
    assert all(entry.source == "random vectors" and "raise num" in entry.status.message for entry in found)
    assert truth != exact
    assert_honest(found, exact)


def test_descent_ratio_stops_at_its_tolerance():
    problem, _ = problem_and_twin("tanh")
    found = one(repeated(problem, 50), "descent_ratio:num=300:rtol=0.1")
    assert found.status
    assert found.products < 301
    assert float(found.error) <= 0.1 * abs(float(found.value))


def repeated(problem, times):
    inputs, targets = problem.data
    return Problem(problem.model, problem.loss, (inputs.repeat(times, 1), targets.repeat(times)))


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), HalfSquaredError(), nn.MSELoss()])
def test_random_gradients_have_the_covariance_of_single_gradients(loss):
    model, (inputs, classes) = network("tanh"), samples("tanh")
    targets = classes if isinstance(loss, nn.CrossEntropyLoss) else nn.functional.one_hot(classes, 3).double()
    fisher = EmpiricalFisher(Problem(model, loss, (inputs, targets)))
    stream = torch.Generator().manual_seed(0)
    draws = torch.stack([random_gradient(fisher, stream) for _ in range(300)])
    probe = torch.randn(draws.shape[1], generator=stream, dtype=torch.float64)
    squares = (draws @ probe).square()
    score = (squares.mean() - probe @ (fisher @ probe)) / (squares.std() / len(squares) ** 0.5)
    assert abs(float(score)) < 4


def test_sgd_lowers_the_expected_loss_of_a_quadratic_iff_the_descent_ratio_allows():
    """T27 (C Prop 5.2): E L(θ − ηg_B) < L(θ) iff E[g'Hg]/E‖g‖² < 2ρ_B/η; enough is λ₁ < 2ρ_B/η."""
    generator = torch.Generator().manual_seed(4)
    inputs = torch.randn(6, 2, generator=generator, dtype=torch.float64)
    problem = Problem(nn.Linear(2, 1).double(), HalfSquaredError(), (inputs, inputs.sum(1, keepdim=True) ** 2))
    bench = Bench(problem)
    ratio, descent = (float(one(problem, f"{name}:batch_size=2").value) for name in ("gradient_ratio", "descent_ratio"))
    assert descent <= float(one(problem, "sharpness").value)
    limit = 2 * ratio / descent
    for factor, lowers in ((0.98, True), (1.02, False)):
        step = factor * limit
        after = [
            problem.loss_at(
                bench.weights - step * problem.restricted([(inputs[rows], problem.data[1][rows])]).gradient_at()
            )
            for rows in (list(pair) for pair in combinations(range(6), 2))
        ]
        assert (sum(after) / len(after) < bench.loss) is lowers


@every_network
def test_hessian_variance_bound_is_its_formula(name):
    """Wu et al. (2018): λ₁(E[H_B²] − H²) over batches of 3, 3 and 1, weighted with their samples."""
    problem, twin = problem_and_twin(name)
    parts = [twin.hessian(slice(start, start + 3)) for start in (0, 3, 6)]
    shares = torch.tensor([3, 3, 1], dtype=torch.float64) / 7
    mean = sum(share * part for share, part in zip(shares, parts, strict=True))
    variance = sum(share * part @ part for share, part in zip(shares, parts, strict=True)) - mean @ mean
    assert torch.allclose(mean, twin.hessian())
    operator = HessianVariance(problem, SamplePool(problem).cut(3))
    assert torch.allclose(operator.dense(), variance, atol=1e-12)
    top = float(torch.linalg.eigvalsh(variance)[-1])
    rate = 0.5 / top**0.5
    found = one(problem, f"hessian_variance_bound:lr={rate}:batch_size=3:rtol=0.001")
    assert_within(found, (1 + 0.75**0.5) / rate, rtol=1e-5)
    cut = Problem(problem.model, problem.loss, SamplePool(problem).cut(3))
    assert one(cut, f"hessian_variance_bound:lr={rate}:rtol=0.001").value == pytest.approx(found.value, rel=1e-9)


def test_hessian_variance_bound_decides_one_dimensional_sgd():
    """Two samples of curvature a and b: E θ² is multiplied by (1−ηH)² + η²s² in each step (Wu et al. 2018)."""
    inputs = torch.tensor([[1.0], [2.0]], dtype=torch.float64)  # H_i = 1, 4; H = 2.5, s = 1.5
    problem = Problem(nn.Linear(1, 1, bias=False).double(), HalfSquaredError(), (inputs, 0 * inputs))
    for rate, stable in ((0.5, True), (0.65, False)):
        bound = float(one(problem, f"hessian_variance_bound:lr={rate}:batch_size=1").value)
        growth = sum((1 - rate * curvature) ** 2 for curvature in (1, 4)) / 2
        assert (growth < 1) is (bound > 2.5) is stable


def test_hessian_variance_bound_without_solution_is_zero_and_says_so():
    problem, _ = problem_and_twin("tanh")
    found = one(problem, "hessian_variance_bound:lr=1000.0:batch_size=1")
    assert found.value == 0
    assert "unstable at any sharpness" in found.note
    whole = one(problem, "hessian_variance_bound:lr=0.5")
    assert whole.value == 4
    assert "one batch" in whole.note


def test_zero_gradients_are_answers():
    inputs = torch.randn(5, 2, dtype=torch.float64)
    problem = Problem(nn.Linear(2, 1).double(), HalfSquaredError(), (inputs, torch.zeros(5, 1).double()))
    for parameter in problem.model.parameters():
        parameter.data.zero_()
    found = measure(problem, ["gradient_ratio", "sampled_gradient_ratio:num=3", "descent_ratio", "stability_threshold"])
    assert [float(entry.value) for entry in found.values()] == [1, 1, 0, 20]
    assert "every gradient is zero" in found["gradient_ratio"].estimate.note


def test_one_sample_has_no_noise():
    problem = Problem(
        nn.Linear(2, 1).double(), HalfSquaredError(), (torch.ones(1, 2).double(), torch.ones(1, 1).double())
    )
    found = measure(problem, ["gradient_ratio", "sampled_gradient_ratio:num=3", "descent_ratio"])
    values = [float(entry.value) for entry in found.values()]
    assert values == pytest.approx([1, 1, 3])  # H = xx' with x = (1, 1, 1 of the bias)


def test_sample_pool_puts_ragged_batches_together():
    inputs = torch.arange(7.0)
    problem = Problem(
        nn.Linear(1, 1),
        HalfSquaredError(),
        [(inputs[a:b, None], inputs[a:b, None]) for a, b in ((0, 3), (3, 5), (5, 7))],
    )
    pool = SamplePool(problem)
    assert len(pool) == 7
    assert sorted(pool.batch(torch.tensor([6, 0, 3]))[0][:, 0].tolist()) == [0, 3, 6]
    assert [len(batch[0]) for batch in pool.cut(3)] == [3, 3, 1]
    drawn = pool.draw(7, torch.Generator().manual_seed(0), replacement=False)
    assert sorted(drawn[1][:, 0].tolist()) == inputs.tolist()


def test_sample_pool_takes_nested_batches():
    batch = {"x": (torch.arange(4.0)[:, None], torch.ones(4, 1)), "kind": "letters"}
    forward = lambda model, content: (model(content["x"][0] * content["x"][1]), content["x"][0])  # noqa: E731
    pool = SamplePool(Problem(nn.Linear(1, 1), HalfSquaredError(), [batch, batch], forward=forward))
    joined = pool.batch(torch.tensor([1, 6]))
    assert joined["x"][0][:, 0].tolist() == [1, 2]
    assert joined["kind"] == "letters"


@pytest.mark.parametrize(
    ("request_", "match"),
    [
        ("gradient_ratio:batch_size=0", "batch_size from 1 to the 7 samples of the problem, got 0"),
        ("gradient_ratio:batch_size=8", "got 8: take smaller batches or more data"),
        ("sampled_gradient_ratio:batch_size=9", "batch_size from 1 to the 7"),
        ("sampled_gradient_ratio:num=1", "num as a whole number of at least 2"),
        ("descent_ratio:batch_size=8", "batch_size from 1 to the 7"),
        ("descent_ratio:num=1", "num as a whole number of at least 2"),
        ("hessian_variance_bound:lr=0.0", "expected lr > 0 and finite, got 0.0"),
        ("hessian_variance_bound:batch_size=0", "batch_size from 1 to the 7"),
    ],
)
def test_options_are_refused_with_a_reason(request_, match):
    problem, _ = problem_and_twin("tanh")
    with pytest.raises(ValueError, match=match):
        one(problem, request_)


@pytest.mark.parametrize("name", ["gradient_ratio", "sampled_gradient_ratio", "descent_ratio"])
def test_samples_that_see_each_other_are_refused(name):
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 3)).double()
    problem = Problem(model, nn.CrossEntropyLoss(), samples("tanh"), batchnorm="train")
    with pytest.raises(ValueError, match="expected samples that do not see each other"):
        one(problem, name)


def test_hessian_of_batches_is_the_mean_of_theirs():
    problem, _ = problem_and_twin("relu")
    operator = HessianVariance(problem, SamplePool(problem).cut(2))
    mean = sum(share * hessian.dense() for share, hessian in zip(operator.shares, operator.hessians, strict=True))
    assert torch.allclose(mean, Hessian(problem).dense())


WITH_IGNORED = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1, 0, 2])


def ignoring(weight=None, kept=slice(None)):
    inputs = torch.randn(10, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    loss = nn.CrossEntropyLoss(weight=weight, ignore_index=2)
    return Problem(network("tanh"), loss, (inputs[kept], WITH_IGNORED[kept]))


@pytest.mark.parametrize("name", ["gradient_ratio:batch_size=3", "descent_ratio:batch_size=3"])
@pytest.mark.parametrize("weight", [None, torch.ones(3).double()], ids=["plain", "class weights of one"])
def test_ignored_targets_are_no_samples_with_or_without_class_weights(name, weight):
    truth = one(ignoring(kept=WITH_IGNORED != 2), name)
    found = one(ignoring(weight), name)
    assert "B = 3 of N = 7" in found.note
    assert_exactly(found, float(truth.value))


@pytest.mark.parametrize("size", [1, 3])
def test_batches_are_drawn_among_the_samples_that_count(size):
    truth = float(one(ignoring(), f"gradient_ratio:batch_size={size}").value)
    found = one(ignoring(), f"sampled_gradient_ratio:batch_size={size}:num=400")
    assert_within(found, truth)
    with pytest.raises(ValueError, match="batch_size from 1 to the 7 samples"):
        one(ignoring(), "sampled_gradient_ratio:batch_size=8")
    assert one(ignoring(), f"hessian_variance_bound:lr=0.01:batch_size={size}").value > 0


def test_as_many_tokens_as_samples_are_not_taken_for_one_each():
    """Two samples of two tokens and two of none: four samples, four tokens, but not one for each."""
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3)).double()
    inputs = torch.randn(4, 2, 4, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    targets = torch.tensor([[0, 1], [2, 0], [-100, -100], [-100, -100]])
    forward = lambda model, batch: (model(batch[0]).movedim(-1, 1), batch[1])  # noqa: E731
    tokens = Problem(model, nn.CrossEntropyLoss(), (inputs, targets), forward=forward)
    flat = Problem(model, nn.CrossEntropyLoss(), (inputs[:2].flatten(0, 1), targets[:2].flatten()))
    found = one(tokens, "descent_ratio:num=200:rtol=0.02")
    assert found.source == "random vectors"
    assert_within(found, float(one(flat, "descent_ratio").value))


def test_random_gradients_of_weighted_positions_have_a_sign_for_each():
    model = nn.Linear(4, 3).double()
    inputs = torch.randn(5, 3, 4, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    targets = torch.randint(3, (5, 3), generator=torch.Generator().manual_seed(7))
    loss = nn.CrossEntropyLoss(weight=torch.tensor([0.5, 1.0, 3.0]).double())
    fisher = EmpiricalFisher(
        Problem(model, loss, (inputs, targets), forward=lambda m, batch: (m(batch[0]).movedim(-1, 1), batch[1]))
    )
    stream = torch.Generator().manual_seed(0)
    squares = torch.stack([random_gradient(fisher, stream).square().sum() for _ in range(2000)])
    score = (squares.mean() - fisher.dense().trace()) / (squares.std() / len(squares) ** 0.5)
    assert abs(float(score)) < 4
