"""Paper C, Sec 3: sharpness and ‖⟨J⟩‖² oscillate together (C-F2, F26); the squared error (C-F35)."""

from __future__ import annotations

from functools import partial
from math import log, nan

import numpy as np

from spherometer.figures.panels import Line, Panel, Panels, over_seeds
from spherometer.recipes.claims import AnyClaim, Claim, Inequality, Near
from spherometer.recipes.ends import told
from spherometer.recipes.margins import every
from spherometer.recipes.papers.c_curves import NORM, combined, correlation, log_correlation, scaled, square
from spherometer.recipes.papers.c_edge import TOGETHER, edge_claims
from spherometer.recipes.papers.c_runs import batches, departures, plain_run, rates, seeds
from spherometer.recipes.papers.c_stochastic import ratio_request, ratio_said, thresholds
from spherometer.recipes.recipe import Experiment, Scale, Table, at_scale, recipe, variant
from spherometer.recipes.results import Curve, Results, Run

WINDOWS: dict[str, tuple[tuple[int, int], ...]] = {
    "smoke": ((0, 10), (15, 25), (30, 40)),
    "laptop": ((0, 40), (150, 190), (600, 640)),
    "paper": ((0, 200), (1000, 1200), (4000, 4200)),
}
PAPER_RATIOS = (8, 17.5, 45)  # 1/λ̂*
ABOUT = 1.5  # a factor, so that the three are told apart
ABOUT_SAID = f"'λ̂* ≈' means within a factor of {ABOUT:g} of it: chosen here"


def window_run(scale: Scale, seed: int) -> Run:
    """6CNN, B = 128, η = 0.04, measured at every step of three windows."""
    windows = WINDOWS[scale]
    (rate,), (size,) = rates(scale, [0.04]), batches(scale, [128])
    return plain_run(
        scale,
        "cnn6",
        {"rate": rate, "batch": size, "seed": seed},
        rate=rate,
        batch=size,
        steps=windows[-1][1],
        track=["sharpness", NORM, "impurity", ratio_request(scale, size)],
        track_every=1,
        track_within=[step for window in windows for step in window],
    )


@recipe(
    "C-F2",
    "sharpness and Jacobian norm oscillate together",
    finding="‖H‖ and ‖⟨J⟩‖² have the same oscillation up to a slowly varying factor λ̂*",
    minutes=3,
)
def oscillation(scale: Scale, *, number: int = 2) -> Experiment:
    """‖H‖ and ‖⟨J⟩‖² at every step of two windows (C Fig 2), or three (C Fig 26); Q48."""
    windows, source = WINDOWS[scale][:number], "C-F2" if number == 2 else "C-F26"
    names = ("early", "in the middle", "late")
    claims: list[AnyClaim] = [
        Claim(
            f"‖H‖ and ‖⟨J⟩‖² move together from step to step, {names[place]} in training",
            partial(_together, window=window),
            unit="correlation of the changes of their logarithms",
            source=source,
        )
        for place, window in enumerate(windows)
    ]
    claims.append(
        Claim(
            "the factor λ̂* falls over training",
            partial(_fall, windows=windows),
            unit=f"ln of λ̂* in the first window over the {'second' if number == 2 else 'third'}",
            source=source,
        )
    )
    printed = [] if number == 2 else [_printed(*pair) for pair in zip(windows, PAPER_RATIOS, strict=True)]
    return Experiment(
        runs=[window_run(scale, seed) for seed in seeds(scale)],
        claims=[*claims, *printed],
        figure=partial(_figure, windows=windows, scale=scale),
        departures=departures(
            scale, "cnn6", *_windows_said(scale), *([ABOUT_SAID] if printed else []), *ratio_said(scale)
        ),
        table=partial(_table, windows=windows) if number == 3 else None,
    )


def _printed(window: tuple[int, int], inverse: float) -> Near:
    """λ̂* of a window is the paper's."""
    return Near(
        f"λ̂* is about 1/{inverse:g} in steps {window[0]}-{window[1]}",
        lambda results: [log(ratio) for ratio in _ratios(results, window)],
        target=-log(inverse),
        tolerance=log(ABOUT),
        unit="ln λ̂*",
        source="C-F26",
    )


def _windows_said(scale: Scale) -> list[str]:
    if scale == "paper":
        return []
    return [
        f"steps {', '.join(f'{low}-{high}' for low, high in WINDOWS[scale])} instead of 0-200, 1000-1200, 4000-4200"
    ]


def _part(curve: Curve, window: tuple[int, int]) -> Curve:
    inside = (curve[0] >= window[0]) & (curve[0] <= window[1])
    return curve[0][inside], curve[1][inside]


def _pairs(results: Results, window: tuple[int, int]) -> list[tuple[Curve, Curve]]:
    curves = zip(results.curve("sharpness"), results.curve(NORM), strict=True)
    return [(_part(sharpness, window), square(_part(norm, window))) for sharpness, norm in curves]


def _together(results: Results, *, window: tuple[int, int]) -> list[float]:
    found = []
    for sharpness, norm in _pairs(results, window):
        _, logs = combined(sharpness, norm, lambda one, other: np.log(np.stack([np.abs(one), other], 1)))
        found.append(correlation(np.diff(logs, axis=0)))
    return found


