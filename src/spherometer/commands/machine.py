"""Switches of the machine that a command may throw and a library must not: threads and the allocator."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
KEPT_BYTES = 2**31 - 1  # the largest that mallopt takes


def keep_freed_memory() -> None:
    """Let glibc keep freed memory in the process instead of giving it back after each product."""
    try:
        library = ctypes.CDLL(None)
        kept = [library.mallopt(name, KEPT_BYTES) for name in (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD)]
    except (OSError, AttributeError, TypeError):
        kept = [0]
    if not all(kept):
        raise ValueError("--keep-memory: expected the allocator of glibc, found another: leave the option out")


@contextmanager
def threads(number: int | None) -> Iterator[None]:
    """Compute on so many threads inside; None leaves it to torch."""
    import torch

    before = torch.get_num_threads()
    if number is not None:
        torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
