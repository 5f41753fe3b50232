"""Which tensor of a closure holds the logits: said by the closure, heard by the optimisers that need to know."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor

_listener: ContextVar[Callable[[Tensor], Tensor] | None] = ContextVar("listener", default=None)


def logits(outputs: Tensor) -> Tensor:
    """Say that these are the logits z of the step, classes on the last axis; without a listener this does nothing.

    `EJR` and `EJRv2` need it in the closure; every other optimiser takes no notice, so it may stand in any closure.
    Each row is a sample (each position, where there are several in front of the classes). Several calls in one closure
    are micro-batches of one batch. Use the result, not the argument, for the loss:

    Example:
        >>> loss = criterion(sm.optim.logits(model(inputs)), targets)
    """
    listener = _listener.get()
    return outputs if listener is None else listener(outputs)


@contextmanager
def hearing(listener: Callable[[Tensor], Tensor] | None) -> Iterator[None]:
    """Inside, `logits(z)` is `listener(z)`."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)
