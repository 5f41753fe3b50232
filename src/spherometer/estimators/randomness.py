"""Random vectors from an explicit seed: one child stream per purpose, drawn on the CPU so that every device sees the
same numbers.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Generator, Tensor


def child_stream(seed: int, name: str) -> Generator:
    """A generator of its own for each purpose, so that a new consumer of randomness moves nobody else's numbers.

    Example:
        >>> torch.rand(1, generator=child_stream(0, "trace")) == torch.rand(1, generator=child_stream(0, "trace"))
        tensor([True])
    """
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    return Generator().manual_seed(int.from_bytes(digest, "little") >> 1)


def rademacher(num_rows: int, num_columns: int, *, dtype: torch.dtype, stream: Generator) -> Tensor:
    """(num_rows, num_columns) independent signs ±1: E[vv'] = I with the smallest variance of v'Av (Hutchinson 1989)."""
    # Drawn column by column: the first columns of a longer draw are those of a shorter one.
    signs = torch.randint(0, 2, (num_columns, num_rows), generator=stream, dtype=torch.int8)
    return signs.to(dtype).mul_(2).sub_(1).T


def unit_vector(num_rows: int, *, dtype: torch.dtype, stream: Generator) -> Tensor:
    """A vector uniform on the unit sphere, on the device of its stream."""
    vector = torch.randn(num_rows, generator=stream, dtype=dtype, device=stream.device)
    return vector.div_(torch.linalg.vector_norm(vector))
