"""Images as files hold them: bytes and labels, turned into a Dataset only after the subset is chosen."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from spherometer.zoo.datasets.dataset import DataError, Dataset


@dataclass(frozen=True, eq=False)
class RawImages:
    """Pixels as unsigned bytes (n, channels, height, width) and labels (n,): what one file, or several, give."""

    pixels: NDArray[np.uint8]
    labels: NDArray[np.int64]
    official: bool = False  # every file had the checksum of its publisher

    def __len__(self) -> int:
        return len(self.labels)


def join(parts: list[RawImages]) -> RawImages:
    """Several files, one after the other."""
    if len({part.pixels.shape[1:] for part in parts}) > 1:
        raise DataError(f"expected images of one shape, got {sorted({part.pixels.shape[1:] for part in parts})}")
    if len(parts) == 1:
        return parts[0]
    return RawImages(
        np.concatenate([part.pixels for part in parts]),
        np.concatenate([part.labels for part in parts]),
        official=all(part.official for part in parts),
    )


def check_pairing(pixels: NDArray[np.uint8], labels: NDArray[np.int64], num_classes: int, origin: str) -> None:
    """One label per image, at least one image, every label in range."""
    if len(pixels) != len(labels):
        raise DataError(f"{origin}: expected one label per image, got {len(pixels)} images and {len(labels)} labels")
    if pixels.size == 0:
        raise DataError(f"{origin}: expected at least one image, got an array of shape {pixels.shape}")
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= num_classes:
        raise DataError(f"{origin}: expected labels from 0 to {num_classes - 1}, got {low} to {high}")


def as_dataset(
    images: RawImages,
    *,
    name: str,
    num_classes: int,
    num: int | None = None,
    brightest: int = 255,
    class_names: tuple[str, ...] = (),
    note: str = "",
) -> Dataset:
    """The first `num` images as floats in [0, 1]; only these are converted, so a small subset costs little memory."""
    count = len(images)
    if num is not None and not 1 <= num <= count:
        raise DataError(f"{name}: expected num from 1 to {count}, got {num}")
    chosen = slice(0, count if num is None else num)
    remarks = [note] if note else []
    if num is not None and num < count:
        remarks.append(f"first {num:,}")
    return Dataset(
        inputs=torch.from_numpy(images.pixels[chosen].astype(np.float32) / np.float32(brightest)),
        targets=torch.from_numpy(images.labels[chosen].astype(np.int64)),
        num_classes=num_classes,
        name=name,
        class_names=class_names,
        note="; ".join(remarks),
    )
