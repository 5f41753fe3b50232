"""Checksums of the published files, to tell the official sets from others; against damage, not against malice."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

# md5 after decompression, so that a set that was gzipped again still counts.
OFFICIAL_IDX: dict[str, frozenset[str]] = {
    "mnist": frozenset(
        {
            "6bbc9ace898e44ae57da46a324031adb",  # train-images-idx3-ubyte
            "a25bea736e30d166cdddb491f175f624",  # train-labels-idx1-ubyte
            "2646ac647ad5339dbf082846283269ea",  # t10k-images-idx3-ubyte
            "27ae3e4e09519cfbb04c329615203637",  # t10k-labels-idx1-ubyte
        }
    ),
    "fashion-mnist": frozenset(
        {
            "f4a8712d7a061bf5bd6d2ca38dc4d50a",  # train-images-idx3-ubyte
            "9018921c3c673c538a1fc5bad174d6f9",  # train-labels-idx1-ubyte
            "8181f5470baa50b63fa0f6fddb340f0a",  # t10k-images-idx3-ubyte
            "15d484375f8d13e6eb1aabb0c3f46965",  # t10k-labels-idx1-ubyte
        }
    ),
}

# md5 of the python files; the publisher gives none for the binary ones.
OFFICIAL_CIFAR: frozenset[str] = frozenset(
    {
        "c99cafc152244af753f735de768cd75f",  # cifar-10 data_batch_1
        "d4bba439e000b95fd0a9bffe97cbabec",  # cifar-10 data_batch_2
        "54ebc095f3ab1f0389bbae665268c751",  # cifar-10 data_batch_3
        "634d18415352ddfa80567beed471001a",  # cifar-10 data_batch_4
        "482c414d41f54cd18b22e5b47cb7c3cb",  # cifar-10 data_batch_5
        "40351d587109b95175f43aff81a1287e",  # cifar-10 test_batch
        "16019d7e3df5f24257cddd939b257f8d",  # cifar-100 train
        "f0ef6b0ae62326f3e7ffdfab6717acfc",  # cifar-100 test
    }
)


def md5(*pieces: bytes | NDArray[np.uint8]) -> str:
    """The md5 of the pieces one after the other."""
    digest = hashlib.md5(usedforsecurity=False)
    for piece in pieces:
        digest.update(piece.tobytes() if isinstance(piece, np.ndarray) else piece)
    return digest.hexdigest()
