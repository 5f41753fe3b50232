"""A handler of Ignite."""

from __future__ import annotations

from typing import Any

from ignite.engine import Engine, Events
from torch.optim import Optimizer

from spherometer.integrations.mean_loss import MeanLoss
from spherometer.training import Tracker


def attach_tracker(tracker: Tracker, engine: Engine, optimizer: Optimizer) -> None:
    """Track after every iteration in which the optimiser has made a step; steps are its updates, not iterations.

    An output that is a number is taken for the loss; where gradients are accumulated their mean is told. The tracker's
    memory goes into a checkpoint as any other object: `Checkpoint({"tracker": tracker, ...}, ...)`.

    Example:
        >>> attach_tracker(tracker, trainer, optimizer)
    """
    updates, loss = 0, MeanLoss()

    def count(*_: Any) -> None:
        nonlocal updates
        updates += 1

    def step(engine: Engine) -> None:
        nonlocal updates
        loss.see(engine.state.output)
        if updates:
            made, updates = updates, 0
            tracker.step(optimizer, loss.take(), step=tracker.number + made)

    def fail(engine: Engine, error: BaseException) -> None:  # noqa: ARG001
        tracker.close(error)
        raise error

    optimizer.register_step_post_hook(count)
    engine.add_event_handler(Events.ITERATION_COMPLETED, step)
    engine.add_event_handler(Events.EPOCH_COMPLETED, lambda: tracker.end_epoch())
    engine.add_event_handler(Events.COMPLETED, lambda: tracker.close())
    engine.add_event_handler(Events.EXCEPTION_RAISED, fail)
