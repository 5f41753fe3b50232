"""A callback of the Hugging Face Trainer."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import torch

from spherometer.records.files import write_whole
from spherometer.training import Tracker
from spherometer.zoo.models.torchvision_shim import make_torchvision_importable

make_torchvision_importable()
from transformers import TrainerCallback  # noqa: E402  its models import torchvision where that is installed

MEMORY = "tracker.pt"


class TrainerTracker(TrainerCallback):
    """`Trainer(callbacks=[TrainerTracker(tracker)])`: a step after each update of the weights.

    The Trainer tells its loss only in its logs; the last one told goes with the next step. The tracker's memory lies
    in the Trainer's checkpoints, and a training that resumes from `output_dir/checkpoint-N` finds it there.
    """

    def __init__(self, tracker: Tracker) -> None:
        self.tracker = tracker
        self._loss: float | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:  # noqa: ARG002
        """Go on with the memory of the checkpoint that is resumed, if any."""
        kept = _checkpoint(args, state) / MEMORY
        if state.global_step and kept.exists():
            memory = torch.load(kept, weights_only=True)
            self.tracker.load_state_dict(memory["tracker"])
            self._loss = memory["loss"]

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:  # noqa: ARG002
        """Track."""
        self.tracker.step(given.get("optimizer"), self._loss, step=state.global_step)
        self._loss = None

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **given: Any) -> None:  # noqa: ARG002
        """Remember the loss for the next step."""
        self._loss = (logs or {}).get("loss")

    def on_save(self, args: Any, state: Any, control: Any, **given: Any) -> None:  # noqa: ARG002
        """Into the checkpoint."""
        if state.is_world_process_zero:
            content = io.BytesIO()
            torch.save({"tracker": self.tracker.state_dict(), "loss": self._loss}, content)
            write_whole(_checkpoint(args, state) / MEMORY, content.getvalue())

    def on_epoch_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:  # noqa: ARG002
        """For probes that wait for it."""
        self.tracker.end_epoch()

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:  # noqa: ARG002
        """End the run folder."""
        self.tracker.close()


def _checkpoint(args: Any, state: Any) -> Path:
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"
