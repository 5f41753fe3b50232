"""Every format, written small and read back; every kind of damage, refused in one line."""

import gzip
import pickle
import struct

import numpy as np
import pytest
import torch
from file_writers import cifar_binary, cifar_pickle, idx_bytes, random_images, write_idx

from spherometer.zoo import DataError, MissingDataError, dataset_names, load_data
from spherometer.zoo.datasets.idx import read_idx


@pytest.fixture(autouse=True)
def nowhere(monkeypatch, tmp_path):
    """Neither the environment nor the current folder offers data."""
    monkeypatch.delenv("SPHEROMETER_DATA", raising=False)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")


def assert_fails(path, match, **options):
    with pytest.raises(DataError, match=match) as caught:
        load_data(path, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# idx


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize(("name", "folder"), [("mnist", "MNIST/raw"), ("fashion-mnist", "FashionMNIST/raw")])
def test_idx_sets_are_found_in_the_torchvision_layout(tmp_path, name, folder, zipped):
    pixels, labels = write_idx(tmp_path / folder, "train", 30, zipped=zipped)
    write_idx(tmp_path / folder, "t10k", 20, zipped=zipped)
    dataset = load_data(name, root=tmp_path)
    assert dataset.inputs.shape == (30, 1, 28, 28)
    assert torch.allclose(dataset.inputs[:, 0] * 255, torch.from_numpy(pixels).float())
    assert dataset.targets.tolist() == labels.tolist()
    assert dataset.note == "partial: 30 of 60,000 training images"
    assert load_data(name, root=tmp_path, train=False).note == "partial: 20 of 10,000 test images"
    assert bool(dataset.class_names) == (name == "fashion-mnist")


def test_the_environment_variable_then_the_current_folder_are_searched(tmp_path, monkeypatch):
    write_idx(tmp_path / "empty" / "data" / "MNIST" / "raw", "train", 10, zipped=True)
    assert len(load_data("mnist")) == 10
    write_idx(tmp_path / "elsewhere" / "MNIST" / "raw", "train", 20, zipped=False)
    monkeypatch.setenv("SPHEROMETER_DATA", str(tmp_path / "elsewhere"))
    assert len(load_data("mnist")) == 20


def test_an_images_file_finds_its_labels(tmp_path):
    write_idx(tmp_path, "train", 12, zipped=True)
    assert len(load_data(tmp_path / "train-images-idx3-ubyte.gz")) == 12
    (tmp_path / "train-labels-idx1-ubyte.gz").unlink()
    assert_fails(
        tmp_path / "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte: no such file; place the labels there"
    )


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "got an empty file"),
        (b"\x01\x02\x03\x04", "starting 00 00"),
        (b"\x00\x00\x0d\x03", "got type 0d"),
        (b"\x00\x00\x08\x09", "1 to 4 dimensions"),
        (b"\x00\x00\x08\x03\x00\x00", "truncated inside its header"),
        (idx_bytes(random_images(5, (28, 28))[0])[:-1], "truncated: expected 3,920 bytes"),
        (idx_bytes(random_images(5, (28, 28))[0]) + b"x", "got more"),
        (b"\x00\x00\x08\x03" + struct.pack(">3I", 2**32 - 1, 2**32 - 1, 2**32 - 1), "got a shorter file"),
        (gzip.compress(idx_bytes(random_images(5, (28, 28))[0]), mtime=0)[:-30], "cannot be read|truncated"),
        (gzip.compress(b"\x00\x00\x08\x01" + struct.pack(">I", 1000), mtime=0), "truncated: expected 1,000 bytes"),
        (b"\x1f\x8b random", "cannot be read"),
    ],
)
def test_damaged_idx_files(tmp_path, content, match):
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(content)
    with pytest.raises(DataError, match=match):
        read_idx(path)


