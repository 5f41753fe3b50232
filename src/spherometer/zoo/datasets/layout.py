"""Where data sets lie: the usual folders and file names, and the places that are searched."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from spherometer.zoo.datasets import cifar, idx
from spherometer.zoo.datasets.dataset import DataError, MissingDataError
from spherometer.zoo.datasets.images import RawImages, join

ENVIRONMENT_VARIABLE = "SPHEROMETER_DATA"
FASHION_NAMES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)


@dataclass(frozen=True)
class Published:
    """A data set that people have as files: its usual folders, its files, how many images, who reads them."""

    name: str
    folders: tuple[str, ...]
    train_files: tuple[str, ...]
    test_files: tuple[str, ...]
    num_train: int
    num_test: int
    num_classes: int
    read: Callable[[Path], RawImages]
    class_names: tuple[str, ...] = ()

    def files(self, folder: Path, *, train: bool) -> list[Path]:
        """The files of one split that are really there, in order."""
        wanted = self.train_files if train else self.test_files
        found = (first_existing(folder / name, folder / f"{name}.gz") for name in wanted)
        return [path for path in found if path is not None]


def _read_idx(path: Path, *, name: str) -> RawImages:
    return idx.read_idx_images(path, labels_beside(path), name=name)


def labels_beside(images: Path) -> Path:
    """`train-labels-idx1-ubyte` beside `train-images-idx3-ubyte`, gzipped or not, whichever is there."""
    name = images.name.removesuffix(".gz").replace("images", "labels").replace("idx3", "idx1")
    found = first_existing(images.with_name(name), images.with_name(f"{name}.gz"))
    if found is None or found == images:
        raise MissingDataError(f"{images.with_name(name)}: no such file; place the labels there, plain or gzipped")
    return found


def first_existing(*paths: Path) -> Path | None:
    """The first of the paths that is a file."""
    return next((path for path in paths if path.is_file()), None)


_IDX_FILES = (("train-images-idx3-ubyte",), ("t10k-images-idx3-ubyte",), 60_000, 10_000, 10)
_CIFAR10 = (50_000, 10_000, 10)
_CIFAR100 = (50_000, 10_000, 100)

# Several layouts may carry one name; they are tried in this order.
PUBLISHED: tuple[Published, ...] = (
    Published("mnist", ("MNIST/raw", "MNIST", "mnist"), *_IDX_FILES, partial(_read_idx, name="mnist")),
    Published(
        "fashion-mnist",
        ("FashionMNIST/raw", "FashionMNIST", "fashion-mnist", "fashion_mnist"),
        *_IDX_FILES,
        partial(_read_idx, name="fashion-mnist"),
        FASHION_NAMES,
    ),
    Published(
        "cifar10",
        ("cifar-10-batches-py",),
        tuple(f"data_batch_{number}" for number in range(1, 6)),
        ("test_batch",),
        *_CIFAR10,
        partial(cifar.read_cifar_python, num_classes=10),
    ),
    Published(
        "cifar10",
        ("cifar-10-batches-bin",),
        tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
        ("test_batch.bin",),
        *_CIFAR10,
        partial(cifar.read_cifar_binary, num_classes=10),
    ),
    Published(
        "cifar100",
        ("cifar-100-python",),
        ("train",),
        ("test",),
        *_CIFAR100,
        partial(cifar.read_cifar_python, num_classes=100),
    ),
    Published(
        "cifar100",
        ("cifar-100-binary",),
        ("train.bin",),
        ("test.bin",),
        *_CIFAR100,
        partial(cifar.read_cifar_binary, num_classes=100),
    ),
)


def roots(root: Path | None) -> list[Path]:
    """The folders searched: `root` alone when given, else SPHEROMETER_DATA, ./data and the system's share/datasets."""
    if root is not None:
        return [root]
    named = os.environ.get(ENVIRONMENT_VARIABLE)
    prefixes = dict.fromkeys((sys.prefix, sys.base_prefix, "/usr"))  # Debian's dataset-fashion-mnist lies in /usr
    shared = [Path(prefix) / "share" / "datasets" for prefix in prefixes]
    return [*([Path(named)] if named else []), Path("data"), *shared]


def locate(name: str, *, root: Path | None, train: bool) -> tuple[Published, Path]:
    """The first layout and folder that hold files of this split."""
    kinds = [kind for kind in PUBLISHED if kind.name == name]
    for place in roots(root):
        for kind in kinds:
            inside = [place / folder for folder in kind.folders] + ([place] if root is not None else [])
            for folder in inside:
                if kind.files(folder, train=train):
                    return kind, folder
    kind, split = kinds[0], "training" if train else "test"
    wanted = (kind.train_files if train else kind.test_files)[0]
    places = ", ".join(str(place) for place in roots(root)[:2])
    raise MissingDataError(
        f"{name}: no {split} files found in {places}; place {kind.folders[0]}/{wanted} (and the others) there,"
        f" or set {ENVIRONMENT_VARIABLE}"
    )


def recognise(folder: Path, *, train: bool) -> tuple[Published, Path]:
    """The data set that lies in `folder` itself, or the only one below it in the usual layout."""
    direct = [(kind, folder) for kind in PUBLISHED if kind.files(folder, train=train)]
    found = direct or list(_below(folder, train))
    if not found:
        names = ", ".join(dict.fromkeys(kind.name for kind in PUBLISHED))
        raise MissingDataError(f"{folder}: expected the files of one of {names}, found none of them")
    idx_like = "fashion" in str(folder).lower()
    named = [pair for pair in found if pair[0].name == ("fashion-mnist" if idx_like else "mnist")]
    if direct and named:
        return named[0]
    if len({kind.name for kind, _ in found}) > 1:
        names = ", ".join(sorted({kind.name for kind, _ in found}))
        raise DataError(f"{folder}: holds several data sets ({names}); name one and give the folder as root")
    return found[0]


def _below(folder: Path, train: bool) -> Iterator[tuple[Published, Path]]:
    for kind in PUBLISHED:
        for inner in kind.folders:
            if kind.files(folder / inner, train=train):
                yield kind, folder / inner
                break


def read_published(kind: Published, folder: Path, *, train: bool) -> tuple[RawImages, str]:
    """All files of one split, and a note on how complete they are."""
    images = join([kind.read(path) for path in kind.files(folder, train=train)])
    expected = kind.num_train if train else kind.num_test
    split = "training" if train else "test"
    if len(images) < expected:
        return images, f"partial: {len(images):,} of {expected:,} {split} images"
    if len(images) > expected:
        return images, f"not the official set: {len(images):,} {split} images instead of {expected:,}"
    verdict = "official checksums" if images.official else "checksums not those of the official files"
    return images, f"complete: {expected:,} {split} images, {verdict}"
