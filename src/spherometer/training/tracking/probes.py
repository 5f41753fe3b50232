"""A metric on a schedule, on data of its own, warm from its last value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from spherometer.estimators import Nearby
from spherometer.estimators.accuracy import check_rtol
from spherometer.metrics.measure import Requests, bench_for, measured_on
from spherometer.metrics.registry import parse
from spherometer.problems import Problem
from spherometer.problems.batches import num_samples, take
from spherometer.problems.modes import BatchNorm
from spherometer.training.tracking.schedules import Schedule, as_schedule
from spherometer.values import Estimate

FADING = 0.9  # of an expected cost, from one cheaper measurement to the next


@dataclass(frozen=True)
class Probe:
    """What to measure, when, and on which samples.

    Args:
        metrics: name or names of the catalogue, with options as "name:option=value".
        every: a number of steps, a Schedule, or "log", "epoch", "jump".
        samples: measure on the first so many samples of the problem, over as many of its batches as that takes.
        data: measure on other data than the problem's.
        batchnorm: "eval" or "train", where another mode than the problem's is wanted.
        name: put before the names of the rows, to tell two probes of one metric apart. Thresholds and events are read
            off probes without a name.

    Example:
        >>> Probe(["sharpness", "impurity"], every=10, samples=500)
        >>> Probe("hessian_trace", every="epoch", data=held_out, name="test")
    """

    metrics: str | Sequence[str]
    every: Schedule | int | str = 10
    samples: int | None = None
    data: Any = None
    batchnorm: BatchNorm | None = None
    name: str = ""

    def __post_init__(self) -> None:
        as_schedule(self.every)
        if self.samples is not None and self.samples < 1:
            raise ValueError(f"expected samples of at least 1, got {self.samples}")
        if self.samples is not None and self.data is not None:
            raise ValueError("expected either samples or data, got both: cut the data yourself")


@dataclass(eq=False)
class LiveProbe:
    """A probe at work on a problem: what it has learned, and what it costs."""

    problem: Problem
    requests: Requests
    schedule: Schedule
    prefix: str = ""
    starts: dict[str, Nearby] = field(default_factory=dict)
    seconds: float = 0.0  # that the next measurement is expected to take

    @classmethod
    def of(cls, probe: Probe, problem: Problem, rtol: float) -> LiveProbe:
        """A probe made ready; metrics with an accuracy to choose get `rtol` if their own default is finer."""
        names = [probe.metrics] if isinstance(probe.metrics, str) else list(probe.metrics)
        requests = {}
        for name in names:
            metric, options = parse(name)
            usual = metric.options.get("rtol")
            if isinstance(usual, float) and "rtol" not in options:
                options = options | {"rtol": max(usual, rtol)}
            if "rtol" in options:
                check_rtol(options["rtol"])
            requests[name] = (metric, options)
        refuse_twice(names)
        if not requests:
            raise ValueError("expected at least one metric in a probe, got none: `metrics()` lists them")
        if probe.samples is not None:
            problem = problem.restricted(list(_first(problem.batches, probe.samples)))
        elif probe.data is not None:
            problem = problem.restricted(probe.data)
        if probe.batchnorm is not None:
            problem = replace(problem, batchnorm=probe.batchnorm)
        return cls(problem, requests, as_schedule(probe.every), f"{probe.name}/" if probe.name else "")

    @property
    def names(self) -> list[str]:
        """Of its rows."""
        return [f"{self.prefix}{name}" for name in self.requests]

    def measure(self, seed: int) -> tuple[dict[str, Estimate], dict[str, float]]:
        """Estimates by name, and how far each top eigenvector is the old one: |v'v_old|."""
        bench = bench_for(self.problem, self.requests, seed=seed, starts=self.starts)
        found = measured_on(bench, self.requests)
        overlaps = {
            key: float((self.starts[key].vectors[:, 0].to(known.vectors) @ known.vectors[:, 0]).abs())
            for key, known in bench.nearby.items()
            if key in self.starts and _comparable(self.starts[key], known)
        }
        self.starts = bench.nearby
        return {f"{self.prefix}{name}": estimate for name, estimate in found.items()}, overlaps

    def spent(self, seconds: float) -> None:
        """A dear measurement, such as a search anew, is expected again for some time."""
        self.seconds = max(seconds, FADING * self.seconds)


def _comparable(before: Nearby, after: Nearby) -> bool:
    return before.frame == after.frame and len(before.vectors) == len(after.vectors)


def refuse_twice(names: Sequence[str]) -> None:
    """Refuse rows of one name that two measurements would write."""
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"expected each quantity once, got {', '.join(twice)} twice: give one probe a name")


def _first(batches: Iterable[Any], num: int) -> Iterator[Any]:
    """Batches of the first `num` samples, the last one cut; all where there are fewer."""
    for batch in batches:
        size = num_samples(batch)
        if size is None:
            raise ValueError("expected batches whose samples can be counted, with samples=: cut the data by data=")
        yield take(batch, 0, min(num, size))
        num -= size
        if num <= 0:
            return
