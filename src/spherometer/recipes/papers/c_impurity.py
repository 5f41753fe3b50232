"""Paper C: the impurity λ⁽¹⁾ of the softmax over training, and what grows meanwhile (C-F1, F7, F8, F12-F14, F30)."""

from __future__ import annotations

from functools import partial
from math import log, nan

import numpy as np
import torch

from spherometer.figures.panels import HeatPanel, Line, Panel, Panels, Series, over_seeds
from spherometer.operators.logit_hessian import logit_hessian_eigenpairs, secular_function
from spherometer.recipes.claims import Claim, Inequality, Near
from spherometer.recipes.papers.c_geometry import MATRIX_STEPS, geometry_run, matrix_of
from spherometer.recipes.papers.c_runs import departures, descent_rates, descent_run, seeds
from spherometer.recipes.recipe import Experiment, Scale, at_scale, recipe, variant
from spherometer.recipes.results import Results, Run

RATE = 0.04
CLASSES = 10
EXAMPLE = "example/impurity_bounds"
OUTPUT = (0.45, 0.25, 0.15, 0.1, 0.05)  # of the secular function's picture; the paper's p is not in the text


def descents(scale: Scale) -> list[Run]:
    """6CNN by full-batch gradient descent at the rate of most figures of paper C."""
    (rate,) = descent_rates(scale, [RATE])
    return [descent_run(scale, "cnn6", rate, seed) for seed in seeds(scale)]


@recipe(
    "C-F1",
    "the impurity of the softmax rises, then falls",
    finding="λ⁽¹⁾ between ½Gini and min{p, Gini}; ⟨λ⁽¹⁾⟩ n-shaped over training, from about 1/C",
    minutes=2,
)
def impurity(scale: Scale) -> Experiment:
    """⟨λ⁽¹⁾⟩ over full-batch training of 6CNN and one example between its bounds; C Fig 1, Thm 4.1, 5.3 item 6."""
    return Experiment(
        runs=descents(scale),
        claims=[
            Near(
                "the mean impurity starts at about 1/C",
                lambda results: [values[0] if len(values) else nan for _, values in results.curve("impurity")],
                target=1 / CLASSES,
                tolerance=0.03,
                source="C-F1",
            ),
            Claim(
                "the mean impurity is n-shaped: its peak is above both ends of training",
                _hump,
                least=0.05,
                unit="height of the peak above the higher end",
                source="C-F1; 5.3 item 6",
            ),
            Inequality(
                "½Gini ≤ λ⁽¹⁾ ≤ min{p, Gini} for every sample at every step",
                lambda results: [
                    -float(count)
                    for _, counts in results.curve("impurity_bounds", part="violations")
                    for count in counts
                ],
                source="C-F1; C Thm 4.1(d), T2",
            ),
        ],
        figure=_impurity_figure,
        departures=departures(
            scale, "cnn6", "the example is the first training sample: the paper does not name its own", descent=True
        ),
    )


def _hump(results: Results) -> list[float]:
    curves = [values for _, values in results.curve("impurity")]
    return [float(values.max() - max(values[0], values[-1])) if len(values) else nan for values in curves]


def _impurity_figure(results: Results) -> Panels:
    parts = ("½Gini", "impurity", "min{p, Gini}")
    (_, lower), (_, found), (_, upper) = (results.curve(EXAMPLE, part=part)[0] for part in parts)
    grid = np.linspace(1 / CLASSES, 1, 181)
    gini = 2 * grid * (1 - grid)
    low, high = (over_seeds(results.curve("impurity_quantiles", part=part), "") for part in ("25 %", "75 %"))
    mean = over_seeds(results.curve("impurity"), "mean; band: 25-75 % of samples")
    return Panels(
        [
            Panel(
                "one example over training",
                "largest probability p",
                "impurity λ⁽¹⁾",
                [
                    Series("min{p, Gini}", grid, np.minimum(grid, gini)),
                    Series("½ Gini", grid, gini / 2, style="dashed"),
                    Series("the example", largest_probability(lower, upper), found, style="markers"),
                ],
            ),
            Panel(
                "training set",
                "step",
                "⟨λ⁽¹⁾⟩",
                [Series(mean.label, mean.x, mean.y, low.y, high.y)],
                lines=[Line("1/C", y=1 / CLASSES), Line("end of active regularisation", y=0.25)],
            ),
        ],
        columns=2,
        caption="Impurity of the softmax output in full-batch training; left one sample, right means over runs.",
    )


