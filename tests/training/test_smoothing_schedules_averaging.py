"""Label smoothing by hand, schedules point by point, averages as sums, and the recipe of paper D."""

import copy
import math

import pytest
import torch
from optimiser_cases import batch, closure_of, flat, network
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

import spherometer as sm
from reference.agreement import assert_close
from spherometer.training.averaging import IterateAverage, gadam
from spherometer.training.losses import SmoothedCrossEntropy, smooth_labels
from spherometer.training.schedules import (
    constant,
    cosine,
    flat_then_linear,
    multi_step,
    multi_step_by_share,
    step_every,
)


@pytest.mark.parametrize(("alpha", "entropy"), [(0.0, 0.0), (0.5, 1.6769), (0.75, 2.1137)])
def test_the_entropy_is_that_of_the_paper(alpha, entropy):
    outputs, targets = torch.randn(5, 10).double(), torch.arange(5)
    plain = nn.CrossEntropyLoss(label_smoothing=alpha)(outputs, targets)
    assert float(plain - SmoothedCrossEntropy(alpha)(outputs, targets)) == pytest.approx(entropy, abs=5e-5)


def test_smoothed_labels_and_their_distance():
    labels = smooth_labels(torch.eye(4).double(), 0.75)
    assert_close(labels[0], torch.tensor([0.4375, 0.1875, 0.1875, 0.1875]).double())
    assert float((labels[0] - labels[1]).norm()) == pytest.approx(0.25 * math.sqrt(2))


def test_the_loss_is_zero_where_the_model_says_the_smoothed_label():
    targets = torch.tensor([0, 2])
    outputs = smooth_labels(torch.eye(3).double()[targets], 0.3).log() + 5
    assert float(SmoothedCrossEntropy(0.3)(outputs, targets)) == pytest.approx(0.0, abs=1e-12)
    assert float(SmoothedCrossEntropy(0.3)(outputs + torch.eye(3)[:2], targets)) > 0


def test_probabilities_and_positions_as_targets():
    outputs, targets = torch.randn(4, 3, 5).double(), torch.randint(3, (4, 5))
    one_hot = nn.functional.one_hot(targets, 3).movedim(-1, 1).double()
    loss = SmoothedCrossEntropy(0.2)
    assert_close(loss(outputs, one_hot), loss(outputs, targets))
    kl = nn.functional.kl_div(outputs.log_softmax(1), smooth_labels(one_hot, 0.2), reduction="sum") / 20
    assert_close(loss(outputs, targets), kl)


def test_it_can_be_measured_and_has_the_curvature_of_label_smoothing():
    model, data = network(), batch()
    problems = [
        sm.Problem(model, loss, data) for loss in (SmoothedCrossEntropy(0.3), nn.CrossEntropyLoss(label_smoothing=0.3))
    ]
    vector = torch.randn(flat(model.parameters()).numel(), dtype=torch.float64)
    assert_close(sm.Hessian(problems[0]) @ vector, sm.Hessian(problems[1]) @ vector)
    assert_close(sm.GaussNewton(problems[0]) @ vector, sm.GaussNewton(problems[1]) @ vector)


@pytest.mark.parametrize("alpha", [-0.1, 1.1, float("nan")])
def test_impossible_smoothing(alpha):
    with pytest.raises(ValueError, match="between 0 and 1"):
        SmoothedCrossEntropy(alpha)


