"""Arrays beside the rows: small ones in the database, large ones as safetensors files that are there whole or not."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from spherometer.records.errors import RecordError, telling
from spherometer.records.files import write_whole
from spherometer.records.schema import ARRAYS, to_json

SMALL = 1_000_000  # bytes that still go into the database


def as_array(values: Any) -> np.ndarray:
    """A tensor, array or list as a NumPy array of numbers; bfloat16, which NumPy lacks, becomes float32."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = values.float() if str(values.dtype) == "torch.bfloat16" else values
    array = np.ascontiguousarray(values)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"expected an array of numbers, got entries of type {array.dtype}")
    return array if np.ndim(values) else array.reshape(())


def packed(folder: Path, step: int, name: str, array: np.ndarray) -> tuple[Any, ...]:
    """Type, shape, and either the content or the name of the file that has been written with it."""
    described = (str(array.dtype), to_json(list(array.shape)))
    if array.nbytes <= SMALL:
        return *described, array.tobytes(), None
    slug = re.sub(r"[^0-9A-Za-z]+", "-", name)[:60]
    file = f"{ARRAYS}/{step:09d}-{slug}-{zlib.crc32(name.encode()):08x}.safetensors"
    write_tensors(folder / file, {"content": array})
    return *described, None, file


def write_tensors(path: Path, tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> None:
    """Named tensors as a safetensors file, whole or not at all.

    Example:
        >>> write_tensors(folder / "checkpoint.safetensors", model.state_dict(), {"step": "100"})
    """
    content = save({name: as_array(values) for name, values in tensors.items()}, dict(metadata or {}))
    with telling(path):
        write_whole(path, content)


def read_tensors(path: Path) -> dict[str, np.ndarray]:
    """The named arrays of a safetensors file; nothing in it is ever executed."""
    try:
        with telling(path):
            found: dict[str, np.ndarray] = load_file(path)
            return found
    except SafetensorError as error:
        raise RecordError(f"{path}: expected a whole safetensors file, got {error}: restore it from a copy") from error
