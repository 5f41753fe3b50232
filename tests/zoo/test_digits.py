from importlib.resources import files

import pytest
import torch

from spherometer.zoo import DataError, load_data
from spherometer.zoo.datasets.digits import read_digits


def test_the_digits_are_the_1797_of_scikit_learn():
    images = read_digits()
    assert images.pixels.shape == (1797, 1, 8, 8)
    assert images.pixels.max() == 16
    assert images.pixels[0, 0, 0].tolist() == [0, 0, 5, 13, 9, 1, 0, 0]  # first line of digits.csv
    assert images.labels[:12].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    assert images.pixels.sum() == 561718
    assert [int((images.labels == label).sum()) for label in range(10)] == [
        *(178, 182, 177, 183, 181),
        *(182, 181, 179, 174, 180),
    ]


def test_training_and_test_digits_are_disjoint_and_complete():
    train, test = load_data("digits"), load_data("digits", train=False)
    assert (len(train), len(test)) == (1437, 360)
    assert torch.equal(torch.cat([train.inputs, test.inputs]) * 16, torch.from_numpy(read_digits().pixels).float())
    assert train.inputs.dtype == torch.float32
    assert train.targets.dtype == torch.long
    assert (float(train.inputs.min()), float(train.inputs.max())) == (0.0, 1.0)
    assert (train.num_classes, train.input_shape, train.class_names[7]) == (10, (1, 8, 8), "7")


def test_num_keeps_the_first_and_says_so():
    dataset = load_data("digits", num=100)
    assert torch.equal(dataset.inputs, load_data("digits").inputs[:100])
    assert "first 100" in dataset.note
    assert "first 100" in repr(dataset)


@pytest.mark.parametrize("num", [0, -1, 1438])
def test_num_out_of_range_is_refused(num):
    with pytest.raises(DataError, match=f"digits: expected num from 1 to 1437, got {num}"):
        load_data("digits", num=num)


def test_the_attribution_lies_beside_the_data():
    text = (files("spherometer.zoo.datasets") / "digits.txt").read_text()
    assert "Alpaydin" in text
    assert "Kaynak" in text
    assert "CC BY 4.0" in text
