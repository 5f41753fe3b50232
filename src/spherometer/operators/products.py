"""Products of two matrices, by the library that is quicker at them.

PyTorch leaves float32 products on a CPU to MKL, which multiplies at half the width of AVX-512 on some processors.
oneDNN, which comes with PyTorch too, uses all of it: measured 1.7 to 2.3 times as fast there.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

WIDE_VECTORS = torch.backends.cpu.get_cpu_capability() == "AVX512"
MIN_WORK = 2**22  # multiplications, below which finding the way costs what it spares

_one_dnn: Callable[..., Tensor] | None = getattr(torch.ops.mkldnn, "_linear_pointwise", None)


def product(left: Tensor, right: Tensor) -> Tensor:
    """(n, k) @ (k, m), which can be differentiated like any other.

    Example:
        >>> product(torch.ones(2, 3), torch.ones(3, 4)).shape
        torch.Size([2, 4])
    """
    derived = torch.is_grad_enabled() and (left.requires_grad or right.requires_grad)
    if _one_dnn is None or derived or not is_quick(left, right.shape[1]) or are_batched(left, right):
        return left @ right
    return _one_dnn(left, _dense(right).T, None, "none", [], "")


def is_quick(left: Tensor, num_columns: int) -> bool:
    """Whether a product with a matrix of so many columns has a quicker way than PyTorch's own."""
    return (
        WIDE_VECTORS
        and _one_dnn is not None
        and left.device.type == "cpu"
        and left.dtype == torch.float32
        and left.numel() * num_columns >= MIN_WORK
    )


def _dense(matrix: Tensor) -> Tensor:
    """The matrix without gaps in memory: oneDNN takes a thousand times as long for one that has them."""
    return matrix if matrix.is_contiguous() or matrix.T.is_contiguous() else matrix.contiguous()


def are_batched(*tensors: Tensor | None) -> bool:
    """Whether `torch.func.vmap` is at work on any of them."""
    return any(tensor is not None and torch._C._functorch.is_batchedtensor(tensor) for tensor in tensors)
