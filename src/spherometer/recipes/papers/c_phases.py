"""Paper C, Sec 5: the three phases of ‖⟨J⟩‖² and what step and batch size do to them (C-F4, F5, F28)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import log, nan
from typing import Any

import numpy as np

from spherometer.figures.panels import Line, Panel, Panels, over_seeds
from spherometer.recipes.claims import Claim
from spherometer.recipes.margins import falling, rising
from spherometer.recipes.papers.c_curves import (
    IMPURE,
    NORM,
    combined,
    correlation,
    end_of_regularisation,
    mean_within,
    plateau,
    regularisation_period,
    square,
    value_at,
)
from spherometer.recipes.papers.c_runs import SCALARS, batches, departures, plain_run
from spherometer.recipes.recipe import Experiment, Scale, at_scale, recipe, variant
from spherometer.recipes.results import Curve, Results, Run

RATES, SIZES = (0.01, 0.02, 0.03), (128, 64, 32)
SMOOTH = {"smoke": 2, "laptop": 5, "paper": 20}
EPOCHS = {"smoke": 5, "laptop": 40, "paper": 150}
MOST_STEPS = 100_000  # Setting 1
FASTER = {"smoke": 5, "laptop": 8, "paper": 1}  # so fast that noise holds the sharpness down, as in the paper


def phase_run(scale: Scale, rate: float, batch: int, seed: int) -> Run:
    """6CNN by SGD until it has fitted its data, tracked evenly: C-F4, F5, F28."""
    samples = at_scale(scale, smoke=100, laptop=500, paper=50_000)
    steps = min(EPOCHS[scale] * samples // batch, MOST_STEPS)
    labels = {"rate": rate, "batch": batch, "seed": seed}
    every = max(1, steps // at_scale(scale, smoke=10, laptop=40, paper=1000))
    return plain_run(scale, "cnn6", labels, rate=rate, batch=batch, steps=steps, track=list(SCALARS), track_every=every)


def _seeds(scale: Scale) -> range:
    """More than elsewhere: noise decides when a run is over."""
    return range(at_scale(scale, smoke=2, laptop=6, paper=6))


def _rates(scale: Scale) -> list[float]:
    return [FASTER[scale] * rate for rate in RATES]


def usual_runs(scale: Scale) -> list[Run]:
    """B = 128, η = 0.01."""
    return [phase_run(scale, _rates(scale)[0], batches(scale, SIZES)[0], seed) for seed in _seeds(scale)]


@recipe(
    "C-F4",
    "the Jacobian norm has three phases",
    finding="rise, active regularisation while ⟨λ⁽¹⁾⟩ is large, growth after ⟨λ⁽¹⁾⟩ < 0.25",
    minutes=3,
)
def phases(scale: Scale, *, inverse: bool = False) -> Experiment:
    """‖⟨J⟩‖², ‖H‖ and ⟨λ⁽¹⁾⟩ over SGD; with 1/⟨λ⁽¹⁾⟩ in C Fig 28. C Fig 4, 5.3 item 6."""
    source = "C-F4; 5.3 item 6"
    claims = [
        Claim(
            "phase I: the sharpness rises from the start",
            partial(_margin, what=_first_rise),
            unit="ln of its mean over the second half of the time to the end of the ARP over its first value",
            source=source,
        ),
        Claim(
            "phase II: ⟨λ⁽¹⁾⟩ is n-shaped, and the period ends when it falls below 0.25",
            partial(_margin, what=_hump),
            least=0.05,
            unit="height of the peak above the higher end; nan where 0.25 is never crossed",
            source=source,
        ),
        Claim(
            "phase III: ‖⟨J⟩‖² grows from the end of the period on",
            partial(_margin, what=_last_rise),
            unit="ln of ‖⟨J⟩‖² at the end of training over that at the end of the ARP",
            source=source,
        ),
        Claim(
            "‖⟨J⟩‖² grows faster after the period than in it",
            partial(_margin, what=_speeding),
            unit="growth per step after less growth per step within, over the larger of both",
            source=source,
        ),
    ]
    follows = Claim(
        "after the period, ‖⟨J⟩‖² grows the faster the larger 1/⟨λ⁽¹⁾⟩ is",
        partial(_margin, what=_following),
        unit="correlation of 1/⟨λ⁽¹⁾⟩ with the growth per step, from the impurity's peak on",
        source="C-F28",
    )
    return Experiment(
        runs=usual_runs(scale),
        claims=[follows] if inverse else claims,
        figure=partial(_figure, inverse=inverse),
        departures=departures(scale, "cnn6", *_lengths(scale), faster=FASTER, num_seeds="six"),
    )


def _lengths(scale: Scale) -> list[str]:
    said = ["phase II begins where the sharpness has reached 90 % of its highest value: chosen here"]
    said += ["six seeds"] if scale == "laptop" else []
    return [*said, f"{EPOCHS[scale]} epochs, at most {MOST_STEPS:,} steps: the text says until convergence, below that"]


def _margin(results: Results, *, what: Any) -> list[float]:
    """`what` of the curves of impurity, sharpness and ‖⟨J⟩‖² of each seed."""
    curves = zip(*(results.curve(name) for name in ("impurity", "sharpness", NORM)), strict=True)
    return [what(*three) if len(three[0][0]) else nan for three in curves]


def _first_rise(impurity: Curve, sharpness: Curve, _: Curve) -> float:
    """A mean over fixed steps: a highest value would be above the first by noise alone."""
    end, start = regularisation_period(impurity, sharpness)[1], sharpness[1][0] if len(sharpness[1]) else nan
    late = mean_within(sharpness, end / 2, end)
    return log(late / start) if late > 0 and start > 0 else nan


def _hump(impurity: Curve, _: Curve, __: Curve) -> float:
    values = impurity[1]
    crossed = np.isfinite(end_of_regularisation(impurity))
    return float(values.max() - max(values[0], values[-1])) if crossed else nan


def _last_rise(impurity: Curve, _: Curve, norm: Curve) -> float:
    squares = square(norm)
    start = value_at(squares, end_of_regularisation(impurity))
    return log(squares[1][-1] / start) if start > 0 else nan


def _speeding(impurity: Curve, sharpness: Curve, norm: Curve) -> float:
    (low, end), squares = regularisation_period(impurity, sharpness), square(norm)
    last = float(squares[0][-1])
    if not low < end < last:
        return nan
    heights = [value_at(squares, step) for step in (low, end, last)]
    within, after = (heights[1] - heights[0]) / (end - low), (heights[2] - heights[1]) / (last - end)
    return (after - within) / max(abs(after), abs(within))


def _following(impurity: Curve, _: Curve, norm: Curve) -> float:
    """Growth between two points against 1/⟨λ⁽¹⁾⟩ at their middle, from the peak of the impurity on."""
    peak = impurity[0][np.nanargmax(impurity[1])]
    steps, both = combined(impurity, square(norm), lambda one, other: np.stack([1 / one, other], 1))
    both, steps = both[steps >= peak], steps[steps >= peak]
    if len(steps) < 6:
        return nan
    growth = np.diff(both[:, 1]) / np.diff(steps)
    return correlation(np.stack([(both[1:, 0] + both[:-1, 0]) / 2, growth], 1))


def _figure(results: Results, *, inverse: bool) -> Panels:
    squares = [square(curve) for curve in results.curve(NORM)]
    ends = [end_of_regularisation(curve) for curve in results.curve("impurity")]
    known = [end for end in ends if np.isfinite(end)]
    mark = [Line("end of the ARP (mean)", x=float(np.mean(known)))] if known else []
    rate = results.values("rate")[0]
    panels = [
        Panel("‖⟨J⟩‖²", "step", "‖⟨J⟩‖²", [over_seeds(squares, "‖⟨J⟩‖²")], lines=mark),
        Panel(
            "‖H‖",
            "step",
            "‖H‖",
            [over_seeds(results.curve("sharpness"), "‖H‖")],
            lines=[*mark, Line("2/η", y=2 / rate)],
        ),
        Panel(
            "⟨λ⁽¹⁾⟩",
            "step",
            "⟨λ⁽¹⁾⟩",
            [over_seeds(results.curve("impurity"), "⟨λ⁽¹⁾⟩")],
            lines=[*mark, Line("", y=IMPURE)],
        ),
    ]
    if inverse:
        turned = [(steps, 1 / values) for steps, values in results.curve("impurity")]
        panels.append(Panel("1/⟨λ⁽¹⁾⟩", "step", "1/⟨λ⁽¹⁾⟩", [over_seeds(turned, "1/⟨λ⁽¹⁾⟩")], lines=mark))
    return Panels(panels, columns=2 if inverse else 3, caption="SGD; mean and standard deviation over seeds.")


variant(
    "C-F28",
    phases,
    "the Jacobian grows as the impurity vanishes",
    finding="‖⟨J⟩‖² speeds up as 1/⟨λ⁽¹⁾⟩ grows",
    inverse=True,
)


@recipe(
    "C-F5",
    "larger steps and smaller batches: flatter, smaller Jacobian",
    finding="larger lr or smaller B: lower sharpness plateau and lower ‖⟨J⟩‖² at the end of the ARP",
    minutes=15,
)
def steps_and_batches(scale: Scale) -> Experiment:
    """C-F4 for three learning rates and for three batch sizes, smoothed; C Fig 5, 5.3 item 6."""
    used, sizes = _rates(scale), batches(scale, SIZES)
    pairs = [(rate, sizes[0]) for rate in used] + [(used[0], size) for size in sizes[1:]]

    def both(what: Any, sentence: str, unit: str) -> list[Claim]:
        source = "C-F5; 5.3 item 6"
        return [
            Claim(
                f"the larger the learning rate, the {sentence}",
                lambda results: falling(results, what, over="rate", batch=sizes[0]),
                unit=f"{unit}, from the smallest to the largest rate",
                source=source,
            ),
            Claim(
                f"the smaller the batch, the {sentence}",
                lambda results: rising(results, what, over="batch", rate=used[0]),
                unit=f"{unit}, from the smallest to the largest batch",
                source=source,
            ),
        ]

    return Experiment(
        runs=[phase_run(scale, rate, size, seed) for rate, size in pairs for seed in _seeds(scale)],
        claims=[
            *both(_norm_at_the_end, "smaller ‖⟨J⟩‖² at the end of the ARP", "ln of the factor"),
            *both(plateau, "lower the plateau of the sharpness", "ln of the factor"),
        ],
        figure=partial(_grid_figure, used=used, sizes=sizes, smooth=SMOOTH[scale]),
        departures=departures(
            scale,
            "cnn6",
            *_lengths(scale),
            f"running means over {SMOOTH[scale]} points",
            faster=FASTER,
            num_seeds="six",
        ),
    )


def _norm_at_the_end(results: Results, **labels: Any) -> list[float]:
    """‖⟨J⟩‖² where ⟨λ⁽¹⁾⟩ falls below 0.25."""
    pairs = zip(results.curve(NORM, **labels), results.curve("impurity", **labels), strict=True)
    return [value_at(square(norm), end_of_regularisation(impurity)) for norm, impurity in pairs]


def _grid_figure(results: Results, *, used: Sequence[float], sizes: Sequence[int], smooth: int) -> Panels:
    panels = []
    rows: list[dict[str, dict[str, Any]]] = [
        {f"η = {rate:g}": {"rate": rate, "batch": sizes[0]} for rate in used},
        {f"B = {size}": {"rate": used[0], "batch": size} for size in sizes},
    ]
    for names in rows:
        for title, name, power in (("‖⟨J⟩‖²", NORM, 2), ("‖H‖", "sharpness", 1), ("⟨λ⁽¹⁾⟩", "impurity", 1)):
            series = [
                over_seeds(
                    [
                        _in_epochs(steps, values**power, labels["batch"])
                        for steps, values in results.curve(name, **labels)
                    ],
                    label,
                    smooth,
                    colour=place,
                )
                for place, (label, labels) in enumerate(names.items())
            ]
            lines = [Line("end of the ARP", y=IMPURE)] if name == "impurity" else []
            panels.append(Panel(title, "samples seen", title, series, lines=lines))
    return Panels(panels, caption="Top: learning rates; bottom: batch sizes. Running means over seeds.")


def _in_epochs(steps: np.ndarray, values: np.ndarray, batch: float) -> Curve:
    return steps * batch, values