@pytest.mark.parametrize(
    ("schedule", "points"),
    [
        (constant(), {0: 1, 1000: 1}),
        (flat_then_linear(300), {0: 1, 150: 1, 180: 0.7525, 210: 0.505, 270: 0.01, 271: 0.01, 300: 0.01, 400: 0.01}),
        (flat_then_linear(160, final=0.5), {0: 1, 80: 1, 112: 0.75, 144: 0.5, 160: 0.5, 300: 0.5}),
        (multi_step([50, 80], 0.1), {0: 1, 49: 1, 50: 0.1, 79: 0.1, 80: 0.01, 89: 0.01}),
        (multi_step([100, 105], 0.1), {99: 1, 100: 0.1, 104: 0.1, 105: 0.01, 109: 0.01}),
        (step_every(30, 0.1), {0: 1, 29: 1, 30: 0.1, 59: 0.1, 60: 0.01, 89: 0.01}),
        (
            multi_step_by_share(400, [0.3, 0.6, 0.8], 0.2),
            {119: 1, 120: 0.2, 240: 0.04, 319: 0.04, 320: 0.008, 399: 0.008},
        ),
        (
            multi_step_by_share(50000 // 128 * 400, [0.3, 0.6, 0.8], 0.2),
            {46799: 1, 46800: 0.2, 93600: 0.04, 124800: 0.008},
        ),
        (cosine(200), {0: 1, 50: 0.5 + math.sqrt(0.125), 100: 0.5, 200: 0, 250: 0}),
    ],
)
def test_schedules_point_by_point(schedule, points):
    for t, factor in points.items():
        assert schedule(t) == pytest.approx(factor, abs=1e-12), t


def test_a_schedule_drives_an_optimiser():
    model = network()
    optimizer = sm.optim.SAM(model.parameters(), torch.optim.SGD, lr=0.2)
    schedule = LambdaLR(optimizer, multi_step([2, 3], 0.5))
    rates = []
    for _ in range(4):
        rates.append(optimizer.base.param_groups[0]["lr"])
        optimizer.step(closure_of(optimizer, model, [batch()]))
        schedule.step()
    assert rates == pytest.approx([0.2, 0.2, 0.1, 0.05])


@pytest.mark.parametrize(
    "build",
    [
        lambda: flat_then_linear(0),
        lambda: flat_then_linear(10, final=1.5),
        lambda: multi_step([5, 3], 0.1),
        lambda: multi_step([5], 0.0),
        lambda: step_every(0, 0.1),
        lambda: cosine(-1),
        lambda: multi_step_by_share(0, [0.5], 0.1),
    ],
)
def test_impossible_schedules(build):
    with pytest.raises(ValueError, match="expected"):
        build()


def test_the_average_is_the_mean_from_the_start_on():
    model = network(batchnorm=True)
    average, seen = IterateAverage(model, start=2), []
    for t in range(6):
        for weight in model.parameters():
            weight.data.add_(0.1 * (t + 1))
        average.update(t)
        seen.append(flat(model.parameters()))
        if t == 3:
            saved = copy.deepcopy(average.state_dict())
            resumed = IterateAverage(model, start=2)
            resumed.load_state_dict(saved)
        elif t > 3:
            resumed.update(t)
    data = batch(20)[0]
    finished = average.finished([data[:10], data[10:]])
    assert_close(flat(finished.parameters()), torch.stack(seen[2:]).mean(0))
    assert_close(flat(resumed.averaged.parameters()), flat(finished.parameters()))
    hidden = finished[0](data).detach()
    assert_close(finished[1].running_mean, hidden.mean(0))
    assert_close(flat(model.parameters()), seen[-1])


def test_an_empty_average_is_refused():
    average = IterateAverage(network(), start=5)
    average.update(4)
    with pytest.raises(RuntimeError, match=r"never called with t of at least 5"):
        average.finished([])
    with pytest.raises(ValueError, match="start of at least 0"):
        IterateAverage(network(), start=-1)


def test_gadam_is_adam_with_decoupled_decay_a_schedule_and_an_average():
    model, twin, data = network(), network(), batch()
    recipe = gadam(model, learning_rate=0.01, weight_decay=0.25, average_from=4)
    plain = torch.optim.AdamW(twin.parameters(), lr=0.01, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.25)
    kept = []
    for epoch, factor in enumerate([1.0, 1.0, 1.0, 1 - 0.5 * 0.25 / 0.4, 0.5, 0.5]):
        plain.param_groups[0]["lr"] = 0.01 * factor
        assert recipe.optimizer.param_groups[0]["lr"] == pytest.approx(0.01 * factor)
        for network_, optimizer in ((model, recipe.optimizer), (twin, plain)):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network_(data[0]), data[1]).backward()
            optimizer.step()
        recipe.schedule.step()
        recipe.average.update(epoch)
        kept.append(flat(twin.parameters()))
    assert_close(flat(model.parameters()), kept[-1])
    assert_close(flat(recipe.average.finished([]).parameters()), (kept[4] + kept[5]) / 2)


@pytest.mark.parametrize("seed", range(5))
def test_a_smoothed_loss_near_zero_may_still_be_cut(seed):
    """It is the difference of logarithms of size one: their rounding is not taken for samples that see each other."""
    labels, model = torch.arange(8), nn.Linear(10, 10, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.eye(10))
    targets = smooth_labels(nn.functional.one_hot(labels, 10).float(), 0.75)
    noise = 0.01 * torch.randn(8, 10, generator=torch.Generator().manual_seed(seed))
    problem = sm.Problem(model, SmoothedCrossEntropy(0.75), (targets.log() + noise, labels))
    assert float(problem.loss_at()) < 1e-4
    assert problem.splittable
