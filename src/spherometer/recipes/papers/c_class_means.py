"""Paper C, App D: m = √λ⁽¹⁾ J q⁽¹⁾ of single samples and its means over predicted classes (C-F9, F31-F33)."""

from __future__ import annotations

from functools import partial
from math import nan

import numpy as np

from spherometer.figures.panels import HeatPanel, Line, Panel, Panels, Series
from spherometer.recipes.claims import Claim
from spherometer.recipes.papers.c_class_planes import coordinates, plane_run
from spherometer.recipes.papers.c_geometry import (
    COSINE_STEPS,
    by_class,
    descent_said,
    geometry_run,
    matrix_of,
    mean_matrix,
)
from spherometer.recipes.papers.c_runs import departures, seeds
from spherometer.recipes.recipe import Experiment, Scale, recipe, variant
from spherometer.recipes.results import Results

NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SHOWN = ((5, 1),)  # dog and automobile, C Fig 9
OPPOSED = ((0, 8), (1, 9), (5, 3), (4, 2))  # airplane-ship, automobile-truck, dog-cat, deer-bird: C Fig 31, C-e9
CONCENTRATED, ORTHOGONAL = 0.25, 0.3
JUDGED = (
    f"'concentrated' means a mean length {CONCENTRATED:g} above 1/√n, 'mostly orthogonal' a mean |cos| below "
    f"{ORTHOGONAL:g}: chosen here"
)


@recipe(
    "C-F9",
    "m concentrates within a predicted class, classes are mostly orthogonal",
    finding="concentrated within the predicted class, means mostly orthogonal, automobile-truck negative",
    minutes=3,
)
def class_means(scale: Scale, *, pairs: tuple[tuple[int, int], ...] = SHOWN) -> Experiment:
    """m on the plane of two class means, and the cosines of all means, at one step; C Figs 9 and 31, Q54-Q56."""
    step = COSINE_STEPS[scale][1]
    many = len(pairs) > 1
    tracked = [geometry_run(scale, "cnn6", seed) for seed in seeds(scale)]
    concentration = Claim(
        "m of a predicted class points the same way: its mean resultant length is far above 1/√n",
        partial(_concentration, step=step),
        least=CONCENTRATED,
        unit="mean over classes of ρ_i − 1/√n_i",
        source="C-F9",
    )
    orthogonality = Claim(
        "the means of different classes are mostly orthogonal",
        partial(_orthogonality, step=step),
        unit=f"{ORTHOGONAL} − mean |cos| over pairs of classes",
        source="C-F9",
    )
    opposition = [
        Claim(
            f"the cosine of {NAMES[one]} and {NAMES[other]} is negative",
            partial(_opposition, step=step, pair=(one, other)),
            unit="−cos",
            source="C-F31; C-e9" if many else "C-F9",
        )
        for one, other in (OPPOSED if many else OPPOSED[1:2])
    ]
    return Experiment(
        runs=[*tracked, plane_run(scale, "cnn6", step)],
        claims=opposition if many else [concentration, orthogonality, *opposition],
        figure=partial(_planes_figure, pairs=pairs, step=step, cosines=not many),
        departures=_departures(
            scale, f"step {step}" + (" (1000 in the paper)" if scale != "paper" else ""), *([] if many else [JUDGED])
        ),
    )


def _departures(scale: Scale, *more: str) -> list[str]:
    return departures(scale, "cnn6", descent_said(scale), *more)


def _concentration(results: Results, *, step: int) -> list[float]:
    return [_excess(entries.get(step, {})) for entries in results.vectors("mean_resultant_length", network="cnn6")]


def _excess(entries: dict[str, float]) -> float:
    """Mean over the classes that are predicted at all of ρ_i − 1/√n_i."""
    found = [value - size**-0.5 for size, value in by_class(entries).values() if size and np.isfinite(value)]
    return float(np.mean(found)) if found else nan


def _cosines(results: Results, step: int) -> list[np.ndarray]:
    return [matrix_of(entries, step) for entries in results.vectors("class_mean_cosines", network="cnn6")]


def _orthogonality(results: Results, *, step: int) -> list[float]:
    return [ORTHOGONAL - _mean_size(matrix) for matrix in _cosines(results, step)]


def _mean_size(matrix: np.ndarray) -> float:
    """Mean |cos| over pairs of classes that both are predicted."""
    off = np.abs(matrix[~np.eye(len(matrix), dtype=bool)])
    off = off[np.isfinite(off)]
    return float(off.mean()) if len(off) else nan


def _opposition(results: Results, *, step: int, pair: tuple[int, int]) -> list[float]:
    return [-float(matrix[pair]) for matrix in _cosines(results, step)]


