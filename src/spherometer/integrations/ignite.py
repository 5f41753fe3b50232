"""A handler of Ignite."""

from __future__ import annotations

from numbers import Real
from typing import Any

from ignite.engine import Engine, Events
from torch import Tensor
from torch.optim import Optimizer

from spherometer.training import Tracker


def attach_tracker(tracker: Tracker, engine: Engine, optimizer: Optimizer) -> None:
    """Track after every iteration of a training engine; an output that is a number is taken for the loss.

    Example:
        >>> attach_tracker(tracker, trainer, optimizer)
    """

    def step(engine: Engine) -> None:
        output: Any = engine.state.output
        is_loss = isinstance(output, Real) or (isinstance(output, Tensor) and output.numel() == 1)
        tracker.step(optimizer, output if is_loss else None, step=engine.state.iteration)

    def fail(engine: Engine, error: BaseException) -> None:  # noqa: ARG001
        tracker.close(error)
        raise error

    engine.add_event_handler(Events.ITERATION_COMPLETED, step)
    engine.add_event_handler(Events.EPOCH_COMPLETED, lambda: tracker.end_epoch())
    engine.add_event_handler(Events.COMPLETED, lambda: tracker.close())
    engine.add_event_handler(Events.EXCEPTION_RAISED, fail)
