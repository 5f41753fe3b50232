"""Small files of every format, written the way their publishers do."""

from __future__ import annotations

import gzip
import pickle
import struct
from pathlib import Path

import numpy as np


def random_images(num: int, shape: tuple[int, ...], *, num_classes: int = 10) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 256, size=(num, *shape), dtype=np.uint8)
    return pixels, np.arange(num, dtype=np.uint8) % num_classes


def idx_bytes(array: np.ndarray) -> bytes:
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(np.uint8).tobytes()


def write_idx(folder: Path, prefix: str, num: int, *, zipped: bool) -> tuple[np.ndarray, np.ndarray]:
    pixels, labels = random_images(num, (28, 28))
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in ((f"{prefix}-images-idx3-ubyte", pixels), (f"{prefix}-labels-idx1-ubyte", labels)):
        content = idx_bytes(array)
        if zipped:
            (folder / f"{name}.gz").write_bytes(gzip.compress(content))
        else:
            (folder / name).write_bytes(content)
    return pixels, labels


def cifar_pickle(num: int, *, num_classes: int = 10, protocol: int = 2, fortran: bool = False) -> bytes:
    pixels, labels = random_images(num, (3072,), num_classes=num_classes)
    data = np.asfortranarray(pixels) if fortran else pixels
    marks = [int(label) for label in labels]
    if num_classes == 10:
        batch = {
            b"batch_label": b"training batch 1 of 5",
            b"labels": marks,
            b"data": data,
            b"filenames": [b"a.png"] * num,
        }
    else:
        batch = {"fine_labels": marks, "coarse_labels": [0] * num, "data": data, "filenames": ["a.png"] * num}
    return pickle.dumps(batch, protocol=protocol)


def cifar_binary(num: int, *, num_classes: int = 10) -> bytes:
    pixels, labels = random_images(num, (3072,), num_classes=num_classes)
    coarse = [] if num_classes == 10 else [np.zeros((num, 1), dtype=np.uint8)]
    return np.concatenate([*coarse, labels[:, None], pixels], axis=1).tobytes()
