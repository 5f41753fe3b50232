"""Paper B, App G: the four bounds between sensitivity and sharpness over training (B-FG4)."""

from __future__ import annotations

from itertools import pairwise
from math import nan

import numpy as np

from spherometer.figures.panels import Panel, Panels, over_seeds
from spherometer.recipes.claims import AnyClaim, Claim, Inequality
from spherometer.recipes.margins import every
from spherometer.recipes.papers.b_interpolation import departures_of, seeds_of, train
from spherometer.recipes.recipe import Experiment, Scale, recipe
from spherometer.recipes.results import Results

CHAIN = ("A", "B", "C", "D")


@recipe(
    "B-FG4",
    "from sensitivity to sharpness in four steps",
    finding="A ≤ B ≤ C ≤ D throughout training, and the gap from C to D is much the largest",
    minutes=1,
)
def chain(scale: Scale) -> Experiment:
    """The bounds of Eq 48 over the training of a fully connected network; Q84, T31, 5.3 item 5."""
    claims: list[AnyClaim] = [
        Inequality(
            f"{low} ≤ {high} at every measurement",
            lambda results, low=low, high=high: _steps(results, low, high),  # type: ignore[misc]
            source="B-FG4; T31; 5.3 item 5",
        )
        for low, high in pairwise(CHAIN)
    ]
    claims.append(
        Claim("the step from C to D is the largest", _last_gap, unit="ln of a factor", source="B-FG4; 5.3 item 5")
    )
    runs = [train(scale, "mlp4", {"seed": seed}, rate=0.1, batch=20) for seed in seeds_of(scale)]
    return Experiment(runs, claims, _chain_figure, departures_of(scale, "mlp4"))


def _parts(results: Results) -> list[dict[str, np.ndarray]]:
    """A, B, C and D at every measurement, one dictionary for each seed."""
    tables = [results.curve("mls_chain", part=part) for part in CHAIN]
    return [{part: curve[1] for part, curve in zip(CHAIN, curves, strict=True)} for curves in zip(*tables, strict=True)]


def _steps(results: Results, low: str, high: str) -> list[float]:
    return every(np.log(run[high] / run[low]) for run in _parts(results))


def _last_gap(results: Results) -> list[float]:
    """ln(D/C) less the larger of ln(B/A) and ln(C/B), a mean over training."""
    found = []
    for run in _parts(results):
        gaps = [np.log(run[high] / run[low]) for low, high in pairwise(CHAIN)]
        found.append(float((gaps[2] - np.maximum(gaps[0], gaps[1])).mean()) if len(gaps[2]) else nan)
    return found


def _chain_figure(results: Results) -> Panels:
    series = [over_seeds(results.curve("mls_chain", part=part), part) for part in CHAIN]
    losses = [over_seeds(results.curve("train_loss"), "training loss")]
    return Panels(
        [
            Panel("A ≤ B ≤ C ≤ D", "iteration", "output / input", series, log_y=True),
            Panel("training loss", "iteration", "training loss", losses, log_y=True),
        ],
        columns=2,
        caption="A is MLS, D its bound by the sharpness √S (Eq 48); mean and standard deviation over seeds.",
    )
