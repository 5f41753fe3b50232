"""One call from a name or a path to a Dataset."""

from __future__ import annotations

import os
from pathlib import Path

from spherometer.zoo.datasets import cifar
from spherometer.zoo.datasets.archives import read_archive
from spherometer.zoo.datasets.dataset import DataError, Dataset, MissingDataError, UnknownDataError
from spherometer.zoo.datasets.digits import BRIGHTEST, read_digits
from spherometer.zoo.datasets.idx import read_idx_images
from spherometer.zoo.datasets.images import RawImages, as_dataset
from spherometer.zoo.datasets.layout import PUBLISHED, Published, labels_beside, locate, read_published, recognise
from spherometer.zoo.datasets.standardisation import Standardisation, statistics_of
from spherometer.zoo.names import shorten

ALIASES = {
    "fashionmnist": "fashion-mnist",
    "fashion_mnist": "fashion-mnist",
    "cifar-10": "cifar10",
    "cifar-100": "cifar100",
}


def dataset_names() -> tuple[str, ...]:
    """The names that `load_data` knows."""
    return ("digits", *dict.fromkeys(kind.name for kind in PUBLISHED))


def load_data(
    name_or_path: str | Path,
    *,
    root: str | Path | None = None,
    train: bool = True,
    num: int | None = None,
    standardise: str | Standardisation | None = None,
) -> Dataset:
    """A data set by name (`digits`, `mnist`, `fashion-mnist`, `cifar10`, `cifar100`) or by the path of its files.

    Named sets are looked for in `root` when given, else in SPHEROMETER_DATA, ./data and the system's share/datasets, in
    the layout that torchvision uses. Nothing is ever downloaded. `num` keeps the first so many. Inputs are floats in
    [0, 1]; `standardise` is None, "componentwise", "channelwise" (statistics of the whole training split, L35),
    "imagenet", "cifar" or a Standardisation.

    Example:
        >>> load_data("digits", num=100).inputs.shape
        torch.Size([100, 1, 8, 8])
    """
    dataset = _load_plain(name_or_path, root=root, train=train, num=num)
    if standardise is None:
        return dataset
    if isinstance(standardise, str) and standardise in ("componentwise", "channelwise"):
        whole = dataset if train and num is None else _load_plain(name_or_path, root=root, train=True, num=None)
        return statistics_of(whole, standardise)(dataset)
    rule = standardise if isinstance(standardise, Standardisation) else statistics_of(dataset, standardise)
    return rule(dataset)


def _load_plain(name_or_path: str | Path, *, root: str | Path | None, train: bool, num: int | None) -> Dataset:
    try:
        return _dispatch(name_or_path, root=root, train=train, num=num)
    except DataError:
        raise
    except (OSError, ValueError) as error:  # names too long, null bytes, folders without permission
        raise DataError(f"{shorten(name_or_path)!r}: cannot be read ({shorten(error, limit=80)})") from None


def _dispatch(name_or_path: str | Path, *, root: str | Path | None, train: bool, num: int | None) -> Dataset:
    name = ALIASES.get(str(name_or_path).lower(), str(name_or_path).lower())
    if isinstance(name_or_path, str) and name == "digits":
        return _load_digits(train, num)
    if isinstance(name_or_path, str) and name in dataset_names():
        return _load_folder(*locate(name, root=None if root is None else Path(root), train=train), train=train, num=num)
    path = Path(name_or_path) if root is None else Path(root) / name_or_path
    if str(name_or_path) and path.is_dir():
        return _load_folder(*recognise(path, train=train), train=train, num=num)
    if path.is_file():
        return _load_file(path, train=train, num=num)
    if os.sep in str(name_or_path) or path.suffix:
        raise MissingDataError(f"{shorten(path)}: no such file or folder")
    raise UnknownDataError(str(name_or_path), dataset_names())


def _load_digits(train: bool, num: int | None) -> Dataset:
    note = "first 1,437 of 1,797, in file order" if train else "last 360 of 1,797, in file order"
    images = read_digits(train=train)
    names = tuple(str(digit) for digit in range(10))
    return as_dataset(images, name="digits", num_classes=10, num=num, brightest=BRIGHTEST, class_names=names, note=note)


def _load_folder(kind: Published, folder: Path, *, train: bool, num: int | None) -> Dataset:
    images, note = read_published(kind, folder, train=train)
    names = kind.class_names
    if kind.name.startswith("cifar"):
        names = cifar.read_class_names(folder, num_classes=kind.num_classes)
    return as_dataset(images, name=kind.name, num_classes=kind.num_classes, num=num, class_names=names, note=note)


def _load_file(path: Path, *, train: bool, num: int | None) -> Dataset:
    """The kind of a single file is told by its first bytes, not by its name."""
    try:
        with path.open("rb") as stream:
            start = stream.read(4)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({shorten(error)})") from None
    if start[:2] == b"PK" or path.suffix == ".npz":
        return read_archive(path, train=train, num=num)
    if path.suffix != ".bin" and (start[:3] == b"\x00\x00\x08" or start[:2] == b"\x1f\x8b"):
        images = read_idx_images(path, labels_beside(path), num_classes=256)
        return as_dataset(images, name=path.name, num_classes=int(images.labels.max()) + 1, num=num)
    images, num_classes = _read_cifar_file(path, start)
    return as_dataset(images, name=path.name, num_classes=num_classes, num=num)


def _read_cifar_file(path: Path, start: bytes) -> tuple[RawImages, int]:
    pickled = start[:1] == b"\x80" and path.suffix != ".bin"
    if not pickled and path.suffix != ".bin":
        found = start.hex(" ") or "nothing"
        raise DataError(f"{path}: expected an .npz, idx, CIFAR python or CIFAR binary file, got one starting {found}")
    num_classes = 100 if path.stem in ("train", "test") else 10  # the only files of CIFAR-100 are called so
    read = cifar.read_cifar_python if pickled else cifar.read_cifar_binary
    return read(path, num_classes=num_classes), num_classes
