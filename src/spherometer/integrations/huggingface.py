"""A callback of the Hugging Face Trainer."""

from __future__ import annotations

from typing import Any

from spherometer.training import Tracker
from spherometer.zoo.models.torchvision_shim import make_torchvision_importable

make_torchvision_importable()
from transformers import TrainerCallback  # noqa: E402  its models import torchvision where that is installed


class TrainerTracker(TrainerCallback):
    """`Trainer(callbacks=[TrainerTracker(tracker)])`: a step after each update of the weights.

    The Trainer tells its loss only in its logs; the last one told goes with the step.
    """

    def __init__(self, tracker: Tracker) -> None:
        self.tracker = tracker
        self._loss: float | None = None

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:  # noqa: ARG002
        """Track."""
        self.tracker.step(given.get("optimizer"), self._loss, step=state.global_step)
        self._loss = None

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **given: Any) -> None:  # noqa: ARG002
        """Remember the loss for the next step."""
        self._loss = (logs or {}).get("loss")

    def on_epoch_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:  # noqa: ARG002
        """For probes that wait for it."""
        self.tracker.end_epoch()

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:  # noqa: ARG002
        """End the run folder."""
        self.tracker.close()
