"""Sinks of a tracker: each takes `log(dict, step)`; a run folder stays the source of truth."""

from __future__ import annotations

import csv
import os
from pathlib import Path
from typing import Any


class TensorBoardSink:
    """Scalars for TensorBoard.

    Example:
        >>> Tracker(problem, sinks=[TensorBoardSink("logs")])
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ImportError("this sink needs tensorboard: pip install 'spherometer[loggers]'") from None
        self._writer = SummaryWriter(str(folder))

    def log(self, values: dict[str, float], step: int) -> None:
        """One scalar for each number."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        """End the file."""
        self._writer.close()


class WandbSink:
    """Numbers into a run of Weights & Biases, by default the one that is open; it counts steps by itself.

    Example:
        >>> Tracker(problem, sinks=[WandbSink(wandb.init(project="edge"))])
    """

    def __init__(self, run: Any = None) -> None:
        self._run = _library("wandb") if run is None else run

    def log(self, values: dict[str, float], step: int) -> None:
        """One call of its `log`; the step is a number among the others, since W&B refuses steps that go back."""
        self._run.log({**values, "tracker_step": step})


class MLflowSink:
    """Metrics into the open MLflow run; characters that MLflow refuses in names become underscores."""

    def __init__(self, client: Any = None) -> None:
        self._client = _library("mlflow") if client is None else client

    def log(self, values: dict[str, float], step: int) -> None:
        """One call of `log_metrics`."""
        self._client.log_metrics({_allowed(name): value for name, value in values.items()}, step=step)


class CSVSink:
    """Lines `step, name, value`, each on disk at once; an existing file is continued."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._path.parent.mkdir(parents=True, exist_ok=True)

    def log(self, values: dict[str, float], step: int) -> None:
        """A line for each number."""
        fresh = not self._path.exists()
        with self._path.open("a", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream)
            if fresh:
                writer.writerow(("step", "name", "value"))
            writer.writerows((step, name, value) for name, value in values.items())


def _library(name: str) -> Any:
    try:
        return __import__(name)
    except ImportError:
        raise ImportError(f"this sink needs {name}: pip install {name}") from None


def _allowed(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "_-. /" else "_" for letter in name)