def test_idx_files_that_do_not_fit_together(tmp_path):
    folder = tmp_path / "MNIST" / "raw"
    write_idx(folder, "train", 10, zipped=False)
    images, labels = folder / "train-images-idx3-ubyte", folder / "train-labels-idx1-ubyte"
    labels.write_bytes(idx_bytes(np.zeros(9)))
    assert_fails("mnist", "10 images and 9 labels", root=tmp_path)
    labels.write_bytes(idx_bytes(np.full(10, 10)))
    assert_fails("mnist", "expected labels from 0 to 9, got 10 to 10", root=tmp_path)
    labels.write_bytes(images.read_bytes())
    assert_fails("mnist", "expected labels .1 dimension.", root=tmp_path)
    images.write_bytes(idx_bytes(np.zeros((0, 28, 28))))
    labels.write_bytes(idx_bytes(np.zeros(0)))
    assert_fails("mnist", "at least one image", root=tmp_path)


# CIFAR


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("fortran", [False, True])
def test_cifar10_python_files_of_every_protocol(tmp_path, protocol, fortran):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for number in (1, 2):
        (folder / f"data_batch_{number}").write_bytes(cifar_pickle(20, protocol=protocol, fortran=fortran))
    dataset = load_data("cifar10", root=tmp_path)
    pixels, labels = random_images(20, (3072,))
    expected = torch.from_numpy(pixels).reshape(20, 3, 32, 32).float()
    assert torch.allclose(dataset.inputs[:20] * 255, expected)
    assert torch.equal(dataset.inputs[:20], dataset.inputs[20:])
    assert dataset.targets[:20].tolist() == labels.tolist()
    assert dataset.note == "partial: 40 of 50,000 training images"
    assert dataset.class_names[3] == "cat"


def test_cifar100_python_files_and_their_names(tmp_path):
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    (folder / "train").write_bytes(cifar_pickle(120, num_classes=100))
    assert load_data("cifar100", root=tmp_path).class_names == ()
    (folder / "meta").write_bytes(
        pickle.dumps({"fine_label_names": [f"thing {label}" for label in range(100)]}, protocol=2)
    )
    dataset = load_data("cifar100", root=tmp_path)
    assert (dataset.num_classes, dataset.class_names[5]) == (100, "thing 5")
    assert dataset.targets[99] == 99


@pytest.mark.parametrize(
    ("name", "folder", "train_file", "num_classes"),
    [("cifar10", "cifar-10-batches-bin", "data_batch_1.bin", 10), ("cifar100", "cifar-100-binary", "train.bin", 100)],
)
def test_cifar_binary_files(tmp_path, name, folder, train_file, num_classes):
    (tmp_path / folder).mkdir()
    (tmp_path / folder / train_file).write_bytes(cifar_binary(110, num_classes=num_classes))
    dataset = load_data(name, root=tmp_path)
    pixels, labels = random_images(110, (3072,), num_classes=num_classes)
    assert torch.allclose(dataset.inputs.flatten(1) * 255, torch.from_numpy(pixels).float())
    assert dataset.targets.tolist() == labels.tolist()
    assert torch.equal(load_data(tmp_path / folder / train_file).inputs, dataset.inputs)
    assert torch.equal(load_data(tmp_path / folder).inputs, dataset.inputs)


