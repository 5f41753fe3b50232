"""Mixup and augmentation: what they do to a batch, and in which proportions."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from reference.agreement import assert_close, assert_unbiased
from spherometer.training.transforms import CropAndFlip, Mixup, symmetric_beta


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("beta", [1e-4, 0.05, 0.2, 1.0, 5.0])
def test_beta_draws_have_their_moments(beta):
    """Mean ½, variance 1/(4(2β+1)), fourth central moment 3/(16(2β+1)(2β+3))."""
    draws = symmetric_beta(beta, 20000, seeded())
    assert bool(((draws >= 0) & (draws <= 1)).all())
    centred = draws - 0.5
    assert_unbiased(draws, torch.tensor(0.5).double())
    assert_unbiased(centred.square(), torch.tensor(1 / (4 * (2 * beta + 1))).double())
    assert_unbiased(centred**4, torch.tensor(3 / (16 * (2 * beta + 1) * (2 * beta + 3))).double())


def test_beta_of_one_is_uniform_and_of_zero_a_coin():
    draws = symmetric_beta(1.0, 20000, seeded(1))
    for cut in (0.1, 0.35, 0.8):
        assert_unbiased((draws < cut).double(), torch.tensor(cut).double())
    coins = symmetric_beta(0.0, 20000, seeded(1))
    assert set(coins.tolist()) == {0.0, 1.0}
    assert_unbiased(coins, torch.tensor(0.5).double())


@pytest.mark.parametrize("per", ["batch", "sample"])
@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
def test_mixup_mixes_inputs_and_targets_alike(beta, per):
    """The inputs are one-hot vectors of the targets here: what happens to one must happen to the other."""
    targets = torch.arange(6)
    inputs = functional.one_hot(targets, 6).double()
    mixed, labels = Mixup(beta, num_classes=6, per=per)(inputs, targets, seeded(3))
    assert_close(mixed, labels)
    assert_close(labels.sum(1), torch.ones(6).double())
    assert int((labels > 0).sum(1).max()) <= 2
    if per == "batch":
        assert_close(labels.sum(0), torch.ones(6).double())
    if beta == 0.0:
        assert set(labels.unique().tolist()) == {0.0, 1.0}
    assert mixed.shape == inputs.shape


def test_mixup_draws_partners_from_the_whole_batch():
    """θ = share of the partner; over many batches every other sample is the partner equally often."""
    inputs = torch.eye(4).double()
    generator = seeded(0)
    mixed = torch.stack([Mixup(1.0)(inputs, inputs, generator)[1] for _ in range(3000)])
    assert_unbiased(mixed, torch.full((4, 4), 1 / 8).double() + torch.eye(4).double() / 2)


def test_shares_are_per_batch_or_per_sample():
    inputs = torch.randn(50, 1, generator=seeded(), dtype=torch.float64)
    for per, num in (("batch", 1), ("sample", 50)):
        generator = seeded(5)
        mixed, _ = Mixup(1.0, per=per)(inputs, inputs, generator)
        partners = inputs[torch.randperm(50, generator=seeded(5))]
        moved = (partners != inputs).flatten()
        shares = ((mixed - inputs) / (partners - inputs)).flatten()[moved]
        assert len(torch.unique(shares.round(decimals=8))) == min(num, int(moved.sum()))


def test_mixup_of_images_and_other_targets():
    images, values = torch.rand(5, 3, 4, 4, generator=seeded()), torch.rand(5, 2, generator=seeded(1))
    mixed, targets = Mixup(0.5, per="sample")(images, values, seeded(2))
    assert mixed.shape == images.shape
    assert targets.shape == values.shape
    assert bool((mixed <= images.max()).all())


def test_mixup_and_the_loss():
    """Cross-entropy is linear in the label, so the mixed loss is the mixture of losses."""
    model, generator = nn.Linear(4, 3).double(), seeded(4)
    inputs = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    targets = torch.randint(3, (6,), generator=generator)
    mixed, labels = Mixup(1.0, num_classes=3)(inputs, targets, seeded(9))
    partners = torch.randperm(6, generator=seeded(9))
    share = float(((labels - functional.one_hot(targets, 3)).abs().sum(1) / 2).max())
    outputs = model(mixed)
    expected = (1 - share) * functional.cross_entropy(outputs, targets)
    expected += share * functional.cross_entropy(outputs, targets[partners])
    assert_close(functional.cross_entropy(outputs, labels).detach(), expected.detach())


def test_mixup_refuses_what_it_cannot_do():
    with pytest.raises(ValueError, match="beta of at least 0"):
        Mixup(-0.1)
    with pytest.raises(ValueError, match="per='batch'"):
        Mixup(1.0, per="pixel")
    with pytest.raises(ValueError, match="num_classes=10"):
        Mixup(1.0)(torch.ones(2, 3), torch.tensor([0, 1]), seeded())


def crop_by_hand(image, down, right, mirrored, padding):
    padded = functional.pad(image, [padding] * 4)
    height, width = image.shape[1:]
    crop = padded[:, down : down + height, right : right + width]
    return crop.flip(2) if mirrored else crop


def test_every_augmented_image_is_a_crop_or_its_mirror_image():
    images = torch.rand(300, 2, 5, 6, generator=seeded())
    augmented, targets = CropAndFlip(padding=1)(images, torch.arange(300), seeded(1))
    assert torch.equal(targets, torch.arange(300))
    counts = {}
    for image, result in zip(images, augmented, strict=True):
        possible = [(down, right, m) for down in range(3) for right in range(3) for m in (False, True)]
        matching = [draw for draw in possible if torch.equal(result, crop_by_hand(image, *draw, padding=1))]
        assert len(matching) == 1
        counts[matching[0]] = counts.get(matching[0], 0) + 1
    assert len(counts) == 18
    chi_square = sum((counts[draw] - 300 / 18) ** 2 / (300 / 18) for draw in counts)
    assert chi_square < 17 + 4 * 34**0.5  # 17 degrees of freedom


@pytest.mark.parametrize("probability", [0.0, 0.3, 1.0])
def test_each_sample_is_augmented_with_its_own_probability(probability):
    images = torch.rand(4000, 1, 3, 3, generator=seeded())
    augmented, _ = CropAndFlip(probability, padding=2)(images, images, seeded(2))
    same = (augmented == images).flatten(1).all(1).double()
    untouched = 1 - probability + probability / 50  # 25 places, mirrored or not: one of 50 is the identity
    if probability == 0:
        assert torch.equal(augmented, images)
    else:
        assert_unbiased(same, torch.tensor(untouched).double())


def test_augmentation_is_reproducible_and_leaves_the_batch_alone():
    images = torch.rand(7, 3, 8, 8, generator=seeded())
    before, state = images.clone(), torch.get_rng_state()
    one, two = (CropAndFlip()(images, images, seeded(5))[0] for _ in range(2))
    assert torch.equal(one, two)
    assert torch.equal(images, before)
    assert torch.equal(torch.get_rng_state(), state)
    assert one.is_contiguous()


def test_augmentation_refuses_what_it_cannot_do():
    with pytest.raises(ValueError, match="probability between 0 and 1"):
        CropAndFlip(1.5)
    with pytest.raises(ValueError, match="padding of at least 0"):
        CropAndFlip(padding=-1)
    with pytest.raises(ValueError, match=r"images \(n, channels, height, width\), got shape \(5, 4\)"):
        CropAndFlip()(torch.ones(5, 4), torch.ones(5), seeded())
