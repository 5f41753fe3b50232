"""The geometry of a network while it trains, in the loop people already have."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self, get_args

from torch import Tensor
from torch.optim import Optimizer

from spherometer.estimators import Nearby
from spherometer.estimators.accuracy import check_rtol
from spherometer.metrics.bench import Bench
from spherometer.metrics.measure import conventions
from spherometer.metrics.options import check_batch_size
from spherometer.metrics.registry import parse
from spherometer.problems import Problem
from spherometer.problems.modes import differentiating
from spherometer.records import Event, Row, RunWriter
from spherometer.training.tracking.clock import Clock
from spherometer.training.tracking.outlets import Outlets, Sink, Trouble
from spherometer.training.tracking.probes import LiveProbe, Probe, refuse_twice
from spherometer.training.tracking.schedules import Moment, Schedule, as_schedule
from spherometer.training.tracking.stability import StabilityReading
from spherometer.training.tracking.trajectory import Sketch
from spherometer.training.tracking.watch import Watch
from spherometer.values import Estimate


class Tracker:
    """Measures a problem on a schedule while somebody else trains its model, and tells what happens to it.

    Eigenvalues start from the last vectors and cost a few products; each has its own certified error. Beside a
    measured sharpness the optimiser is read: learning rate, thresholds, stability ratio. Weights, buffers, gradients,
    modes and random numbers of the training are untouched: a tracked run is the untracked one, bit by bit.

    Args:
        metrics: name or names of the catalogue, all measured `every` so often; or Probes with schedules and data of
            their own.
        every: a number of steps, a Schedule, or "log", "epoch", "jump".
        budget: tracking time aimed at for each second of training, 0.1 for 10 %; after the first of each probe,
            measurements wait until they fit.
        run: folder of a new run, or an open RunWriter, that keeps every row.
        watch: serve the live page of the run, on this machine; `page` is its address.
        sinks: objects with `log(dict, step)`, or functions.
        batch_size: of the training; adds the threshold 2ρ_B/lr of SGD at the cost of a pass of gradient norms.
        trajectory: schedule on which the path of the weights is kept, randomly projected.
        settings: of your training, kept in the manifest of the run folder: `read_runs(..., settings=["lr"])`.
        rtol: accuracy of metrics that have one to choose and whose default is finer.
        on_error: what a failing measurement does: "warn" records it and training goes on, "raise" records and stops.

    Example:
        >>> with Tracker(problem, ["sharpness", "impurity"], every=10, run="runs/a") as tracker:
        ...     for inputs, targets in batches:
        ...         loss = train_one_step(inputs, targets)
        ...         tracker.step(optimizer, loss)
    """

    def __init__(
        self,
        problem: Problem,
        metrics: str | Probe | Sequence[str | Probe] = ("sharpness",),
        every: Schedule | int | str = 10,
        *,
        budget: float | None = None,
        run: RunWriter | str | os.PathLike[str] | None = None,
        watch: bool = False,
        sinks: Sequence[Sink | Callable[[dict[str, float], int], Any]] = (),
        batch_size: int | None = None,
        trajectory: Schedule | int | str | None = None,
        settings: Mapping[str, Any] | None = None,
        rtol: float = 0.01,
        on_error: Trouble = "warn",
        seed: int = 0,
    ) -> None:
        if not isinstance(problem, Problem):
            raise TypeError(f"expected a Problem (model, loss and data), got {type(problem).__name__}")
        if on_error not in get_args(Trouble):
            raise ValueError(f"expected on_error='raise' or 'warn', got {on_error!r}")
        self.problem, self.seed, self.on_error = problem, seed, on_error
        self._probes = _ready(metrics, every, problem, check_rtol(rtol))
        self._voices = _voices(self._probes)
        self._batch_ratio = None if batch_size is None else self._request_ratio(batch_size)
        judged = self._voices["sharpness"][0].problem if "sharpness" in self._voices else problem
        self._stability, self._no_ratio = StabilityReading(judged, rtol), ""
        self._trajectory = None if trajectory is None else as_schedule(trajectory)
        self._sketch: Sketch | None = None
        self._clock, self._watch = Clock(budget), Watch()
        self._queue: list[LiveProbe] = []
        self._optimizer: Optimizer | None = None
        self._entered = False
        self.number = 0

        def manifest() -> dict[str, Any]:
            probes = [{"metrics": list(probe.requests), "schedule": repr(probe.schedule)} for probe in self._probes]
            told = {"conventions": conventions(problem, seed), "probes": probes, "budget": budget, "rtol": rtol}
            return dict(settings or {}) | {"tracking": told}

        self._outlets = Outlets(run, sinks, manifest, seed, on_error, watch)

    @property
    def rows(self) -> list[Row]:
        """Everything measured so far."""
        return self._outlets.rows

    @property
    def events(self) -> list[Event]:
        """Everything that happened so far."""
        return self._outlets.events

    @property
    def page(self) -> str | None:
        """Address of the live page, if one was asked for."""
        return None if self._outlets.page is None else self._outlets.page.address

    @property
    def overhead(self) -> float:
        """Seconds of tracking for each second of training."""
        return self._clock.overhead(time.perf_counter())

    def series(self, name: str) -> list[Row]:
        """The rows of one quantity in the order of measuring."""
        return [row for row in self.rows if row.name == name]

    def step(
        self, optimizer: Optimizer | None = None, loss: float | Tensor | None = None, *, step: int | None = None
    ) -> None:
        """Call after each update of the weights; measures when it is time, and else does nothing in microseconds.

        Args:
            loss: of this training step, for jumps and catapults; a tensor on another device is waited for.
            step: updates so far, where the loop counts them itself.
        """
        began = time.perf_counter()
        self.number = self.number + 1 if step is None else step
        self._optimizer = optimizer
        value = float(loss.detach() if isinstance(loss, Tensor) else loss) if loss is not None else None
        usual = self._watch.usual_loss
        if value is not None:
            self._watch.see_loss(self.number, value)
        self._attend(Moment(self.number, not self._entered, False, value, usual), began)
        self._entered = True

    def end_epoch(self) -> None:
        """Call at the end of each epoch, for probes that wait for it."""
        self._attend(Moment(self.number, epoch_ended=True), time.perf_counter())

    def close(self, error: BaseException | None = None) -> None:
        """End the run folder, if this tracker opened one."""
        self._outlets.close(error)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(error)

    def state_dict(self) -> dict[str, Any]:
        """What a resumed tracker needs to give the rows of an undisturbed one: vectors, detectors, counters."""
        return {
            "number": self.number,
            "entered": self._entered,
            "probes": [{"starts": _plain(probe.starts), "seconds": probe.seconds} for probe in self._probes],
            "stability": {"starts": _plain(self._stability.starts), "no_ratio": self._no_ratio},
            "watch": self._watch.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken, with the same probes."""
        if len(state["probes"]) != len(self._probes):
            raise ValueError(f"expected the state of {len(self._probes)} probes, got one of {len(state['probes'])}")
        self.number, self._entered = state["number"], state["entered"]
        for probe, known in zip(self._probes, state["probes"], strict=True):
            probe.starts, probe.seconds = _restored(known["starts"]), known["seconds"]
        self._stability.starts = _restored(state["stability"]["starts"])
        self._no_ratio = state["stability"]["no_ratio"]
        self._watch.load_state_dict(state["watch"])

    def _attend(self, moment: Moment, began: float) -> None:
        """Line up the probes that are due, and measure as long as the budget lasts."""
        try:
            for probe in self._probes:
                if probe.schedule.due(moment) and probe not in self._queue:
                    self._queue.append(probe)
            if self._trajectory is not None and self._trajectory.due(moment):
                self._guarded("trajectory", self._keep_weights)
            while self._queue and self._clock.affords(self._queue[0].seconds, began):
                probe = self._queue.pop(0)
                self._guarded(", ".join(probe.names), partial(self._measure, probe, moment, began))
        finally:
            self._clock.leave(began)

    def _measure(self, probe: LiveProbe, moment: Moment, began: float) -> None:
        entered, step, seed = time.perf_counter(), self.number, self.seed + self.number
        happened: list[Event] = []
        with differentiating():
            found, overlaps = probe.measure(seed)
        try:
            with differentiating():
                happened.extend(self._read(probe, found, overlaps, seed))
        finally:  # what was measured is kept, whatever becomes of its reading
            values: dict[str, Any] = {**found, "tracking_overhead": self._clock.overhead(began)}
            values |= {} if moment.loss is None else {"training_loss": moment.loss}
            self._outlets.write(step, values, happened)
        probe.spent(time.perf_counter() - entered)

    def _read(
        self, probe: LiveProbe, found: dict[str, Estimate], overlaps: dict[str, float], seed: int
    ) -> Iterable[Event]:
        """Tell what happened, and add to what was found what the optimiser says."""
        if probe.prefix:
            return
        heard = {metric: found[name] for metric, (owner, name) in self._voices.items() if owner is probe}
        yield from self._watch.see(self.number, heard)
        for which, overlap in overlaps.items():
            found[f"eigenvector_overlap: {which}"] = Estimate(overlap)
            yield from self._watch.see_overlap(self.number, which, overlap)
        if isinstance(self._optimizer, Optimizer) and "sharpness" in heard:
            ratio = None if self._batch_ratio is None else found[self._batch_ratio]
            rows, reason = self._stability.read(self._optimizer, heard["sharpness"], ratio, seed)
            found |= rows
            if reason and reason != self._no_ratio:
                self._no_ratio = reason
                yield Event(self.number, "no stability ratio", reason)
            if "stability_ratio" in rows:
                yield from self._watch.edge.see(self.number, rows["stability_ratio"])

    def _request_ratio(self, batch_size: int) -> str:
        """Measure ρ_B beside the sharpness, whose threshold it makes."""
        if "sharpness" not in self._voices:
            raise ValueError("expected a sharpness in a probe without a name, for batch_size= to give it a threshold")
        probe = self._voices["sharpness"][0]
        check_batch_size(batch_size, Bench(probe.problem).num_samples)
        request = f"gradient_ratio:batch_size={batch_size}"
        probe.requests = {**probe.requests, request: parse(request)}
        refuse_twice([name for each in self._probes for name in each.names])
        return request

    def _keep_weights(self) -> None:
        self._sketch = self._sketch or Sketch(self.problem, seed=self.seed)
        place = self._sketch(self.problem.state().vector)
        self._outlets.write(self.number, {}, arrays={"trajectory": place})

    def _guarded(self, what: str, work: Callable[[], None]) -> None:
        """A failing probe is recorded, and stops the training only if that was asked for."""
        try:
            work()
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            self._outlets.tell(Event(self.number, f"failed: {what}", text))
            if self.on_error == "raise":
                raise
            warnings.warn(f"tracking {what} failed at step {self.number}: {text}", RuntimeWarning, stacklevel=5)


