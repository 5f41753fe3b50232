"""Paper B: vanilla SGD on squared error beyond interpolation (B-F1, B-F2, B-FH8, B-FH9)."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from spherometer.figures.panels import Panel, Panels, over_seeds
from spherometer.recipes.claims import AnyClaim, Claim, Near
from spherometer.recipes.interpolation import (
    INTERPOLATED,
    by_seed,
    correlation,
    early_fall,
    fall_after_interpolation,
    late_fall,
)
from spherometer.recipes.margins import falling_throughout, rising_throughout
from spherometer.recipes.papers.b_learners import FASTER, LEARNERS, STAND_INS, open_choices, rate_at
from spherometer.recipes.recipe import Experiment, Scale, at_scale, recipe, variant
from spherometer.recipes.results import Results, Run, training_run

RATES, BATCHES = (0.05, 0.1, 0.2), (8, 20, 32)
STALLED = 0.1  # of ln S over the last half of training
STAYS = f"S 'stays as it is' within {STALLED:g} of its logarithm: chosen here"


def train(scale: Scale, network: str, labels: dict[str, Any], *, rate: float, batch: int) -> Run:
    """Vanilla SGD on half squared error; what paper B plots is measured on 100 training samples."""
    quantities = ["nmls", "jacobian_sharpness", "log_volume", "mls", "participation_ratio"]
    steps = _steps(scale)
    return training_run(
        labels,
        **LEARNERS[network][scale],
        objective={"loss": "half-squared-error"},
        method={"learning_rate": rate_at(scale, network, rate)},
        loop={
            "steps": steps,
            "batch_size": batch,
            "evaluate_every": steps // at_scale(scale, smoke=6, laptop=20, paper=500),
        },
        measurement={
            "track": [*quantities, "mls_chain"] if network == "mlp4" else quantities,
            "track_every": steps // at_scale(scale, smoke=6, laptop=20, paper=500),
            "track_num": at_scale(scale, smoke=20, laptop=100, paper=100),
        },
    )


def _steps(scale: Scale) -> int:
    return at_scale(scale, smoke=60, laptop=3000, paper=100_000)


@recipe(
    "B-F1",
    "higher learning rates compress more",
    finding="after interpolation sharpness and volume fall together; a higher rate gives lower S, volume, MLS and NMLS",
    minutes=5,
)
def over_rates(scale: Scale, *, network: str = "vgg11") -> Experiment:
    """Batch 20, three learning rates; 5.3 item 5."""
    runs = [
        train(scale, network, {"rate": rate_at(scale, network, rate), "seed": seed}, rate=rate, batch=20)
        for rate in RATES
        for seed in seeds_of(scale)
    ]
    name = "B-F1" if network == "vgg11" else "B-FH9"
    claims = _ordered("a higher learning rate", partial(falling_throughout, over="rate"), f"{name}; 5.3 item 5")
    if network == "vgg11":
        claims += _falls_together(name)
    return Experiment(runs, claims, partial(_figure, over="rate", shown="lr"), departures_of(scale, network))


@recipe(
    "B-F2",
    "smaller batches compress more",
    finding="a smaller batch gives lower S and volume; with the largest S stalls while the volume keeps falling",
    minutes=5,
)
def over_batches(scale: Scale, *, network: str = "vgg11") -> Experiment:
    """Learning rate 0.1, three batch sizes; 5.3 item 5."""
    runs = [
        train(scale, network, {"batch": batch, "seed": seed}, rate=0.1, batch=batch)
        for batch in BATCHES
        for seed in seeds_of(scale)
    ]
    name = "B-F2" if network == "vgg11" else "B-FH8"
    claims = _ordered("a smaller batch", partial(rising_throughout, over="batch"), f"{name}; 5.3 item 5")
    claims += _stalls(name, batch=BATCHES[-1]) if network == "vgg11" else [*_stalls(name), *_tracks(name)]
    return Experiment(
        runs, claims, partial(_figure, over="batch", shown="batch"), [*departures_of(scale, network), STAYS]
    )


def seeds_of(scale: Scale) -> range:
    """Five initialisations, as in the paper."""
    return range(at_scale(scale, smoke=2, laptop=5, paper=5))


def _volume(results: Results, **labels: Any) -> list[float]:
    return [float(np.exp(value)) for value in results.final("log_volume", **labels)]


def _ordered(cause: str, margins: Any, source: str) -> list[AnyClaim]:
    words = {"jacobian_sharpness": "S", "mls": "MLS", "nmls": "NMLS", _volume: "local volume"}
    return [
        Claim(
            f"{cause} ends with a smaller {word}",
            lambda results, name=name: margins(results, name),  # type: ignore[misc]
            unit="ln of the factor at the weakest step",
            source=source,
        )
        for name, word in words.items()
    ]


def _falls_together(source: str) -> list[AnyClaim]:
    unit = "ln of the factor"
    return [
        Claim(
            "S falls after interpolation",
            partial(fall_after_interpolation, name="jacobian_sharpness"),
            unit=unit,
            source=source,
        ),
        Claim(
            "the volume falls after interpolation",
            partial(fall_after_interpolation, name="log_volume"),
            unit=unit,
            source=source,
        ),
        Claim("D_PR falls before interpolation", early_fall, unit="dimensions", source=source),
    ]


def _stalls(source: str, **labels: Any) -> list[AnyClaim]:
    where = f" with batch {labels['batch']}" if labels else ""
    return [
        Near(
            f"S stays as it is in the last half{where}",
            lambda results: [-fall for fall in late_fall(results, "jacobian_sharpness", **labels)],
            target=0.0,
            tolerance=STALLED,
            unit="ln of the factor",
            source=source,
        ),
        Claim(
            f"the volume keeps falling in the last half{where}",
            lambda results: late_fall(results, "log_volume", **labels),
            unit="ln of the factor",
            source=source,
        ),
    ]


def _tracks(source: str) -> list[AnyClaim]:
    return [
        Claim(
            f"{word} rises and falls with √S during training",
            lambda results, name=name: by_seed(results, lambda curves: correlation(curves, name)),  # type: ignore[misc]
            unit="correlation over time",
            source=source,
        )
        for name, word in (("mls", "MLS"), ("nmls", "NMLS"))
    ]


def _figure(results: Results, *, over: str, shown: str) -> Panels:
    def panel(title: str, name: str, *, root: bool = False, log_y: bool = False) -> Panel:
        series = []
        for level in results.values(over):
            curves = results.curve(name, **{over: level})
            series.append(over_seeds([(x, np.sqrt(y)) for x, y in curves] if root else curves, f"{shown} {level:g}"))
        return Panel(title, "iteration", title, series, log_y=log_y)

    return Panels(
        [
            panel("training loss", "train_loss", log_y=True),
            panel("NMLS", "nmls"),
            panel("√S", "jacobian_sharpness", root=True),
            panel("log volumetric ratio", "log_volume"),
            panel("MLS", "mls"),
            panel("local dimension D_PR", "participation_ratio"),
        ],
        caption="Vanilla SGD on squared error; mean and standard deviation over seeds.",
    )


def departures_of(scale: Scale, network: str) -> list[str]:
    """What differs from the paper, and what its text leaves open."""
    chosen = [
        "log volume is the mean over samples of ½ log det (the text leaves it open)",
        f"interpolation begins where the training loss is below {INTERPOLATED:g}: chosen here",
    ]
    if network == "vgg11":
        chosen.append("one output for each of the two classes, compared with one-hot targets (not in the text)")
    if scale == "paper":
        return [*chosen, *open_choices(network)]
    faster = f", learning rates {FASTER[network]} times the paper's" if FASTER[network] > 1 else ""
    return [STAND_INS[network], f"{_steps(scale):,} iterations{faster}", *chosen]


variant(
    "B-FH8",
    over_batches,
    "smaller batches compress more, fully connected",
    finding="a smaller batch gives lower S, MLS and NMLS follow; S stays level at the end, the volume falls slowly",
    minutes=3,
    network="mlp4",
)
variant(
    "B-FH9",
    over_rates,
    "higher learning rates compress more, fully connected",
    finding="a higher learning rate gives lower S",
    minutes=3,
    network="mlp4",
)
