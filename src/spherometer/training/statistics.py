"""Running statistics (of batch norm, say) are updated once per step, however many forward passes a step takes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn


@contextmanager
def frozen_statistics(model: nn.Module) -> Iterator[None]:
    """Forward passes inside leave the model's buffers as they were, in train mode too; outputs are not changed by it.

    Buffers are copied and put back, rather than momenta set to zero: the counters of batches stay right as well, and
    a batch of NaN at perturbed weights leaves no NaN in a running mean.

    Example:
        >>> with frozen_statistics(model):
        ...     model(inputs)
    """
    owned = [(buffers, name, buffer) for buffers in _registers(model) for name, buffer in buffers.items()]
    before = [None if buffer is None else buffer.detach().clone() for _, _, buffer in owned]
    try:
        yield
    finally:
        for (buffers, name, buffer), values in zip(owned, before, strict=True):
            if buffer is not None and values is not None:
                buffer.data.copy_(values)  # by `data`: for graphs that hold this buffer nothing has changed
            buffers[name] = buffer


def _registers(module: nn.Module) -> Iterator[dict[str, Tensor | None]]:
    """The buffers by name of a module and of those inside it; `modules()` takes as long as a small layer."""
    if module._buffers:
        yield module._buffers
    for child in module._modules.values():
        if child is not None:
            yield from _registers(child)
