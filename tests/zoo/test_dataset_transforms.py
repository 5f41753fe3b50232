"""Subsets, standardisations, splits and synthetic families."""

import math

import pytest
import torch

from spherometer.zoo import (
    DataError,
    Dataset,
    Standardisation,
    balanced,
    channelwise,
    componentwise,
    coordinate_points,
    first,
    gaussian_clusters,
    given,
    load_data,
    pushforward,
    random_subset,
    rescale_inputs,
    scale_inputs,
    select_classes,
    split,
    uniform_cube,
    uniform_sphere,
)


@pytest.fixture
def images():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.rand(60, 3, 4, 5, generator=generator)
    inputs[:, 0, 0, 0] = 0.25  # a pixel that never changes
    targets = torch.arange(60) % 4
    return Dataset(inputs, targets, 4, "made-up", ("a", "b", "c", "d"))


def test_first_and_random_subsets(images):
    assert torch.equal(first(images, 7).inputs, images.inputs[:7])
    drawn = random_subset(images, 20, seed=3)
    assert torch.equal(drawn.inputs, random_subset(images, 20, seed=3).inputs)
    assert not torch.equal(drawn.inputs, random_subset(images, 20, seed=4).inputs)
    assert len(torch.unique(drawn.inputs.flatten(1), dim=0)) == 20
    assert drawn.note == "random 20 (seed 3)"


def test_balanced_takes_the_first_of_each_class_in_file_order(images):
    chosen = balanced(images, 10)
    assert torch.bincount(chosen.targets).tolist() == [3, 3, 2, 2]
    assert torch.equal(chosen.inputs, images.inputs[:10])
    with pytest.raises(DataError, match="expected 1 of class 4, got 0"):
        balanced(Dataset(images.inputs, images.targets, 5, "gap"), 5)


def test_classes_by_number_and_name_are_relabelled(images):
    chosen = select_classes(images, ["c", 0])
    assert chosen.num_classes == 2
    assert chosen.class_names == ("c", "a")
    assert torch.equal(chosen.inputs[chosen.targets == 0], images.inputs[images.targets == 2])
    assert torch.equal(chosen.inputs[chosen.targets == 1], images.inputs[images.targets == 0])


def test_a_split_is_disjoint_complete_and_repeatable(images):
    left, right = split(images, 45, seed=1)
    assert (len(left), len(right)) == (45, 15)
    together = torch.cat([left.inputs, right.inputs]).flatten(1)
    assert len(torch.unique(together, dim=0)) == 60
    assert torch.equal(right.inputs, split(images, 45, seed=1)[1].inputs)


@pytest.mark.parametrize(
    ("action", "match"),
    [
        (lambda d: first(d, 0), "expected num from 1 to 60, got 0"),
        (lambda d: random_subset(d, 61), "expected num from 1 to 60, got 61"),
        (lambda d: split(d, 60), "expected num from 1 to 59, got 60"),
        (lambda d: select_classes(d, []), "expected different classes, at least one"),
        (lambda d: select_classes(d, [1, 1]), "expected different classes"),
        (lambda d: select_classes(d, [4]), "expected classes from 0 to 3, got 4"),
        (lambda d: select_classes(d, ["aa"]), "no class called 'aa'"),
        (lambda d: scale_inputs(d, math.nan), "finite factor"),
        (lambda d: rescale_inputs(d, 1, 1), "finite low < high"),
        (lambda d: given((0.5,), (0.0,))(d), "positive standard deviations"),
        (lambda d: given((0.5,) * 2, (1.0,) * 2)(d), "do not fit inputs of shape"),
        (lambda d: given((), ()), "one mean and one std per channel"),
        (lambda d: balanced(coordinate_points(), 2), "balanced needs classes"),
        (lambda d: channelwise(coordinate_points()), "channelwise needs .channels, height, width."),
        (lambda d: load_data("digits", standardise="chanelwise"), "did you mean 'channelwise'"),
        (lambda d: Dataset(d.inputs, d.targets[:-1], 4, "odd"), "60 inputs and 59 targets"),
        (lambda d: Dataset(d.inputs[:0], d.targets[:0], 4, "none"), "at least one sample"),
        (lambda d: Dataset(d.inputs, d.targets, 3, "few"), "labels from 0 to 2, got 0 to 3"),
        (lambda d: Dataset(d.inputs, d.targets, 4, "names", ("a",)), "4 class names, got 1"),
    ],
)
def test_wrong_requests_get_one_line(images, action, match):
    with pytest.raises(DataError, match=match) as caught:
        action(images)
    assert "\n" not in str(caught.value)


