"""The rows of an experiment's runs, by what tells the runs apart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np

from spherometer.records import RunReader
from spherometer.sweeps import Job

Curve = tuple[np.ndarray, np.ndarray]  # steps, values
TRAIN = "spherometer.training.runs:perform"


@dataclass(frozen=True)
class Run:
    """A job and its labels, such as {"smoothing": 0.5, "seed": 0}: what figures and claims choose by."""

    labels: Mapping[str, Any]
    job: Job


def training_run(labels: Mapping[str, Any], **tables: Mapping[str, Any]) -> Run:
    """A run of the training loop: `tables` are those of `training.settings`, saying what differs from the defaults.

    The label "seed" is the seed of the run.

    Example:
        >>> training_run({"rate": 0.1, "seed": 0}, method={"learning_rate": 0.1}, loop={"steps": 100})
    """
    from spherometer.training.settings import Settings

    loop = {**tables.get("loop", {}), "seed": int(labels["seed"])}
    settings = Settings.of({**tables, "loop": loop}).checked().differences()
    title = ", ".join(f"{name} {value}" for name, value in labels.items())
    return Run(dict(labels), Job(TRAIN, settings, title))


class Results:
    """What finished runs hold, read once: curves over steps and values at the end.

    Labels choose runs: `results.final("final_sharpness", smoothing=0.5)` has one value for each seed, in their order. A
    run that failed, however far it came, or never wrote the name, counts as nan: seen, and not dropped in silence.
    """

    def __init__(self, runs: Sequence[Run], root: Path) -> None:
        self.runs, self.root = tuple(runs), root

    def choose(self, **labels: Any) -> list[Run]:
        """The runs with these labels, by seed."""
        found = [run for run in self.runs if all(run.labels.get(name) == value for name, value in labels.items())]
        if not found:
            raise KeyError(f"no run has the labels {labels}; there are {[dict(run.labels) for run in self.runs[:5]]}")
        return sorted(found, key=lambda run: run.labels.get("seed", 0))

    def values(self, label: str) -> list[Any]:
        """The different values of a label, in the order of the runs."""
        return list(dict.fromkeys(run.labels[label] for run in self.runs if label in run.labels))

    @cached_property
    def missing(self) -> list[Run]:
        """The runs that failed, each once, however many labels it has."""
        failed = {run.job.key: run for run in self.runs if not run.job.is_done(self.root)}
        return list(failed.values())

    def left(self) -> Results:
        """Without the runs that failed, where the same setting has another seed: what figures and tables show.

        A setting of which nothing is left keeps its failed runs, and is a gap.
        """
        if not self.missing:
            return self
        failed = {run.job.key for run in self.missing}
        known = {setting_of(run) for run in self.runs if run.job.key not in failed}
        return Results(
            [run for run in self.runs if run.job.key not in failed or setting_of(run) not in known], self.root
        )

    def curve(self, name: str, *, part: str = "", **labels: Any) -> list[Curve]:
        """Steps and values of a quantity, one curve for each seed."""
        return [self._rows[run.job.key].get((name, part), _EMPTY) for run in self.choose(**labels)]

    def final(self, name: str, *, part: str = "", **labels: Any) -> list[float]:
        """The last value of a quantity, one for each seed."""
        return [float(values[-1]) if len(values) else nan for _, values in self.curve(name, part=part, **labels)]

    def reduce(self, name: str, how: Any, *, after: float = -inf, part: str = "", **labels: Any) -> list[float]:
        """A number from each curve, such as `np.max`, over the steps from `after` on."""
        found = []
        for steps, values in self.curve(name, part=part, **labels):
            late = values[steps >= after]
            found.append(float(how(late)) if len(late) else nan)
        return found

    def parts(self, name: str, **labels: Any) -> list[dict[str, float]]:
        """The last value of each entry of a vector quantity, by the entry's label, one dictionary for each seed."""
        return [
            {part: float(values[-1]) for (known, part), (_, values) in self._rows[run.job.key].items() if known == name}
            for run in self.choose(**labels)
        ]

    def vectors(self, name: str, **labels: Any) -> list[dict[int, dict[str, float]]]:
        """A vector quantity by step and the entries' labels, one dictionary for each seed.

        A matrix has its entries row by row, called "0", "1", ...
        """
        found = []
        for run in self.choose(**labels):
            steps: dict[int, dict[str, float]] = {}
            for (known, part), curve in self._rows[run.job.key].items():
                for step, value in zip(*curve, strict=True) if known == name else ():
                    steps.setdefault(int(step), {})[part] = float(value)
            found.append(dict(sorted(steps.items())))
        return found

    def arrays(self, name: str, **labels: Any) -> list[dict[int, np.ndarray]]:
        """Arrays of the runs by step, one dictionary for each seed."""
        return [dict(self._arrays(run, name)) for run in self.choose(**labels)]

    def last_step(self, **labels: Any) -> list[int]:
        """How many steps were made, for each seed; none by a run that failed."""
        readers = (self._done(run) for run in self.choose(**labels))
        return [(reader.last_step() if reader else None) or 0 for reader in readers]

    def _arrays(self, run: Run, name: str) -> Iterator[tuple[int, np.ndarray]]:
        reader = self._done(run)
        if reader is not None:
            for _, step, known in reader.arrays():
                if known == name:
                    yield step, reader.array(step, name)

    @cached_property
    def _rows(self) -> dict[str, dict[tuple[str, str], Curve]]:
        return {run.job.key: _read(self._done(run)) for run in self.runs}

    def _done(self, run: Run) -> RunReader | None:
        return RunReader(run.job.folder(self.root)) if run.job.is_done(self.root) else None


def setting_of(run: Run) -> frozenset[tuple[str, Any]]:
    """Its labels besides the seed."""
    return frozenset((name, value) for name, value in run.labels.items() if name != "seed")


_EMPTY: Curve = (np.zeros(0), np.zeros(0))


def _read(reader: RunReader | None) -> dict[tuple[str, str], Curve]:
    """All rows of a run by name and part, in the order of steps; a missing number is nan."""
    if reader is None:
        return {}
    found: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for row in reader.rows():
        _, step, name, part, value, *_ = row
        found.setdefault((name, part), []).append((step, nan if value is None else value))
    tables = {key: np.array(sorted(points), dtype=float) for key, points in found.items()}
    return {key: (table[:, 0], table[:, 1]) for key, table in tables.items()}
