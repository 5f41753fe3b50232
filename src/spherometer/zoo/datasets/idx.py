"""The idx format of MNIST and its relatives, plain or gzipped.  Y. LeCun, C. Cortes, C. Burges (1998)."""

from __future__ import annotations

import gzip
import struct
import zlib
from math import prod
from pathlib import Path
from typing import IO, cast

import numpy as np
from numpy.typing import NDArray

from spherometer.zoo.datasets.checksums import OFFICIAL_IDX, md5
from spherometer.zoo.datasets.dataset import DataError, MissingDataError
from spherometer.zoo.datasets.images import RawImages, check_pairing
from spherometer.zoo.names import shorten

UNSIGNED_BYTE = 0x08
LARGEST_GZIP_RATIO = 1032  # deflate cannot shrink by more, so a larger claim is a damaged header


def read_idx(path: Path) -> NDArray[np.uint8]:
    """The unsigned bytes of an idx or idx.gz file: exactly as many as its header announces."""
    return _parse(path)[0]


def read_idx_images(images: Path, labels: Path, *, name: str = "", num_classes: int = 10) -> RawImages:
    """An images file and its labels file; `name` picks the official checksums (taken after decompression)."""
    pixels, image_header = _parse(images)
    marks, label_header = _parse(labels)
    if pixels.ndim != 3:
        raise DataError(f"{images}: expected images (3 dimensions), got {pixels.ndim}; is it a labels file?")
    if marks.ndim != 1:
        raise DataError(f"{labels}: expected labels (1 dimension), got {marks.ndim}; is it an images file?")
    numbers = marks.astype(np.int64)
    check_pairing(pixels, numbers, num_classes, str(images))
    official = OFFICIAL_IDX.get(name, frozenset())
    matches = {md5(image_header, pixels), md5(label_header, marks)} <= official
    return RawImages(pixels[:, None], numbers, official=bool(official) and matches)


def _parse(path: Path) -> tuple[NDArray[np.uint8], bytes]:
    try:
        with path.open("rb") as stream:
            zipped = stream.read(2) == b"\x1f\x8b"
        room = path.stat().st_size * (LARGEST_GZIP_RATIO if zipped else 1)
        with gzip.open(path) if zipped else path.open("rb") as stream:
            return _parse_stream(cast(IO[bytes], stream), room, path)
    except FileNotFoundError:
        raise MissingDataError(f"{path}: no such file; place the idx file there, plain or gzipped") from None
    except (OSError, EOFError, MemoryError, zlib.error) as error:  # gzip.BadGzipFile is an OSError
        raise DataError(f"{path}: cannot be read ({shorten(error)}); fetch the file again") from None


def _parse_stream(stream: IO[bytes], room: int, path: Path) -> tuple[NDArray[np.uint8], bytes]:
    magic = stream.read(4)
    if len(magic) < 4 or magic[:2] != b"\x00\x00":
        raise DataError(f"{path}: expected an idx file (starting 00 00), got {magic.hex(' ') or 'an empty file'}")
    kind, num_dimensions = magic[2], magic[3]
    if kind != UNSIGNED_BYTE or not 1 <= num_dimensions <= 4:
        raise DataError(
            f"{path}: expected unsigned bytes (type 08) in 1 to 4 dimensions, got type {kind:02x} in {num_dimensions}"
        )
    sizes = stream.read(4 * num_dimensions)
    if len(sizes) < 4 * num_dimensions:
        raise DataError(f"{path}: truncated inside its header; fetch the file again")
    shape = struct.unpack(f">{num_dimensions}I", sizes)
    expected = prod(shape)
    if expected > room:
        raise DataError(f"{path}: expected {expected:,} bytes for shape {shape}, got a shorter file; fetch it again")
    content = stream.read(expected)
    if len(content) < expected:
        raise DataError(f"{path}: truncated: expected {expected:,} bytes for shape {shape}, got {len(content):,}")
    if stream.read(1):
        raise DataError(f"{path}: expected {expected:,} bytes for shape {shape}, got more; fetch the file again")
    return np.frombuffer(content, dtype=np.uint8).reshape(shape), magic + sizes
