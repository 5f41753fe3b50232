"""Tracking the sharpness over the edge of stability: ours warm, ours cold, and PyHessian called each time."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from rich.table import Table
from torch import nn

import spherometer as sm
from benchmarks import peers
from benchmarks.contest import Outcome, console
from benchmarks.machine import machine
from benchmarks.networks import NETWORKS, Setting, images
from benchmarks.tables import write_table
from spherometer.zoo import build_model

WARM = 3  # tracked steps before the subspace counts as warm
COLUMNS = (
    "network", "tool", "products, median", "products, mean", "seconds for a tracked step", "time, ours = 1", "wanted",
    "worst error", "stated error",
)  # fmt: skip


@dataclass(frozen=True)
class Course:
    """A full-batch run that crosses the edge: samples, learning rate, steps, and how often it is tracked."""

    name: str
    samples: int
    learning_rate: float
    steps: int
    every: int
    truth_every: int  # tracked steps between two answers in float64


@dataclass
class Tally:
    """What one tool needed and answered."""

    seconds: list[float] = field(default_factory=list)
    products: list[int] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    stated: list[float] = field(default_factory=list)


COURSES = [Course("3FCN", 1000, 0.05, 300, 4, 8), Course("6CNN", 256, 0.03, 260, 4, 20)]
BUDGETED = [COURSES[0], Course("6CNN", 64, 0.02, 260, 4, 20)]  # thousands of steps: on fewer samples


def tables(*, quick: bool) -> tuple[list[list[str]], list[str]]:
    """Rows of the table, and sentences about the edge and the budget."""
    rows, remarks = [], []
    for course, budgeted in list(zip(COURSES, BUDGETED, strict=True))[: 1 if quick else None]:
        found, remark = _followed(course)
        rows += found
        remarks += [remark, _budget(budgeted)]
    remarks.append(_idle())
    return rows, remarks


def write(folder: Path, *, quick: bool) -> Table:
    """Run, write `tracking.md` into the folder, and return the table for the terminal."""
    rows, remarks = tables(quick=quick)
    return write_table(folder / "tracking.md", f"{machine()}, {images()[2]}.", COLUMNS, rows, remarks)


def _begin(course: Course) -> tuple[nn.Module, torch.optim.Optimizer, sm.Problem, Callable[[], float]]:
    inputs, targets, _ = images()
    inputs, targets = inputs[: course.samples], targets[: course.samples]
    model = build_model(NETWORKS[course.name][0], num_classes=10, input_shape=(3, 32, 32), seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=course.learning_rate)
    criterion = sm.HalfSquaredError()  # its sharpness stays at the edge; that of cross-entropy falls with the loss

    def descend() -> float:
        optimizer.zero_grad()
        loss = criterion(model(inputs), targets)
        loss.backward()
        optimizer.step()
        return loss.item()

    return model, optimizer, sm.Problem(model, criterion, (inputs, targets)), descend


def _followed(course: Course) -> tuple[list[list[str]], str]:
    """All tools at the same weights, and at some of them the truth in float64."""
    model, optimizer, problem, descend = _begin(course)
    tracker = sm.Tracker(problem, ["sharpness"], every=course.every)
    tallies = {name: Tally() for name in ("tracker, warm", "spherometer, cold", "PyHessian")}
    tracked = 0
    for step in range(1, course.steps + 1):
        loss = descend()
        before, began = len(tracker.rows), time.perf_counter()
        tracker.step(optimizer, loss)
        seconds = time.perf_counter() - began
        if len(tracker.rows) == before:
            continue
        tracked += 1
        row = tracker.series("sharpness")[-1]
        ours = Outcome(row.value or 0.0, row.products, row.error)
        if tracked <= WARM:
            continue
        truth = _truth(problem) if tracked % course.truth_every == 0 else None
        setting = Setting(course.name, model, sm.HalfSquaredError(), *problem.data, "")
        _note(tallies["tracker, warm"], seconds, ours, truth)
        _timed(tallies["spherometer, cold"], partial(_cold, problem, step), truth)
        _timed(tallies["PyHessian"], partial(peers.pyhessian_eigenvalue, setting, step), truth)
        if truth is not None:
            console.print(f"  tracking {course.name}: step {step}, sharpness {truth:.4g}", style="dim")
    ratios = [row.value or 0.0 for row in tracker.series("stability_ratio")]
    edge = next((event.step for event in tracker.events if event.name == "edge of stability"), None)
    remark = (
        f"{course.name}, {course.samples} samples, full-batch gradient descent, lr {course.learning_rate:g}, "
        f"{course.steps} steps, tracked every {course.every}: the sharpness over 2/lr goes from {ratios[0]:.2f} to a "
        f"largest {max(ratios):.2f}; the edge is reached at step {edge}."
    )
    return _rows(course.name, tallies), remark


def _truth(problem: sm.Problem) -> float:
    return float(sm.eigenvalues(sm.Hessian(problem.in_dtype(torch.float64)), num=2, rtol=1e-4).value[0])


def _cold(problem: sm.Problem, seed: int) -> Outcome:
    found = sm.eigenvalues(sm.Hessian(problem), rtol=0.01, seed=seed)
    return Outcome(float(found.value[0]), found.products, float(found.error[0]))


def _timed(tally: Tally, run: Callable[[], Outcome], truth: float | None) -> None:
    began = time.perf_counter()
    outcome = run()
    _note(tally, time.perf_counter() - began, outcome, truth)
    gc.collect()  # what a tool leaves behind is not the next one's to clear away


def _note(tally: Tally, seconds: float, outcome: Outcome, truth: float | None) -> None:
    tally.seconds.append(seconds)
    tally.products.append(outcome.products or 0)
    if truth is not None:
        tally.errors.append(abs(outcome.value / truth - 1))
    if outcome.stated is not None:
        tally.stated.append(outcome.stated / abs(outcome.value))


def _rows(network: str, tallies: dict[str, Tally]) -> list[list[str]]:
    unit = statistics.median(tallies["tracker, warm"].seconds)
    wanted = {"tracker, warm": "≤ 3 products", "PyHessian": "≥ 4"}
    return [
        [
            network, tool, f"{statistics.median(tally.products):g}", f"{statistics.fmean(tally.products):.1f}",
            f"{statistics.median(tally.seconds):.3f}", f"{statistics.median(tally.seconds) / unit:.1f}",
            wanted.get(tool, ""), f"{max(tally.errors):.0e}", f"{max(tally.stated):.0e}" if tally.stated else "none",
        ]
        for tool, tally in tallies.items()
    ]  # fmt: skip


def _budget(course: Course) -> str:
    _, optimizer, problem, descend = _begin(course)
    tracker = sm.Tracker(problem, ["sharpness"], every=1, budget=0.1)
    steps = 12 * course.steps  # a few measurements must be paid off: one costs as much as tens of training steps
    for _ in range(steps):
        tracker.step(optimizer, descend())
    number = len(tracker.series("sharpness"))
    return (
        f"{course.name}, {course.samples} samples, with `budget=0.1` and every=1: {100 * tracker.overhead:.1f} % of "
        f"the training time over {steps} steps, {number} of them measured."
    )


def _idle() -> str:
    problem = sm.Problem(nn.Linear(2, 2), nn.MSELoss(), (torch.zeros(2, 2), torch.zeros(2, 2)))
    optimizer = torch.optim.SGD(problem.model.parameters(), lr=0.1)
    tracker = sm.Tracker(problem, ["loss"], every=10**9, budget=0.1)
    tracker.step(optimizer, 1.0)
    rounds = []
    for _ in range(20):
        began = time.perf_counter()
        for _ in range(1000):
            tracker.step(optimizer, 1.0)
        rounds.append((time.perf_counter() - began) / 1000)
    return (
        f"A step at which nothing is measured costs {1e6 * statistics.median(rounds):.1f} microseconds (wanted: < 20)."
    )
