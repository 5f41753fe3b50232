"""Memory that is used again: fresh memory comes from the system page by page, at half the speed of writing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import prod

import torch
from torch import Tensor


class Workspace:
    """Buffers on the CPU that are lent, given back and lent again; each grows to the largest that was asked for.

    Example:
        >>> with workspace.lent((36, 512, 512), torch.float32) as lifted:
        ...     torch.bmm(left, right, out=lifted)
    """

    def __init__(self) -> None:
        self._idle: list[Tensor] = []

    @contextmanager
    def lent(self, shape: tuple[int, ...], dtype: torch.dtype) -> Iterator[Tensor]:
        """A tensor whose numbers are whatever was left there, and which nobody else has until the end of the block."""
        size = prod(shape) * dtype.itemsize
        buffer = self._idle.pop() if self._idle else None
        if buffer is None or len(buffer) < size:
            with torch.inference_mode(mode=False):  # else nobody could write to it outside
                buffer = torch.empty(size, dtype=torch.uint8)
        try:
            yield buffer[:size].view(dtype).view(shape)
        finally:
            self._idle.append(buffer)

    @property
    def num_bytes(self) -> int:
        """What is held while nothing is lent."""
        return sum(buffer.nbytes for buffer in self._idle)
