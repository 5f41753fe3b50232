"""A training on disk: weights as safetensors, the rest as tensors that are read without running code."""

from __future__ import annotations

import io
import os
import pickle
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from spherometer.problems import NonFiniteError
from spherometer.records import RecordError, read_tensors, write_tensors
from spherometer.records.files import write_whole
from spherometer.training.loop import Training

WEIGHTS, STATE, FORMER = "weights.safetensors", "state.pt", ".former"


def save_checkpoint(training: Training, folder: str | Path, beside: Mapping[str, Any] | None = None) -> Path:
    """Write `folder/step-000000100`, whole or not at all, and remove the ones before it.

    Args:
        beside: tensors and plain data that belong to the same moment, such as the state of a Tracker.

    Example:
        >>> for step in training.run(1000):
        ...     if step.number % 100 == 0:
        ...         save_checkpoint(training, "run/checkpoints")
    """
    folder, state = Path(folder), training.state_dict()
    weights = state.pop("model")
    for name, weight in weights.items():
        if not bool(torch.isfinite(weight).all()):
            raise NonFiniteError(f"training diverged at step {training.number}: {name} is not finite; lower the rate")
    path = folder / f"step-{training.number:09d}"
    for left in folder.glob(".step-*"):  # by a process that was killed
        shutil.rmtree(left, ignore_errors=True)
    temporary = folder / f".{path.name}"
    write_tensors(temporary / WEIGHTS, weights, {"step": str(training.number)})
    content = io.BytesIO()
    torch.save(state | {"beside": dict(beside or {})}, content)
    write_whole(temporary / STATE, content.getvalue())
    if path.exists():  # it stays in sight, under another name, until its successor is there
        former = path.with_suffix(FORMER)
        if former.exists():
            shutil.rmtree(former)
        os.replace(path, former)
    os.replace(temporary, path)
    for older in _found(folder):
        if older != path:
            shutil.rmtree(older, ignore_errors=True)
    return path


def load_checkpoint(training: Training, folder: str | Path) -> dict[str, Any] | None:
    """Go on from the latest checkpoint in the folder, and return what was saved beside it; None when there is none.

    The training must have been built with the same arguments as the one that was saved.

    Example:
        >>> beside = load_checkpoint(training, "runs/a/checkpoints")
    """
    found = _found(Path(folder))
    if not found:
        return None
    path = found[-1]
    try:
        state: dict[str, Any] = torch.load(path / STATE, weights_only=True, map_location="cpu")
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise RecordError(f"{path / STATE}: cannot be read ({error}): remove {path} to start again") from None
    weights = {name: torch.from_numpy(array) for name, array in read_tensors(path / WEIGHTS).items()}
    beside: dict[str, Any] = state.pop("beside")
    training.load_state_dict(state | {"model": weights})
    return beside


def _found(folder: Path) -> list[Path]:
    """Checkpoints in the order of their steps; of one step the former before its successor."""
    return sorted(
        (path for path in folder.glob("step-*") if path.is_dir()), key=lambda path: (path.stem, not path.suffix)
    )
