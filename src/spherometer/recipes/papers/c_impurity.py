"""Paper C: the impurity λ⁽¹⁾ of the softmax over training (C-F1, F7, F8, F30)."""

from __future__ import annotations

from functools import partial
from math import nan

import numpy as np
import torch

from spherometer.figures.panels import HeatPanel, Line, Panel, Panels, Series, over_seeds
from spherometer.operators.logit_hessian import logit_hessian_eigenpairs, secular_function
from spherometer.recipes.claims import Claim, Inequality, Near
from spherometer.recipes.margins import every
from spherometer.recipes.papers.c_geometry import MATRIX_STEPS, descent_said, geometry_run, matrix_of, mean_matrix
from spherometer.recipes.papers.c_runs import departures, descent_rates, descent_run, seeds
from spherometer.recipes.recipe import Experiment, Scale, recipe, variant
from spherometer.recipes.results import Results, Run

RATE = 0.04
CLASSES = 10
EXAMPLE = "example/impurity_bounds"
START, HUMP = 0.03, 0.05  # of the mean impurity: distance from 1/C, height of the peak
OUTPUT = (0.45, 0.25, 0.15, 0.1, 0.05)  # of the secular function's picture; the paper's p is not in the text


def descents(scale: Scale) -> list[Run]:
    """6CNN by full-batch gradient descent at the rate of most figures of paper C."""
    (rate,) = descent_rates(scale, [RATE])
    return [descent_run(scale, "cnn6", rate, seed) for seed in seeds(scale)]


@recipe(
    "C-F1",
    "the impurity of the softmax rises, then falls",
    finding="λ⁽¹⁾ between ½Gini and min{p, Gini}; ⟨λ⁽¹⁾⟩ n-shaped over training, from about 1/C",
    minutes=3,
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
                tolerance=START,
                source="C-F1",
            ),
            Claim(
                "the mean impurity is n-shaped: its peak is above both ends of training",
                _hump,
                least=HUMP,
                unit="height of the peak above the higher end",
                source="C-F1; 5.3 item 6",
            ),
            Inequality(
                "½Gini ≤ λ⁽¹⁾ ≤ min{p, Gini} for every sample at every step",
                lambda results: every(-counts for _, counts in results.curve("impurity_bounds", part="violations")),
                source="C-F1; C Thm 4.1(d), T2",
            ),
        ],
        figure=_impurity_figure,
        departures=departures(
            scale,
            "cnn6",
            "the example is the first training sample: the paper does not name its own",
            f"'at about 1/C' means within {START:g}, 'n-shaped' a peak {HUMP:g} above both ends: chosen here",
            descent=True,
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
    said = [descent_said(scale)]
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
            mean_matrix(_matrices(results, step)).tolist(),
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
