"""Which tensor of a closure holds the logits: said by the closure, heard by the optimisers that need to know."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor

Listener = Callable[[Tensor], Tensor]
_heard: ContextVar[tuple[Listener | None, bool]] = ContextVar("heard", default=(None, True))


def logits(outputs: Tensor) -> Tensor:
    """Say that these are the logits z of the step, classes on the last axis; without a listener this does nothing.

    `EJR` and `EJRv2` need it in the closure; every other optimiser takes no notice, so it may stand in any closure.
    Each row is a sample (each position, where there are several in front of the classes). Several calls in one closure
    are micro-batches of one batch. Use the result, not the argument, for the loss:

    Example:
        >>> loss = criterion(sm.optim.logits(model(inputs)), targets)
    """
    listener, _ = _heard.get()
    return outputs if listener is None else listener(outputs)


def differentiate(loss: Tensor) -> None:
    """`loss.backward()`, unless the optimiser learns all it wants of this pass from the logits."""
    _, gradient_wanted = _heard.get()
    if gradient_wanted:
        loss.backward()


@contextmanager
def hearing(listener: Listener | None, *, gradient_wanted: bool = True) -> Iterator[None]:
    """Inside, `logits(z)` is `listener(z)`; a gradient of the loss that is not wanted does no harm."""
    token = _heard.set((listener, gradient_wanted))
    try:
        yield
    finally:
        _heard.reset(token)
