"""Paper C, App J: the path of the weights in the plane (C-F3, F27)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import nan
from typing import Any

import numpy as np

from spherometer.figures.panels import Panel, Panels, Series
from spherometer.figures.trajectory import flattened
from spherometer.recipes.claims import AnyClaim, Claim
from spherometer.recipes.papers.c_runs import (
    DESCENT_SAMPLES,
    STAND_IN,
    departures,
    descent_length,
    descent_rates,
    descent_run,
    seeds,
)
from spherometer.recipes.recipe import Experiment, Scale, at_scale, recipe, variant
from spherometer.recipes.results import Results

RATE = 0.04
SHADES = 5  # pieces of the path with a colour of their own


@recipe(
    "C-F3",
    "the path of the weights begins to oscillate",
    finding="UMAP of θ_t: oscillation after about 100 steps",
    minutes=3,
)
def trajectory(scale: Scale, *, all_networks: bool = False) -> Experiment:
    """The first 500 steps of C-F1's runs in two dimensions and a part of them; C Fig 3, App J, L30; C Fig 27."""
    (rate,) = descent_rates(scale, [RATE])
    whole = at_scale(scale, smoke=20, laptop=500, paper=500)
    zoom = at_scale(scale, smoke=(8, 16), laptop=(100, 300), paper=(100, 300))
    networks = {"cnn6": (whole, zoom)}
    if all_networks:
        double = at_scale(scale, smoke=20, laptop=500, paper=1000)
        networks |= {"vgg11": (double, None), "fcn3": (double, None)}
    return Experiment(
        runs=[descent_run(scale, network, rate, seed) for network in networks for seed in seeds(scale)],
        claims=_claims(zoom, networks),
        figure=partial(_figure, networks=networks),
        departures=departures(
            scale,
            "cnn6",
            "256 random projections of θ_t; principal components where umap-learn is not installed",
            "oscillation is judged by the cosine of successive steps: chosen here",
            *(_others(networks) if scale == "laptop" else []),
            descent=True,
            length=[] if scale == "smoke" else [descent_length(scale, *networks)],
        ),
    )


def _others(networks: Mapping[str, tuple[int, Any]]) -> list[str]:
    """What stands for the networks of C Fig 27, and how much of their paths is shown."""
    return [
        f"{STAND_IN[network].format(num=f'{DESCENT_SAMPLES:,}')}; {shown:,} steps of its path instead of 1,000"
        for network, (shown, _) in networks.items()
        if network != "cnn6"
    ]


def _claims(zoom: tuple[int, int], networks: Mapping[str, tuple[int, Any]]) -> list[AnyClaim]:
    source = "C-F27" if len(networks) > 1 else "C-F3"
    turning: list[AnyClaim] = [
        Claim(
            "steps turn back on themselves after the first part of the path",
            lambda results: [-cosine for cosine in _turning(results, "cnn6", *zoom)],
            unit="−cos between successive steps, mean over the zoomed part",
            source=source,
        ),
        Claim(
            "they do not at the beginning",
            lambda results: _turning(results, "cnn6", 0, zoom[0] // 4),
            unit="cos between successive steps, mean over the first steps",
            source=source,
        ),
    ]
    if len(networks) == 1:
        return turning
    shown = networks["vgg11"][0]
    return [
        *turning,
        Claim(
            "steps of the deeper network turn back on themselves too, in the second half of its path",
            lambda results: [-cosine for cosine in _turning(results, "vgg11", shown // 2, shown)],
            unit="−cos between successive steps, mean over that half",
            source=source,
        ),
        Claim(
            "on the easy task there is no oscillation",
            lambda results: _least_turning(results, "fcn3", zoom, shown),
            unit="cos between successive steps: mean over each part as long as the zoomed one, the least",
            source=source,
        ),
    ]


def _places(results: Results, network: str, low: int, high: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Steps (T,) and projected weights (T, k) of each seed between two steps."""
    found = []
    for arrays in results.arrays("trajectory", network=network):
        steps = [step for step in sorted(arrays) if low <= step <= high]
        found.append((np.array(steps), np.stack([arrays[step] for step in steps]) if steps else np.zeros((0, 0))))
    return found


def _turning(results: Results, network: str, low: int, high: int) -> list[float]:
    """Mean cosine between successive updates: 1 on a straight path, −1 where each undoes the one before."""
    found = []
    for _, points in _places(results, network, low, high):
        moves = np.diff(points, axis=0)
        if len(moves) < 2:
            found.append(nan)
            continue
        lengths = np.linalg.norm(moves, axis=1)
        cosines = (moves[1:] * moves[:-1]).sum(1) / (lengths[1:] * lengths[:-1])
        found.append(float(np.nanmean(cosines)))
    return found


def _least_turning(results: Results, network: str, zoom: tuple[int, int], end: int) -> list[float]:
    """The least mean cosine of the parts, each as long as the zoomed one, from its beginning to the end of the path."""
    low, high = zoom
    rows = [_turning(results, network, start, start + high - low) for start in range(low, end, high - low)]
    return [float(min(column)) for column in zip(*rows, strict=True)]


def _figure(results: Results, *, networks: dict[str, tuple[int, tuple[int, int] | None]]) -> Panels:
    panels = []
    for network, (whole, zoom) in networks.items():
        panels.append(_panel(results, network, 0, whole))
        if zoom is not None:
            panels.append(_panel(results, network, *zoom))
    return Panels(
        panels,
        columns=2,
        caption="One run of gradient descent; colours follow the steps. Networks by their names in the paper.",
    )


def _panel(results: Results, network: str, low: int, high: int) -> Panel:
    steps, points = _places(results, network, low, high)[0]
    places, label = _flat(points)
    series = []
    for piece in np.array_split(np.arange(len(steps)), SHADES):
        joined = np.append(piece, piece[-1] + 1) if piece[-1] + 1 < len(steps) else piece
        name = f"steps {int(steps[piece[0]])}-{int(steps[piece[-1]])}"
        series.append(Series(name, places[joined, 0], places[joined, 1]))
    return Panel(f"{network}, steps {low}-{high}", label, "", series)


def _flat(points: np.ndarray) -> tuple[np.ndarray, str]:
    try:
        return flattened(points, "umap")
    except ImportError:
        return flattened(points, "pca")


variant(
    "C-F27",
    trajectory,
    "paths of the weights oscillate, but not on an easy task",
    finding="oscillation for 6CNN and VGG, absent for MNIST",
    minutes=6,
    all_networks=True,
)
