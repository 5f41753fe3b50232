"""NumPy archives (.npz): the way to bring one's own data.  Never with pickles inside."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spherometer.zoo.datasets.dataset import DataError, Dataset, MissingDataError
from spherometer.zoo.names import shorten

PAIRS = (
    ("inputs", "targets"),
    ("x", "y"),
    ("X", "y"),
    ("images", "labels"),
    ("data", "targets"),
    ("data", "labels"),
    ("data", "target"),
)
SPLIT_PAIRS = {True: ("x_train", "y_train"), False: ("x_test", "y_test")}
MOST_CLASSES = 100_000  # more is a damaged or mistaken label column, not a classification


def read_archive(path: Path, *, train: bool = True, num: int | None = None) -> Dataset:
    """Inputs and targets of an .npz file, under one of the usual pairs of keys.

    Unsigned bytes are pixels and come out in [0, 1]; floats stay as they are. Whole-number targets are classes, float
    targets values. Images without a channel, or with the channel last, get it first.
    """
    inputs, targets = _read_pair(path, train)
    if len(inputs.shape) == 0 or len(targets.shape) == 0 or len(inputs) != len(targets):
        raise DataError(f"{path}: expected one target per input, got shapes {inputs.shape} and {targets.shape}")
    if inputs.size == 0 or targets.size == 0:
        raise DataError(f"{path}: expected at least one sample, got shapes {inputs.shape} and {targets.shape}")
    if num is not None and not 1 <= num <= len(inputs):
        raise DataError(f"{path}: expected num from 1 to {len(inputs)}, got {num}")
    note = "" if num is None or num == len(inputs) else f"first {num:,}"
    values, remark = _as_inputs(inputs[:num], path)
    answers, num_classes = _as_targets(targets, path)
    return Dataset(values, answers[:num], num_classes, path.stem, note="; ".join(filter(None, (note, remark))))


def _read_pair(path: Path, train: bool) -> tuple[NDArray[Any], NDArray[Any]]:
    if not path.is_file():
        raise MissingDataError(f"{path}: no such file")
    if not zipfile.is_zipfile(path):
        raise DataError(f"{path}: expected an .npz archive, got another format or a damaged file; use numpy.savez")
    try:
        with np.load(path, allow_pickle=False) as archive:
            first, second = _choose_keys(set(archive.files), path, train)
            return np.asanyarray(archive[first]), np.asanyarray(archive[second])
    except DataError:
        raise
    except Exception as error:  # zip, zlib, numpy and its header parser each have their own ways to fail
        pickled = "allow_pickle" in str(error)
        reason = "object arrays are pickles" if pickled else shorten(str(error) or type(error).__name__, limit=80)
        raise DataError(f"{path}: expected plain arrays, got a refusal ({reason}); save it again as numbers") from None


def _choose_keys(keys: set[str], path: Path, train: bool) -> tuple[str, str]:
    for pair in (SPLIT_PAIRS[train], *PAIRS):
        if keys.issuperset(pair):
            return pair
    found = shorten(", ".join(sorted(keys)) or "none", limit=80)
    raise DataError(f"{path}: expected keys like inputs and targets, x and y, or images and labels, got {found}")


def _as_inputs(inputs: NDArray[Any], path: Path) -> tuple[Tensor, str]:
    remarks = []
    if inputs.dtype == np.uint8:
        inputs = inputs.astype(np.float32) / np.float32(255)
        remarks.append("bytes divided by 255")
    elif inputs.dtype.kind not in "fiub":
        raise DataError(f"{path}: expected numbers as inputs, got {inputs.dtype}")
    with np.errstate(over="ignore"):  # a float64 beyond float32 becomes inf, and is refused below
        inputs = inputs.astype(np.float32)
    if not np.isfinite(inputs).all():
        bad = int((~np.isfinite(inputs)).reshape(len(inputs), -1).any(axis=1).argmax())
        raise DataError(f"{path}: expected finite float32 inputs, got nan or inf, first in sample {bad}")
    if inputs.ndim == 4 and inputs.shape[3] in (1, 3) and inputs.shape[1] not in (1, 3):
        inputs = inputs.transpose(0, 3, 1, 2)
        remarks.append("channel moved first")
    elif inputs.ndim == 3:
        inputs = inputs[:, None]
        remarks.append("channel added")
    return torch.from_numpy(np.ascontiguousarray(inputs)), "; ".join(remarks)


def _as_targets(targets: NDArray[Any], path: Path) -> tuple[Tensor, int]:
    if targets.dtype.kind == "f":
        return _as_values(targets, path)
    if targets.dtype.kind not in "iub":
        raise DataError(f"{path}: expected numbers as targets, got {targets.dtype}")
    if targets.ndim == 2 and targets.shape[1] == 1:
        targets = targets[:, 0]
    if targets.ndim != 1:
        raise DataError(f"{path}: expected a vector of labels, got {targets.shape}; class numbers, not one-hot rows")
    low, high = int(targets.min()), int(targets.max())
    if low < 0 or high >= MOST_CLASSES:
        raise DataError(f"{path}: expected labels from 0 to the number of classes - 1, got {low} to {high}")
    return torch.from_numpy(targets.astype(np.int64)), high + 1


def _as_values(targets: NDArray[Any], path: Path) -> tuple[Tensor, int]:
    with np.errstate(over="ignore"):
        values = targets.reshape(len(targets), -1).astype(np.float32)
    if not np.isfinite(values).all():
        raise DataError(f"{path}: expected finite targets, got nan or inf")
    return torch.from_numpy(values), values.shape[1]