def _ratios(results: Results, window: tuple[int, int]) -> list[float]:
    """λ̂* = ‖H‖/‖⟨J⟩‖², geometric mean over a window, one for each seed."""
    found = []
    for sharpness, norm in _pairs(results, window):
        _, ratios = combined(sharpness, norm, lambda one, other: np.abs(one) / other)
        found.append(float(np.exp(np.log(ratios).mean())) if len(ratios) else nan)
    return found


def _fall(results: Results, *, windows: tuple[tuple[int, int], ...]) -> list[float]:
    first, last = _ratios(results, windows[0]), _ratios(results, windows[-1])
    return [log(one / other) for one, other in zip(first, last, strict=True)]


def _figure(results: Results, *, windows: tuple[tuple[int, int], ...], scale: Scale) -> Panels:
    panels, labels = [], {name: results.values(name)[0] for name in ("rate", "batch")}
    threshold = thresholds(results, scale, labels)[0]
    for window in windows:
        sharpness, norm = _pairs(results, window)[0]
        factor = _ratios(results, window)[0]
        panels.append(
            Panel(
                f"steps {window[0]}-{window[1]}: λ̂* = 1/{1 / factor:.3g}",
                "step",
                "‖H‖",
                [
                    over_seeds([sharpness], "‖H‖"),
                    over_seeds([scaled(norm, factor)], "λ̂*‖⟨J⟩‖²", style="dashed"),
                    over_seeds([_part(threshold, window)], "2ρ_B/η", style="dotted"),
                ],
                lines=[Line("2/η", y=2 / labels["rate"])],
            )
        )
    return Panels(panels, caption="One run of SGD, every step; λ̂* is the mean factor of the window. Dotted: 2ρ_B/η.")


def _table(results: Results, *, windows: tuple[tuple[int, int], ...]) -> Table:
    rows = []
    for window, inverse, said in zip(windows, PAPER_RATIOS, WINDOWS["paper"], strict=True):
        ours = told(1 / np.array(_ratios(results, window)), ".3g", ".2g")
        rows.append([f"{said[0]}-{said[1]}", f"1/{inverse:g}", f"{window[0]}-{window[1]}", f"1/({ours})"])
    return Table(["paper: steps", "paper: λ̂*", "ours: steps", "ours: λ̂*"], rows)


variant(
    "C-F26", oscillation, "the factor between sharpness and Jacobian falls", finding="λ̂* ≈ 1/8, 1/17.5, 1/45", number=3
)


@recipe(
    "C-F35",
    "with the squared error the sharpness is the Jacobian norm",
    finding="‖H‖ proportional to ‖⟨J⟩‖², and not below it",
    minutes=2,
)
def squared_error(scale: Scale) -> Experiment:
    """‖H‖ and ‖⟨J⟩‖² with half the squared error, where M = I; C Fig 35, App P, T10, 5.3 item 1."""
    used = at_scale(scale, smoke=[0.1, 0.2], laptop=[0.16, 0.2, 0.25], paper=[0.02, 0.04, 0.08])
    steps = at_scale(scale, smoke=20, laptop=500, paper=6000)
    runs = [
        plain_run(
            scale,
            "fcn3" if scale == "laptop" else "cnn6",
            {"rate": rate, "seed": seed},
            rate=rate,
            steps=steps,
            loss="half-squared-error",
            track=["sharpness", NORM, "gauss_newton_norm"],
            track_every=at_scale(scale, smoke=2, laptop=20, paper=10),
        )
        for rate in used
        for seed in seeds(scale)
    ]
    return Experiment(
        runs=runs,
        claims=[
            Claim(
                "the sharpness is proportional to ‖⟨J⟩‖² over training",
                _proportional,
                least=TOGETHER,
                unit="correlation of the logarithms over the steps, mean over rates",
                source="C-F35",
            ),
            Inequality(
                "‖⟨J⟩‖² ≤ ‖G‖ at every step",
                lambda results: every(
                    combined(top, square(norm), lambda one, other: 1.02 * one - other)[1]
                    for top, norm in zip(results.curve("gauss_newton_norm"), results.curve(NORM), strict=True)
                ),
                source="C-F35; T10",
            ),
            *edge_claims("C-F35"),
        ],
        figure=_squared_figure,
        departures=_squared_departures(scale, used),
    )


def _squared_departures(scale: Scale, used: list[float]) -> list[str]:
    said = [
        f"model and learning rates ({', '.join(f'{rate:g}' for rate in used)}): chosen here, not in the text",
        "‖G‖ is computed to 1 %; the inequality is judged with a margin of 2 %",
    ]
    return [*departures(scale, "fcn3" if scale == "laptop" else "cnn6"), *said]


def _proportional(results: Results) -> list[float]:
    rows = [
        [
            log_correlation(sharpness, square(norm))
            for sharpness, norm in zip(
                results.curve("sharpness", rate=rate), results.curve(NORM, rate=rate), strict=True
            )
        ]
        for rate in results.values("rate")
    ]
    return [float(np.mean(column)) for column in zip(*rows, strict=True)]


def _squared_figure(results: Results) -> Panels:
    panels = [
        Panel(
            f"η = {rate:g}",
            "step",
            "‖H‖",
            [
                over_seeds(results.curve("sharpness", rate=rate), "‖H‖"),
                over_seeds([square(curve) for curve in results.curve(NORM, rate=rate)], "‖⟨J⟩‖²", style="dashed"),
            ],
            lines=[Line("2/η", y=2 / rate)],
        )
        for rate in results.values("rate")
    ]
    return Panels(panels, caption="Half the squared error, gradient descent; mean and standard deviation over seeds.")