class Dangerous:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_a_malicious_cifar_file_is_refused_and_not_run(tmp_path):
    path, trace = tmp_path / "data_batch_1", tmp_path / "trace"
    path.write_bytes(pickle.dumps({"data": Dangerous(trace), "labels": []}, protocol=2))
    message = assert_fails(path, "refused, it asks for the name")
    assert "open" in message
    assert not trace.exists()


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (pickle.dumps([1, 2]), "expected a dictionary, got list"),
        (pickle.dumps({"a": 1}), "expected keys 'data' and 'labels', got a"),
        (pickle.dumps({"data": 3, "labels": [1]}), "array of unsigned bytes, got int"),
        (pickle.dumps({"data": np.zeros((1, 3072)), "labels": [1]}, protocol=4), "array of unsigned bytes, got f8"),
        (
            pickle.dumps({"data": np.zeros((1, 3), np.uint8), "labels": [1]}, protocol=4),
            "expected images of 3072 bytes",
        ),
        (pickle.dumps({"data": np.zeros((1, 3072), np.uint8), "labels": [10]}, protocol=4), "labels from 0 to 9"),
        (pickle.dumps({"data": np.zeros((1, 3072), np.uint8), "labels": [-1]}, protocol=4), "labels from 0 to 9"),
        (pickle.dumps({"data": np.zeros((1, 3072), np.uint8), "labels": ["a"]}, protocol=4), "list of whole numbers"),
        (pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "labels": [1]}, protocol=4), "2 images and 1 labels"),
        (pickle.dumps({"data": np.zeros((0, 3072), np.uint8), "labels": []}, protocol=4), "at least one image"),
        (cifar_pickle(3)[:-100], "expected a CIFAR python file"),
        (b"\x80\x02", "expected a CIFAR python file"),
        (b"\x80\x02}\x86R.", "expected a CIFAR python file|refused"),
    ],
)
def test_damaged_cifar_python_files(tmp_path, content, match):
    (tmp_path / "data_batch_1").write_bytes(content)
    assert_fails(tmp_path / "data_batch_1", match)


@pytest.mark.parametrize(
    ("content", "match"),
    [(b"", "records of 3073"), (cifar_binary(2)[:-1], "records of 3073"), (b"\xff" * 3073, "labels from 0 to 9")],
)
def test_damaged_cifar_binary_files(tmp_path, content, match):
    (tmp_path / "data_batch_1.bin").write_bytes(content)
    assert_fails(tmp_path / "data_batch_1.bin", match)


# npz


@pytest.mark.parametrize(
    "keys", [("inputs", "targets"), ("x", "y"), ("X", "y"), ("images", "labels"), ("data", "target")]
)
def test_npz_under_the_usual_keys(tmp_path, keys):
    inputs, labels = np.linspace(-1, 1, 12).reshape(4, 3), np.array([0, 2, 1, 0])
    np.savez(tmp_path / "own.npz", **dict(zip(keys, (inputs, labels), strict=True)))
    dataset = load_data(tmp_path / "own.npz")
    assert torch.allclose(dataset.inputs, torch.from_numpy(inputs).float())
    assert (dataset.targets.tolist(), dataset.num_classes, dataset.name) == ([0, 2, 1, 0], 3, "own")
    assert len(load_data(str(tmp_path / "own.npz"), num=2)) == 2


def test_npz_images_get_their_channel_first_and_bytes_become_fractions(tmp_path):
    pixels, labels = random_images(5, (8, 6, 3))
    np.savez_compressed(tmp_path / "colour.npz", images=pixels, labels=labels)
    colour = load_data(tmp_path / "colour.npz")
    assert torch.allclose(colour.inputs * 255, torch.from_numpy(pixels).permute(0, 3, 1, 2).float())
    assert colour.note == "bytes divided by 255; channel moved first"
    np.savez(tmp_path / "grey.npz", images=pixels[..., 0], labels=labels)
    assert load_data(tmp_path / "grey.npz").input_shape == (1, 8, 6)


def test_npz_with_float_targets_is_a_regression_and_splits_are_known(tmp_path):
    np.savez(tmp_path / "values.npz", x=np.zeros((3, 2)), y=np.array([[0.5, 1.0]] * 3))
    dataset = load_data(tmp_path / "values.npz")
    assert (dataset.is_regression, dataset.num_classes) == (True, 2)
    split = {"x_train": np.zeros((3, 2)), "y_train": [0, 1, 0], "x_test": np.ones((2, 2)), "y_test": [1, 1]}
    np.savez(tmp_path / "split.npz", **split)
    assert len(load_data(tmp_path / "split.npz")) == 3
    assert float(load_data(tmp_path / "split.npz", train=False).inputs.min()) == 1


