"""Paper C: runs whose logit eigenvectors, class means and alignments are measured (C-F8 .. F11, F30 .. F34)."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan
from typing import Any

import numpy as np

from spherometer.recipes.papers.c_runs import DESCENT_SAMPLES, descent_rates, descent_steps, plain_run, rates
from spherometer.recipes.recipe import Scale
from spherometer.recipes.results import Run

TRACKED = (
    "sharpness",
    "impurity",
    "impurity_matrix",
    "gradient_alignment",
    "sample_alignment",
    "logit_alignment",
    "subspace_alignment",
    "mean_resultant_length",
    "class_mean_cosines",
    "eigen_length_histogram",
    "eigen_cosine_histogram",
    "gauss_newton_trace_approximation",
)
EVERY = {  # steps between two measurements
    "cnn6": {"smoke": 2, "laptop": 25, "paper": 100},
    "vgg11": {"smoke": 2, "laptop": 25, "paper": 25},
}
RATE = {"cnn6": 0.04, "vgg11": 0.08}
MATRIX_STEPS: dict[str, tuple[int, ...]] = {  # C Fig 30; C Fig 8 is the third
    "smoke": (2, 4, 8, 12, 16, 20),
    "laptop": (25, 50, 100, 200, 350, 500),
    "paper": (100, 500, 1000, 2000, 4000, 6000),
}
COSINE_STEPS: dict[str, tuple[int, ...]] = {  # C Fig 32; C Fig 9 is the second
    "smoke": (4, 8, 12, 14, 16, 20),
    "laptop": (50, 100, 150, 200, 300, 400),
    "paper": (500, 1000, 1500, 2000, 3000, 4000),
}


def geometry_settings(scale: Scale, network: str) -> dict[str, Any]:
    """Full-batch gradient descent at the rate of the network's alignment figure."""
    (rate,) = rates(scale, [RATE[network]])
    return {"rate": rate, "steps": descent_steps(scale, network)}


def descent_said(scale: Scale) -> str:
    """Which gradient descent: that of C-F1, but not at laptop scale, where that has more samples."""
    rate, first = geometry_settings(scale, "cnn6")["rate"], descent_rates(scale, [RATE["cnn6"]])[0]
    if rate == first:
        return "gradient descent as in C-F1: the setting is not in the text"
    return (
        f"gradient descent with η = {rate:g} (C-F1 here: {first:g}, on {DESCENT_SAMPLES:,} images): the setting is not "
        "in the text"
    )


def geometry_run(scale: Scale, network: str, seed: int) -> Run:
    """A run measured in every way of C App D, as often as C Fig 34 is (25 steps there)."""
    return plain_run(
        scale,
        network,
        {"network": network, "seed": seed},
        **geometry_settings(scale, network),
        track=list(TRACKED),
        track_every=EVERY[network][scale],
    )


def matrix_of(entries: dict[int, dict[str, float]], step: int) -> np.ndarray:
    """The square matrix of a step, whose rows were written row by row; nan of size 10 where it was not measured."""
    found = entries.get(step)
    if not found:
        return np.full((10, 10), nan)
    values = np.array([found[str(place)] for place in range(len(found))])
    size = round(len(values) ** 0.5)
    return values.reshape(size, size)


def mean_matrix(matrices: Sequence[np.ndarray]) -> np.ndarray:
    """Entry by entry over the seeds that have one: a class that a seed never predicts has no cosines there."""
    return np.asarray(np.ma.masked_invalid(np.stack(matrices)).mean(0).filled(nan))


def by_class(entries: dict[str, float]) -> dict[int, tuple[int, float]]:
    """{class: (samples predicted as it, value)} from the labels "class 3 (n=57)" of one step."""
    found = {}
    for label, value in entries.items():
        _, number, size = label.split()
        found[int(number)] = (int(size[3:-1]), value)
    return found
