"""Paper C, Sec 5: the three phases of ‖⟨J⟩‖² (C-F4, F28)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import log, nan
from typing import Any

import numpy as np

from spherometer.figures.panels import Line, Panel, Panels, Series, over_seeds
from spherometer.recipes.claims import Claim
from spherometer.recipes.papers.c_curves import (
    IMPURE,
    NORM,
    combined,
    correlation,
    end_of_regularisation,
    mean_within,
    regularisation_period,
    square,
    value_at,
)
from spherometer.recipes.papers.c_runs import SCALARS, batches, departures, plain_run
from spherometer.recipes.papers.c_stochastic import ratio_request, ratio_said, thresholds
from spherometer.recipes.recipe import Experiment, Scale, at_scale, recipe, variant
from spherometer.recipes.results import Curve, Results, Run

RATES, SIZES = (0.01, 0.02, 0.03), (128, 64, 32)
EPOCHS = {"smoke": 5, "laptop": 40, "paper": 150}
MOST_STEPS = 100_000  # Setting 1
FASTER = {"smoke": 5, "laptop": 8, "paper": 1}  # so fast that noise holds the sharpness down, as in the paper


def phase_run(scale: Scale, rate: float, batch: int, seed: int) -> Run:
    """6CNN by SGD until it has fitted its data, tracked evenly: C-F4, F5, F28."""
    samples = at_scale(scale, smoke=100, laptop=500, paper=50_000)
    steps = min(EPOCHS[scale] * samples // batch, MOST_STEPS)
    labels = {"rate": rate, "batch": batch, "seed": seed}
    every = max(1, steps // at_scale(scale, smoke=10, laptop=40, paper=1000))
    track = [*SCALARS, ratio_request(scale, batch)]
    return plain_run(scale, "cnn6", labels, rate=rate, batch=batch, steps=steps, track=track, track_every=every)


def phase_seeds(scale: Scale) -> range:
    """More than elsewhere: noise decides when a run is over."""
    return range(at_scale(scale, smoke=2, laptop=6, paper=6))


def phase_rates(scale: Scale) -> list[float]:
    """The paper's three, as this scale uses them."""
    return [FASTER[scale] * rate for rate in RATES]


def usual_runs(scale: Scale) -> list[Run]:
    """B = 128, η = 0.01."""
    return [phase_run(scale, phase_rates(scale)[0], batches(scale, SIZES)[0], seed) for seed in phase_seeds(scale)]


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
        "‖⟨J⟩‖² speeds up as 1/⟨λ⁽¹⁾⟩ grows, from the impurity's peak on",
        partial(_margin, what=_following),
        unit="correlation of 1/⟨λ⁽¹⁾⟩ with the growth per step",
        source="C-F28",
    )
    return Experiment(
        runs=usual_runs(scale),
        claims=[follows] if inverse else claims,
        figure=partial(_figure, inverse=inverse, scale=scale),
        departures=departures(scale, "cnn6", *phase_lengths(scale), faster=FASTER, num_seeds="six"),
    )


def phase_lengths(scale: Scale) -> list[str]:
    """What the runs leave open or have smaller."""
    said = ["phase II begins where the sharpness has reached 90 % of its highest value: chosen here"]
    said += ["six seeds"] if scale == "laptop" else []
    length = f"{EPOCHS[scale]} epochs, at most {MOST_STEPS:,} steps: the text says until convergence, below that"
    return [*said, length, *ratio_said(scale)]


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


def _figure(results: Results, *, inverse: bool, scale: Scale) -> Panels:
    squares = [square(curve) for curve in results.curve(NORM)]
    ends = [end_of_regularisation(curve) for curve in results.curve("impurity")]
    known = [end for end in ends if np.isfinite(end)]
    mark = [Line("end of the ARP (mean)", x=float(np.mean(known)))] if known else []
    labels = {name: results.values(name)[0] for name in ("rate", "batch")}
    panels = [
        Panel("‖⟨J⟩‖²", "step", "‖⟨J⟩‖²", [clipped(squares, "‖⟨J⟩‖²")], lines=mark),
        Panel(
            "‖H‖",
            "step",
            "‖H‖",
            [
                clipped(results.curve("sharpness"), "‖H‖"),
                clipped(thresholds(results, scale, labels), "2ρ_B/η", style="dotted"),
            ],
            lines=[*mark, Line("2/η", y=2 / labels["rate"])],
        ),
        Panel(
            "⟨λ⁽¹⁾⟩",
            "step",
            "⟨λ⁽¹⁾⟩",
            [clipped(results.curve("impurity"), "⟨λ⁽¹⁾⟩")],
            lines=[*mark, Line("", y=IMPURE)],
        ),
    ]
    if inverse:
        turned = [(steps, 1 / values) for steps, values in results.curve("impurity")]
        panels.append(Panel("1/⟨λ⁽¹⁾⟩", "step", "1/⟨λ⁽¹⁾⟩", [clipped(turned, "1/⟨λ⁽¹⁾⟩")], lines=mark))
    return Panels(panels, columns=2 if inverse else 3, caption="SGD; mean and standard deviation over seeds.")


def clipped(curves: Sequence[Curve], label: str, smooth: int | None = None, **look: Any) -> Series:
    """`over_seeds`, but the band of what cannot be negative ends at the smallest value seen."""
    series = over_seeds(curves, label, smooth, **look)
    seen = [values[np.isfinite(values)].min(initial=np.inf) for _, values in curves]
    return series if series.low is None else replace(series, low=np.maximum(np.asarray(series.low), min(seen)))


variant(
    "C-F28",
    phases,
    "the Jacobian grows as the impurity vanishes",
    finding="‖⟨J⟩‖² speeds up as 1/⟨λ⁽¹⁾⟩ grows",
    inverse=True,
)