def largest_probability(lower: np.ndarray, upper: np.ndarray) -> np.ndarray:
    """p from p(1−p) and min{p, 2p(1−p)}: the second is p itself exactly where p < ½."""
    root = np.sqrt(np.clip(1 - 4 * lower, 0, None))
    return np.where(upper < 2 * lower * (1 - 1e-9), upper, (1 + root) / 2)


@recipe(
    "C-F12",
    "logits and weights grow in training",
    finding="‖z‖, |1̂ᵀz| and ‖θ‖ all increase",
    minutes=2,
)
def growth(scale: Scale, *, early: bool = False) -> Experiment:
    """Mean logit norm, its part along 1̂ and the weight norm over the steps of C-F1's runs; C Figs 12-13, Q10-Q11."""
    until = at_scale(scale, smoke=10, laptop=100, paper=200) if early else None
    what = {"logit_norm": "⟨‖z‖⟩", "logit_sum": "⟨|1̂ᵀz|⟩", "weight_norm": "‖θ‖"}
    source = "C-F13" if early else "C-F12"
    return Experiment(
        runs=descents(scale),
        claims=[
            Claim(
                f"{symbol} increases{' early in training' if early else ''}",
                partial(_growth, name=name, until=until),
                unit="ln of end over start",
                source=source,
            )
            for name, symbol in what.items()
        ],
        figure=partial(_growth_figure, what=what, until=until),
        departures=departures(scale, "cnn6", *_steps_shown(scale, early), descent=True),
    )


def _steps_shown(scale: Scale, early: bool) -> list[str]:
    if scale == "paper":
        return ["the first 200 steps: how many are early is not in the text"] if early else []
    return ["every tenth step early on too, where the paper shows every step"] if early else []


def _until(curve: tuple[np.ndarray, np.ndarray], until: int | None) -> tuple[np.ndarray, np.ndarray]:
    steps, values = curve
    kept = steps <= (np.inf if until is None else until)
    return steps[kept], values[kept]


def _growth(results: Results, *, name: str, until: int | None, part: str = "") -> list[float]:
    found = [_until(curve, until)[1] for curve in results.curve(name, part=part)]
    return [log(values[-1] / values[0]) if len(values) and values[0] > 0 < values[-1] else nan for values in found]


def _growth_figure(results: Results, *, what: dict[str, str], until: int | None) -> Panels:
    panels = [
        Panel(symbol, "step", symbol, [over_seeds([_until(curve, until) for curve in results.curve(name)], symbol)])
        for name, symbol in what.items()
    ]
    return Panels(panels, caption="Sizes of logits and weights in full-batch training; mean and deviation over seeds.")


variant("C-F13", growth, "logits and weights grow from the first steps on", early=True)


@recipe("C-F14", "every layer's weights grow", finding="the norms of all six layers increase", minutes=2)
def layer_growth(scale: Scale) -> Experiment:
    """The Frobenius norm of every weight tensor over the steps of C-F1's runs; C Fig 14, Q11."""

    def margins(results: Results) -> list[float]:
        rows = [_growth(results, name="parameter_norms", until=None, part=part) for part in _weights(results)]
        return [min(column) for column in zip(*rows, strict=True)]

    def figure(results: Results) -> Panels:
        panels = [
            Panel(f"layer {place}", "step", "‖W‖_F", [over_seeds(results.curve("parameter_norms", part=part), part)])
            for place, part in enumerate(_weights(results), start=1)
        ]
        return Panels(panels, caption="Norms of the weights of each layer in full-batch training.")

    return Experiment(
        runs=descents(scale),
        claims=[
            Claim(
                "the norms of the weights of all layers increase",
                margins,
                unit="ln of end over start, the least of all layers",
                source="C-F14",
            )
        ],
        figure=figure,
        departures=departures(
            scale, "cnn6", *([] if scale == "paper" else ["three layers instead of six"]), descent=True
        ),
    )


def _weights(results: Results) -> list[str]:
    return [part for part in results.parts("parameter_norms")[0] if part.endswith("weight")]


