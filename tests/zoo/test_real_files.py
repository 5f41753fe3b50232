"""The published files, when SPHEROMETER_DATA has them."""

import os

import pytest
import torch

from spherometer.zoo import MissingDataError, load_data


def load(name, **options):
    root = os.environ.get("SPHEROMETER_DATA")
    if root is None:
        pytest.skip("SPHEROMETER_DATA is not set")
    try:
        return load_data(name, root=root, **options)
    except MissingDataError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(("name", "first"), [("mnist", [5, 0, 4, 1, 9]), ("fashion-mnist", [9, 0, 0, 3, 0])])
def test_whole_idx_sets(name, first):
    for train, size, split in ((True, 60_000, "training"), (False, 10_000, "test")):
        dataset = load(name, train=train)
        assert len(dataset) == size
        assert dataset.note == f"complete: {size:,} {split} images, official checksums"
    assert load(name, num=5).targets.tolist() == first


def test_cifar10():
    test, train = load("cifar10", train=False), load("cifar10", num=100)
    assert test.note == "complete: 10,000 test images, official checksums"
    assert torch.bincount(test.targets).tolist() == [1000] * 10
    assert train.targets[:5].tolist() == [6, 9, 9, 4, 1]  # frog, truck, truck, deer, automobile
    assert train.inputs.shape == (100, 3, 32, 32)


def test_cifar100():
    dataset = load("cifar100", num=200)
    assert dataset.class_names[19] == "cattle"
    assert dataset.targets[0] == 19