@pytest.mark.parametrize(
    ("arrays", "match"),
    [
        ({"a": np.zeros(3)}, "expected keys like inputs and targets.*got a"),
        ({}, "expected keys like .* got none"),
        ({"x": np.zeros((3, 2)), "y": np.zeros(2, int)}, "one target per input"),
        ({"x": np.zeros((0, 2)), "y": np.zeros(0, int)}, "at least one sample"),
        ({"x": np.float64(3), "y": np.zeros(2, int)}, "one target per input"),
        (
            {"x": np.array([[1.0], [np.nan]]), "y": np.zeros(2, int)},
            "finite float32 inputs, got nan or inf, first in sample 1",
        ),
        ({"x": np.array([[1e300]]), "y": np.zeros(1, int)}, "finite float32 inputs"),
        ({"x": np.zeros((1, 2)), "y": np.array([np.inf])}, "finite targets"),
        ({"x": np.zeros((2, 2)), "y": np.array([0, -1])}, "labels from 0 to the number of classes"),
        ({"x": np.zeros((2, 2)), "y": np.array([0, 10**9])}, "labels from 0 to the number of classes"),
        ({"x": np.zeros((2, 2)), "y": np.eye(2, dtype=int)}, "class numbers, not one-hot rows"),
        ({"x": np.array([["a"], ["b"]]), "y": np.zeros(2, int)}, "expected numbers as inputs"),
        ({"x": np.zeros((2, 2), complex), "y": np.zeros(2, int)}, "expected numbers as inputs"),
        ({"x": np.zeros((2, 2)), "y": np.array(["a", "b"])}, "expected numbers as targets"),
        ({"x": np.array([{}, []], dtype=object), "y": np.zeros(2, int)}, "object arrays are pickles"),
    ],
)
def test_unusable_npz_files(tmp_path, arrays, match):
    np.savez(tmp_path / "own.npz", **arrays)
    assert_fails(tmp_path / "own.npz", match)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 not a zip", pickle.dumps({"x": 1}), b"\x93NUMPY"])
def test_files_that_are_no_npz(tmp_path, content):
    (tmp_path / "own.npz").write_bytes(content)
    assert_fails(tmp_path / "own.npz", "expected an .npz archive")


# names and places


def test_a_wrong_name_is_answered_with_the_right_one():
    assert_fails("mnsit", "no data set or file called 'mnsit'; did you mean 'mnist'")
    assert "cifar100" in assert_fails("qqqqqq", "known: ")
    assert dataset_names() == ("digits", "mnist", "fashion-mnist", "cifar10", "cifar100")


@pytest.mark.parametrize("name", ["mnist", "cifar10", "cifar100"])
def test_absent_data_says_what_to_place_where(tmp_path, name):
    with pytest.raises(MissingDataError, match=f"{name}: no training files found in {tmp_path}; place .* there"):
        load_data(name, root=tmp_path)
    with pytest.raises(FileNotFoundError, match="no such file or folder"):
        load_data("nowhere/at-all.npz")


def test_a_folder_is_recognised_and_an_ambiguous_one_is_not(tmp_path):
    write_idx(tmp_path / "MNIST" / "raw", "train", 10, zipped=True)
    assert load_data(tmp_path).name == "mnist"
    (tmp_path / "cifar-10-batches-bin").mkdir()
    (tmp_path / "cifar-10-batches-bin" / "data_batch_1.bin").write_bytes(cifar_binary(1))
    assert_fails(tmp_path, "holds several data sets .cifar10, mnist.; name one and give the folder as root")
    assert load_data(tmp_path / "MNIST" / "raw").name == "mnist"
    write_idx(tmp_path / "fashion", "train", 10, zipped=True)
    assert load_data(tmp_path / "fashion").name == "fashion-mnist"
    (tmp_path / "nothing").mkdir()
    assert_fails(tmp_path / "nothing", "expected the files of one of mnist")


def test_a_text_file_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    assert_fails(
        tmp_path / "notes.txt", "expected an .npz, idx, CIFAR python or CIFAR binary file, got one starting 68 65 6c 6c"
    )