@recipe(
    "C-F7",
    "eigenvalues of the logit Hessian interlace",
    finding="the zeros of v(λ) lie between its poles p_(i)",
    minutes=0,
)
def secular(_: Scale) -> Experiment:
    """v(λ) = 1 − Σ p_i²/(p_i − λ) of one output, its poles and its zeros; C Thm 4.1, Fig 7, T3. Nothing is trained."""
    output = torch.tensor(OUTPUT, dtype=torch.float64)
    zeros = logit_hessian_eigenpairs(output)[0].numpy()

    def interlaced(_: Results) -> list[float]:
        poles = np.array([*OUTPUT, 0.0])
        return [
            float(min(upper - zero, zero - lower)) for upper, zero, lower in zip(poles, zeros, poles[1:], strict=False)
        ]

    def figure(_: Results) -> Panels:
        points = np.unique(np.concatenate([np.linspace(-0.05, 0.55, 1201), OUTPUT]))
        values = secular_function(output, torch.tensor(points)).numpy()
        values = np.where(np.abs(values) < 6, values, nan)
        curves = [
            Series("v(λ)", points, values),
            Series("eigenvalues of M", zeros, np.zeros(len(zeros)), style="markers"),
        ]
        lines = [Line("poles p_(i)" if place == 0 else "", x=pole) for place, pole in enumerate(OUTPUT)]
        return Panels([Panel("secular function", "λ", "v(λ)", curves, lines=[*lines, Line("", y=0.0)])], columns=1)

    return Experiment(
        runs=[],
        claims=[
            Inequality("p_(i+1) ≤ λ⁽ⁱ⁾ ≤ p_(i) for each eigenvalue", interlaced, source="C-F7; C Thm 4.1(a), T3"),
        ],
        figure=figure,
        departures=[f"p = {OUTPUT}: chosen here, the paper's is not in the text"],
    )


@recipe(
    "C-F8",
    "the logit eigenvectors weigh neighbouring classes against each other",
    finding="√λ⁽ⁱ⁾q⁽ⁱ⁾ is + at class (i) and − at class (i+1)",
    minutes=2,
)
def logit_eigenvectors(scale: Scale, *, many: bool = False) -> Experiment:
    """⟨QΛ^½⟩ in sorted-class coordinates, at one step (C Fig 8) or at six (C Fig 30); Q28."""
    all_steps = MATRIX_STEPS[scale]
    shown = all_steps if many else all_steps[2:3]
    signs = Claim(
        f"⟨QΛ^½⟩ is positive at class (i) and negative at class (i+1) at step {all_steps[2]}",
        partial(_signs, step=all_steps[2]),
        unit="smallest of the 2(C−1) entries, with the claimed sign",
        source="C-F8",
    )
    dominance = Claim(
        f"the first eigenvector dominates more at step {all_steps[-1]} than at step {all_steps[0]}",
        partial(_dominance, steps=all_steps),
        unit="share of the first column in ‖⟨QΛ^½⟩‖_F²: late less early",
        source="C-F30",
    )
    return Experiment(
        runs=[geometry_run(scale, "cnn6", seed) for seed in seeds(scale)],
        claims=[dominance if many else signs],
        figure=partial(_matrix_figure, steps=shown),
        departures=departures(scale, "cnn6", *_setting(scale)),
    )


def _setting(scale: Scale) -> list[str]:
    said = ["full-batch gradient descent at the rate of C-F1: the setting is not in the text"]
    return (
        said
        if scale == "paper"
        else [*said, f"steps {', '.join(map(str, MATRIX_STEPS[scale]))} instead of 100 .. 6000"]
    )


def _matrices(results: Results, step: int) -> list[np.ndarray]:
    return [matrix_of(entries, step) for entries in results.vectors("impurity_matrix")]


def _signs(results: Results, *, step: int) -> list[float]:
    return [
        float(min(np.diagonal(matrix)[:-1].min(), -np.diagonal(matrix, -1).max()))
        for matrix in _matrices(results, step)
    ]


def _dominance(results: Results, *, steps: tuple[int, ...]) -> list[float]:
    def share(matrix: np.ndarray) -> float:
        columns = (matrix**2).sum(0)
        return float(columns[0] / columns.sum())

    late, early = (_matrices(results, step) for step in (steps[-1], steps[0]))
    return [share(one) - share(other) for one, other in zip(late, early, strict=True)]


def _matrix_figure(results: Results, *, steps: tuple[int, ...]) -> Panels:
    names = [f"({k})" for k in range(1, CLASSES + 1)]
    panels = [
        HeatPanel(
            f"step {step}",
            np.mean(_matrices(results, step), 0).tolist(),
            names,
            [str(k) for k in range(1, CLASSES + 1)],
            x_label="eigenvector i",
            y_label="class, by falling probability",
        )
        for step in steps
    ]
    return Panels(panels, caption="⟨QΛ^½⟩ over the training set, classes sorted by probability; mean over seeds.")


variant(
    "C-F30",
    logit_eigenvectors,
    "the first logit eigenvector takes over",
    finding="λ⁽¹⁾ dominates increasingly over training",
    many=True,
)