def test_componentwise_standardises_each_pixel(images):
    result = componentwise(images)(images).inputs
    assert torch.allclose(result.mean(0), torch.zeros(3, 4, 5), atol=1e-5)
    spread = result.var(0, correction=0).sqrt()
    assert spread[0, 0, 0] == 0  # constant: centred only, no division by zero
    spread[0, 0, 0] = 1
    assert torch.allclose(spread, torch.ones(3, 4, 5), atol=1e-4)


def test_channelwise_standardises_each_channel_only(images):
    result = channelwise(images)(images).inputs
    assert torch.allclose(result.mean((0, 2, 3)), torch.zeros(3), atol=1e-5)
    assert torch.allclose(result.var((0, 2, 3), correction=0), torch.ones(3), atol=1e-4)
    assert float(result.mean(0).abs().max()) > 0.05


@pytest.mark.parametrize("rule", [componentwise, channelwise])
def test_streamed_moments_equal_the_direct_ones(rule, monkeypatch):
    from spherometer.zoo.datasets import standardisation

    dataset = load_data("digits")
    direct = rule(dataset)
    monkeypatch.setattr(standardisation, "LARGEST_COPY", 0)
    streamed = rule(dataset)
    assert torch.allclose(direct.mean, streamed.mean)
    assert torch.allclose(direct.std, streamed.std)


def test_statistics_come_from_the_whole_training_split():
    train = load_data("digits")
    rule = componentwise(train)
    assert torch.equal(load_data("digits", num=50, standardise="componentwise").inputs, rule(train).inputs[:50])
    test = load_data("digits", train=False)
    assert torch.equal(load_data("digits", train=False, standardise="componentwise").inputs, rule(test).inputs)


def test_presets_and_explicit_statistics(images):
    rule = Standardisation(torch.tensor(0.5), torch.tensor(2.0))
    assert torch.allclose(rule(images).inputs, (images.inputs - 0.5) / 2)
    preset = given((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))(images).inputs
    assert torch.allclose(preset[:, 1], (images.inputs[:, 1] - 0.456) / 0.224)


def test_input_scaling_and_range(images):
    assert torch.allclose(scale_inputs(images, 1.5).inputs, 1.5 * images.inputs)
    digits = rescale_inputs(load_data("digits"), -1, 1)
    assert (float(digits.inputs.min()), float(digits.inputs.max())) == (-1.0, 1.0)
    assert digits.note.endswith("inputs in [-1, 1]")


def test_synthetic_points_lie_where_they_should():
    cube = uniform_cube(500, 3, seed=1)
    assert (cube.inputs >= 0).all()
    assert (cube.inputs <= 1).all()
    assert torch.allclose(cube.inputs.mean(0), torch.full((3,), 0.5), atol=5 / math.sqrt(12 * 500))
    sphere = uniform_sphere(500, 2, seed=1)
    assert sphere.input_shape == (3,)
    assert torch.allclose(sphere.inputs.norm(dim=1), torch.ones(500))
    assert torch.allclose(sphere.inputs.mean(0), torch.zeros(3), atol=5 / math.sqrt(3 * 500))
    assert torch.equal(uniform_cube(5, 2, seed=3).inputs, uniform_cube(5, 2, seed=3).inputs)


def test_pushforward_checks_the_lipschitz_constant():
    cube = uniform_cube(50, 2)
    assert torch.allclose(pushforward(cube, lambda x: 3 * x, lipschitz=3).inputs, 3 * cube.inputs)
    with pytest.raises(DataError, match="Lipschitz constant 2, got two samples with ratio 3"):
        pushforward(cube, lambda x: 3 * x, lipschitz=2)
    with pytest.raises(DataError, match="not negative"):
        pushforward(cube, lambda x: x, lipschitz=-1)


def test_clusters_and_coordinate_points():
    clusters = gaussian_clusters(300, 5, 3, distance=10, spread=0.1)
    centres = torch.stack([clusters.inputs[clusters.targets == label].mean(0) for label in range(3)])
    assert torch.allclose(centres.norm(dim=1), torch.full((3,), 10.0), atol=0.1)
    points = coordinate_points()
    assert (len(points), points.num_classes, points.is_regression) == (8, 1, True)
    with pytest.raises(DataError, match="expected num of at least 1"):
        coordinate_points(0)


def test_nothing_reads_the_global_generator(images):
    state = torch.random.get_rng_state()
    random_subset(images, 5)
    split(images, 5)
    uniform_cube(5, 2)
    gaussian_clusters(6, 2, 3)
    coordinate_points()
    assert torch.equal(state, torch.random.get_rng_state())
