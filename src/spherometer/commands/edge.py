"""The experiment of the demo: gradient descent climbs to the edge of stability, sharpness is measured on the way."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from torch.optim import SGD

from spherometer.estimators import SpectralDensity, spectral_density
from spherometer.metrics import Measurements, measure
from spherometer.operators import Hessian
from spherometer.problems import HalfSquaredError, Problem
from spherometer.records import RunWriter
from spherometer.training import Tracker, gradient_descent
from spherometer.training.tracking import Every
from spherometer.zoo import build_model, load_data, rescale_inputs

LEARNING_RATE = 0.1
NUM_SAMPLES = 1000
RTOL = 0.01  # of the tracked sharpness, certified
METRICS = (
    "loss",
    "gradient_norm",
    "sharpness",
    "top_eigenvalues:num=10",
    "gauss_newton_norm",
    "residual_norm",
    "smallest_eigenvalue",
    "hessian_trace",
    "hessian_frobenius",
    "critical_sharpness",
    f"stability_threshold:lr={LEARNING_RATE}",
    "gradient_ratio",
)


@dataclass(frozen=True)
class Row:
    """What was seen at one step: the loss, and the sharpness with a bound on its error."""

    step: int
    loss: float
    sharpness: float
    error: float
    products: int


@dataclass(frozen=True, eq=False)
class Edge:
    """A run to the edge of stability: the rows of the way, and the measurements and the spectrum at its end."""

    rows: list[Row]
    measurements: Measurements
    spectrum: SpectralDensity
    seed: int
    data: str
    seconds: float

    @property
    def threshold(self) -> float:
        """2/η, beyond which gradient descent is unstable on a quadratic."""
        return 2 / LEARNING_RATE

    @property
    def crossing(self) -> int | None:
        """The first measured step at which the sharpness was at the threshold or above."""
        return next((row.step for row in self.rows if row.sharpness >= self.threshold), None)

    @property
    def plateau(self) -> list[float]:
        """Sharpness over threshold in the last third of the run."""
        late = [row.sharpness / self.threshold for row in self.rows if 3 * row.step >= 2 * self.rows[-1].step]
        return late if self.crossing is not None else []

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "learning_rate": LEARNING_RATE,
            "threshold": self.threshold,
            "crossing": self.crossing,
            "plateau": {"mean": fmean(self.plateau), "deviation": pstdev(self.plateau)} if self.plateau else None,
            "data": self.data,
            "seconds": self.seconds,
            "rows": [asdict(row) for row in self.rows],
            **self.measurements.to_dict(),
        }


def reach_edge(
    *, num_steps: int, every: int, seed: int, watch: Callable[[Row], None] = lambda _: None, run: Path | None = None
) -> Edge:
    """Train tanh 64-64-64-10 on a thousand digits with ½‖f − y‖²; measure once in so many steps, more at the end.

    Args:
        run: folder that keeps the run, and is shown on a live page meanwhile.
    """
    began = time.perf_counter()
    dataset = rescale_inputs(load_data("digits", num=NUM_SAMPLES), -1, 1)
    problem = Problem(build_model("digits-mlp", seed=seed), HalfSquaredError(), dataset.tensors)
    rows: list[Row] = []
    settings = {"learning_rate": LEARNING_RATE, "steps": num_steps, "every": every}
    with nullcontext() if run is None else RunWriter(run, settings=settings, seed=seed, title="demo") as kept:
        tracker = Tracker(
            problem,
            "sharpness",
            Every(every) | Every(num_steps),
            run=kept,
            watch=kept is not None,
            rtol=RTOL,
            on_error="raise",
            seed=seed,
        )
        optimizer = SGD(problem.model.parameters(), lr=LEARNING_RATE)  # never steps: the tracker reads the rate off it
        for step in gradient_descent(problem, learning_rate=LEARNING_RATE, num_steps=num_steps):
            tracker.step(optimizer, step.loss, step=step.number)
            if (top := tracker.series("sharpness")[-1]).step == step.number:
                assert top.value is not None
                assert top.error is not None
                rows.append(Row(step.number, step.loss, top.value, top.error, top.products))
                watch(rows[-1])
    return Edge(
        rows,
        measure(problem, METRICS, seed=seed),
        spectral_density(Hessian(problem), num_vectors=8, num_steps=80, seed=seed),
        seed,
        f"{dataset.name}: {dataset.note}",
        time.perf_counter() - began,
    )


def reading(edge: Edge) -> str:
    """What the run shows, in plain words."""
    first, last, goal = edge.rows[0], edge.rows[-1], edge.threshold
    if edge.crossing is None:
        return (
            f"The sharpness went from {first.sharpness:.3g} to {last.sharpness:.3g} in {last.step} steps and has not "
            f"reached 2/lr = {goal:g}: gradient descent was stable all the way. More steps will bring it there."
        )
    text = (
        f"The sharpness, the largest eigenvalue of the Hessian, rose from {first.sharpness:.3g} to 2/lr = {goal:g} at "
        f"step {edge.crossing}. On a quadratic any sharper than that gradient descent would diverge. Here it does not: "
    )
    if len(edge.plateau) > 10:
        off, spread = 100 * (fmean(edge.plateau) - 1), 100 * pstdev(edge.plateau)
        where = f"{abs(off):.1f} % {'above' if off > 0 else 'below'} 2/lr"
        text += f"in the last third of the run the sharpness was {where}, give or take {spread:.1f} %, and "
    return f"{text}the loss went from {first.loss:.3g} to {last.loss:.3g}. This is the edge of stability."