def _ready(
    metrics: str | Probe | Sequence[str | Probe],
    every: Schedule | int | str,
    problem: Problem,
    rtol: float,
) -> list[LiveProbe]:
    """Probes at work; plain names share one, and no two may write the same rows."""
    asked = [metrics] if isinstance(metrics, str | Probe) else list(metrics)
    names = [entry for entry in asked if isinstance(entry, str)]
    probes = ([Probe(names, every)] if names else []) + [entry for entry in asked if isinstance(entry, Probe)]
    if not probes or len(names) + len(probes) - bool(names) != len(asked):
        raise ValueError(f"expected names of metrics and Probes, got {asked!r}")
    live = [LiveProbe.of(probe, problem, rtol) for probe in probes]
    refuse_twice([name for probe in live for name in probe.names])
    return live


def _voices(probes: Sequence[LiveProbe]) -> dict[str, tuple[LiveProbe, str]]:
    """For each metric the first probe without a name that measures it, and the row: what events and thresholds see."""
    asked = [(m.name, (probe, name)) for probe in probes if not probe.prefix for name, (m, _) in probe.requests.items()]
    return dict(reversed(asked))


def _plain(starts: Mapping[str, Nearby]) -> dict[str, dict[str, Any]]:
    return {key: dict(vars(known)) for key, known in starts.items()}


def _restored(starts: Mapping[str, Mapping[str, Any]]) -> dict[str, Nearby]:
    return {key: Nearby(**known) for key, known in starts.items()}
