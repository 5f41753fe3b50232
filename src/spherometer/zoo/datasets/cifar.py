"""CIFAR-10 and CIFAR-100, python and binary files.  A. Krizhevsky, Learning multiple layers of features (2009)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spherometer.zoo.datasets.checksums import OFFICIAL_CIFAR, md5
from spherometer.zoo.datasets.dataset import DataError, MissingDataError
from spherometer.zoo.datasets.images import RawImages, check_pairing
from spherometer.zoo.datasets.pickles import as_byte_array, as_names, read_plain_pickle
from spherometer.zoo.names import shorten

NUM_PIXELS = 3 * 32 * 32
CLASS_NAMES_10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def read_cifar_python(path: Path, *, num_classes: int = 10) -> RawImages:
    """One batch file such as `data_batch_1` or `train`; a pickle, read without running it."""
    content = _read_bytes(path)
    batch = read_plain_pickle(content, str(path))
    key = "labels" if num_classes == 10 else "fine_labels"
    if "data" not in batch or key not in batch:
        other = 100 if num_classes == 10 else 10
        raise DataError(
            f"{path}: expected keys 'data' and '{key}', got {shorten(', '.join(sorted(batch)) or 'none', limit=80)};"
            f" is it CIFAR-{other}, or a meta file?"
        )
    pixels, labels = as_byte_array(batch["data"], str(path)), _as_labels(batch[key], str(path))
    if pixels.ndim != 2 or pixels.shape[1] != NUM_PIXELS:
        raise DataError(f"{path}: expected images of {NUM_PIXELS} bytes, got an array of shape {pixels.shape}")
    check_pairing(pixels, labels, num_classes, str(path))
    return RawImages(pixels.reshape(-1, 3, 32, 32), labels, official=md5(content) in OFFICIAL_CIFAR)


def read_cifar_binary(path: Path, *, num_classes: int = 10) -> RawImages:
    """One binary file: records of one label byte (CIFAR-10) or two (CIFAR-100: coarse, fine), then 3,072 pixels."""
    content = np.frombuffer(_read_bytes(path), dtype=np.uint8)
    num_labels = 1 if num_classes == 10 else 2
    record = num_labels + NUM_PIXELS
    if content.size == 0 or content.size % record:
        raise DataError(f"{path}: expected records of {record} bytes, got {content.size:,} in all; truncated?")
    records = content.reshape(-1, record)
    labels = records[:, num_labels - 1].astype(np.int64)
    pixels = np.ascontiguousarray(records[:, num_labels:]).reshape(-1, 3, 32, 32)
    check_pairing(pixels, labels, num_classes, str(path))
    return RawImages(pixels, labels)


def read_class_names(folder: Path, *, num_classes: int) -> tuple[str, ...]:
    """Class names: known for CIFAR-10, read from the `meta` file for CIFAR-100 (empty when there is none)."""
    if num_classes == 10:
        return CLASS_NAMES_10
    names: tuple[str, ...] = ()
    if (folder / "meta").is_file():
        meta = folder / "meta"
        names = as_names(read_plain_pickle(_read_bytes(meta), str(meta)).get("fine_label_names"))
    elif (folder / "fine_label_names.txt").is_file():
        names = tuple((folder / "fine_label_names.txt").read_text(errors="replace").split())
    return names if len(names) == num_classes else ()


def _as_labels(found: Any, origin: str) -> NDArray[np.int64]:
    if not isinstance(found, list) or not all(type(label) is int and abs(label) < 2**31 for label in found):
        raise DataError(f"{origin}: expected the labels to be a list of whole numbers, got something else")
    return np.array(found, dtype=np.int64)


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise MissingDataError(f"{path}: no such file; place the CIFAR file there") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({shorten(error)})") from None