def _planes_figure(results: Results, *, pairs: tuple[tuple[int, int], ...], step: int, cosines: bool) -> Panels:
    panels: list[Panel | HeatPanel] = []
    for pair in pairs:
        points = coordinates(results, pair)
        series = [
            Series(NAMES[label], chosen[:, 0], chosen[:, 1], style="markers", colour=place)
            for place, label in enumerate(pair)
            for chosen in [points[points[:, 2] == label]]
        ]
        title = f"m of {NAMES[pair[0]]} and {NAMES[pair[1]]}"
        panels.append(Panel(title, f"along the mean of {NAMES[pair[0]]}", "across it, in the plane", series))
    if cosines:
        panels.append(_cosine_panel(results, step))
    return Panels(
        panels, columns=2, caption=f"m = √λ⁽¹⁾ J q⁽¹⁾ by predicted class at step {step}; planes from one run."
    )


def _cosine_panel(results: Results, step: int) -> HeatPanel:
    matrix = mean_matrix(_cosines(results, step))
    return HeatPanel(f"cosines of class means, step {step}", matrix.tolist(), NAMES, NAMES, limit=1.0)


variant(
    "C-F31",
    class_means,
    "look-alike classes have opposed means",
    finding="negative cosines: airplane-ship, automobile-truck, dog-cat, deer-bird",
    pairs=OPPOSED,
)


@recipe(
    "C-F32",
    "class means stay mostly orthogonal",
    finding="no more than it shows, the cosines at six steps; that they stay as they are is our question",
    minutes=3,
)
def cosines_over_training(scale: Scale) -> Experiment:
    """Cosine matrices of the class means at six steps; C Fig 32, Q56."""
    steps = COSINE_STEPS[scale]

    def alike(results: Results) -> list[float]:
        """Correlation of the off-diagonal cosines at the first and the last step."""
        found = []
        for first, last in zip(_cosines(results, steps[0]), _cosines(results, steps[-1]), strict=True):
            off = ~np.eye(len(first), dtype=bool)
            pairs = np.stack([first[off], last[off]])
            pairs = pairs[:, np.isfinite(pairs).all(0)]
            found.append(float(np.corrcoef(pairs)[0, 1]) if pairs.shape[1] > 4 else nan)
        return found

    return Experiment(
        runs=[geometry_run(scale, "cnn6", seed) for seed in seeds(scale)],
        claims=[
            Claim(
                "the means of different classes are mostly orthogonal at the last step shown",
                partial(_orthogonality, step=steps[-1]),
                unit=f"{ORTHOGONAL} − mean |cos| over pairs of classes",
                source="C-F32: ours",
            ),
            Claim(
                f"which classes are opposed is the same at steps {steps[0]} and {steps[-1]}",
                alike,
                unit="correlation of the cosines",
                source="C-F32: ours",
            ),
        ],
        figure=lambda results: Panels(
            [_cosine_panel(results, step) for step in steps],
            caption="Cosines of the class means of m; mean over seeds.",
        ),
        departures=_departures(scale, f"steps {', '.join(map(str, steps))}", JUDGED),
    )


@recipe(
    "C-F33",
    "every class concentrates, once it is predicted at all",
    finding="mean resultant lengths are undefined in the first steps; that they are well above chance is our question",
    minutes=3,
)
def concentration_over_training(scale: Scale) -> Experiment:
    """The mean resultant length of each predicted class over training; C Fig 33, Q55."""

    def excess(results: Results) -> list[float]:
        runs = results.vectors("mean_resultant_length", network="cnn6")
        found = [[_excess(entries) for entries in steps.values()] for steps in runs]
        return [float(np.nanmean(values)) if len(values) else nan for values in found]

    def missing(results: Results) -> list[float]:
        """Classes that nothing is predicted as at the start, less half a class."""
        runs = results.vectors("mean_resultant_length", network="cnn6")
        return [
            sum(size == 0 for size, _ in by_class(steps[0]).values()) - 0.5 if 0 in steps else nan for steps in runs
        ]

    def figure(results: Results) -> Panels:
        steps = results.vectors("mean_resultant_length", network="cnn6")[0]
        tables = [by_class(entries) for entries in steps.values()]
        panels = []
        for labels in (range(5), range(5, 10)):
            series = [
                Series(NAMES[label], list(steps), [table.get(label, (0, nan))[1] for table in tables], colour=label % 5)
                for label in labels
            ]
            panels.append(Panel("mean resultant length", "step", "ρ_i", series, lines=[Line("all alike", y=1.0)]))
        return Panels(panels, columns=2, caption="By predicted class, one run; a gap where a class is never predicted.")

    return Experiment(
        runs=[geometry_run(scale, "cnn6", seed) for seed in seeds(scale)],
        claims=[
            Claim(
                "m of a predicted class is concentrated all through training",
                excess,
                least=CONCENTRATED,
                unit="mean over steps and classes of ρ_i − 1/√n_i",
                source="C-F33: ours",
            ),
            Claim(
                "some class has no mean in the first steps, because nothing is predicted as it",
                missing,
                unit="classes without prediction at the start, less ½",
                source="C-F33",
            ),
        ],
        figure=figure,
        departures=_departures(scale, JUDGED),
    )
