"""Running statistics (of batch norm, say) are updated once per step, however many forward passes a step takes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def frozen_statistics(model: nn.Module) -> Iterator[None]:
    """Forward passes inside leave the model's buffers as they were, in train mode too; outputs are not changed by it.

    Buffers are copied and put back, rather than momenta set to zero: the counters of batches stay right as well, and
    a batch of NaN at perturbed weights leaves no NaN in a running mean.

    Example:
        >>> with frozen_statistics(model):
        ...     model(inputs)
    """
    owned = [(module, name, buffer) for module in model.modules() for name, buffer in module._buffers.items()]
    before = [None if buffer is None else buffer.detach().clone() for _, _, buffer in owned]
    try:
        yield
    finally:
        for (module, name, buffer), values in zip(owned, before, strict=True):
            if buffer is not None and values is not None:
                buffer.data.copy_(values)  # by `data`: for graphs that hold this buffer nothing has changed
            module._buffers[name] = buffer
