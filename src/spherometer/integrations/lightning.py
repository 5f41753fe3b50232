"""A callback of Lightning."""

from __future__ import annotations

from typing import Any

from spherometer.integrations.mean_loss import MeanLoss
from spherometer.training import Tracker
from spherometer.zoo.models.torchvision_shim import make_torchvision_importable

make_torchvision_importable()
from lightning.pytorch import Callback  # noqa: E402  it imports torchvision where that is installed


class LightningTracker(Callback):
    """`Trainer(callbacks=[LightningTracker(tracker)])`: a step after each update, also with accumulated gradients.

    The loss is the mean over the batches of the update. The tracker's memory goes into Lightning's checkpoints; its run
    folder ends with the fit.
    """

    def __init__(self, tracker: Tracker) -> None:
        self.tracker = tracker
        self._seen, self._loss = 0, MeanLoss()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Updates of the fit that is resumed are not news."""
        self._seen = trainer.global_step

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        """Track when the weights have moved."""
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if loss is not None:
            self._loss.see(loss * trainer.accumulate_grad_batches)  # it comes divided by that
        if trainer.global_step == self._seen:
            return
        self._seen = trainer.global_step
        optimizer = trainer.optimizers[0] if len(trainer.optimizers) == 1 else None
        self.tracker.step(optimizer, self._loss.take(), step=trainer.global_step)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """For probes that wait for it."""
        self.tracker.end_epoch()

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """End the run folder."""
        self.tracker.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ARG002
        """End the run folder as failed."""
        self.tracker.close(exception)

    def state_dict(self) -> dict[str, Any]:
        """Into the checkpoint."""
        return self.tracker.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Out of the checkpoint."""
        self.tracker.load_state_dict(state_dict)
