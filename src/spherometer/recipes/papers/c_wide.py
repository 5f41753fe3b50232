"""Paper C: efficient EJR on wide residual networks (C-F6, C-F29, C-T6)."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from spherometer.figures.panels import Line, Panel, Panels, over_seeds
from spherometer.recipes.claims import Claim
from spherometer.recipes.ends import mean_line, over_label, told
from spherometer.recipes.margins import levels_of
from spherometer.recipes.papers.c_explicit import POINTS
from spherometer.recipes.papers.c_methods import (
    better,
    error_reduction,
    mean_better,
    percent,
    percents,
    wide_departures,
    wide_run,
)
from spherometer.recipes.papers.c_printed import SECOND, SECOND_BASE
from spherometer.recipes.recipe import Experiment, Scale, Table, at_scale, recipe
from spherometer.recipes.results import Curve, Results

EPOCHS = 400  # Setting 2
SETTING = "the steps of Setting 2 as the schedule: which setting is not in the text"


def seeds(scale: Scale) -> range:
    """Of each setting; the paper draws one run, or prints mean ± std of three."""
    return range(at_scale(scale, smoke=1, laptop=3, paper=3))


def data_sets(scale: Scale) -> tuple[str, ...]:
    """Digits stand for both data sets of the paper."""
    return ("cifar10", "cifar100") if scale == "paper" else ("cifar10",)


@recipe(
    "C-F6",
    "EJR removes the overfitting after the learning rate has dropped",
    finding="after a decay the test loss of SGD rises again, that of EJR does not",
    minutes=2,
)
def after_the_decay(scale: Scale) -> Experiment:
    """Test accuracy and loss over the steps of Setting 2, SGD and efficient EJR; C Fig 6 (caption: C-e9)."""
    claims = []
    for data in data_sets(scale):
        name = f" ({data})" if scale == "paper" else ""
        claims += [
            Claim(
                f"the test loss rises less after its minimum with EJR{name}",
                partial(_less_overfitting, data=data),
                unit="rise of the test loss after its minimum: SGD less EJR",
                source="C-F6",
            ),
            Claim(
                f"EJR ends with a higher test accuracy{name}",
                partial(better, here={"method": "EJR", "data": data}, there={"method": "SGD", "data": data}),
                unit=POINTS,
                source="C-F6",
            ),
        ]
    return Experiment(
        runs=[
            wide_run(scale, method, seed, data=data, epochs=EPOCHS)
            for data in data_sets(scale)
            for method in ("SGD", "EJR")
            for seed in seeds(scale)
        ],
        claims=claims,
        figure=partial(_curves, data=data_sets(scale), stretch={}, decays=(0.3, 0.6, 0.8)),
        departures=wide_departures(scale),
    )


def _less_overfitting(results: Results, *, data: str) -> list[float]:
    def rise(method: str) -> np.ndarray:
        curves = results.curve("test_loss", method=method, data=data)
        return np.array([values[-1] - values.min() if len(values) else np.nan for _, values in curves])

    return [float(value) for value in rise("SGD") - rise("EJR")]


def _curves(
    results: Results, *, data: tuple[str, ...], stretch: dict[str, float], decays: tuple[float, ...] = ()
) -> Panels:
    """Accuracy and loss over the steps; `stretch` multiplies the steps of a method that takes fewer of them."""

    def series(name: str, which: str, factor: float) -> list[Any]:
        found = []
        for method in ("SGD", "EJR"):
            curves: list[Curve] = [
                (steps * stretch.get(method, 1), factor * values)
                for steps, values in results.curve(name, method=method, data=which)
            ]
            label = f"{method} (x {stretch[method]:g} steps)" if method in stretch else method
            found.append(over_seeds(curves, label))
        return found

    panels = []
    for which in data:
        end = max(results.last_step(method="SGD", data=which))
        lines = [Line("" if place else "decays", x=share * end) for place, share in enumerate(decays)]
        name = f" ({which})" if len(data) > 1 else ""
        panels += [
            Panel(f"test accuracy{name}", "step", "test accuracy, %", series("test_accuracy", which, 100), lines=lines),
            Panel(f"test loss{name}", "step", "test loss", series("test_loss", which, 1), lines=lines, log_y=True),
        ]
    return Panels(panels, columns=2, caption="Mean and standard deviation over seeds.")


@recipe(
    "C-F29",
    "EJR is better in half the epochs",
    finding="Setting 3: EJR after 200 epochs above SGD after 400",
    minutes=1,
)
def half_the_epochs(scale: Scale) -> Experiment:
    """Test curves of Setting 3 (cosine), EJR 200 against SGD 400 epochs, on a doubled axis; C Fig 29."""
    lengths = {"SGD": 400, "EJR": 200}
    return Experiment(
        runs=[
            wide_run(scale, method, seed, data=data, setting=3, epochs=lengths[method])
            for data in data_sets(scale)
            for method in lengths
            for seed in seeds(scale)
        ],
        claims=[
            Claim(
                "EJR is better than SGD with twice the epochs" + (f" ({data})" if scale == "paper" else ""),
                partial(better, here={"method": "EJR", "data": data}, there={"method": "SGD", "data": data}),
                unit=POINTS,
                source="C-F29",
            )
            for data in data_sets(scale)
        ],
        figure=partial(_curves, data=data_sets(scale), stretch={"EJR": 2.0}),
        departures=wide_departures(scale),
    )


@recipe(
    "C-T6",
    "the second version of EJR improves on the first",
    finding="EJR.v2: 97.07-97.38 % against 96.10 % of SGD; best ρ = 2, μ = 0.03",
    minutes=6,
)
def second_version(scale: Scale) -> Experiment:
    """EJR.v2 over ρ and μ, Setting 2; C Table 6, Eq 55-60, L10."""
    grid: list[tuple[float, float]] = list(SECOND) if scale != "smoke" else [(2, 0.03), (1, 0.1)]
    count = range(at_scale(scale, smoke=1, laptop=3, paper=3))
    runs = [wide_run(scale, "SGD", seed, epochs=EPOCHS) for seed in count]
    runs += [wide_run(scale, "EJR", seed, epochs=EPOCHS, rho=2) for seed in count]
    runs += [wide_run(scale, "EJR.v2", seed, epochs=EPOCHS, rho=rho, mu=mu) for rho, mu in grid for seed in count]
    every = [_labels(rho, mu) for rho, mu in grid]
    return Experiment(
        runs=runs,
        claims=[
            Claim(
                "EJR.v2 is better than SGD, on average over ρ and μ",
                partial(mean_better, cases=[(labels, {"method": "SGD"}) for labels in every]),
                unit=POINTS,
                source="C-T6",
            ),
            Claim(
                "EJR.v2 with ρ = 2, μ = 0.03 is better than EJR with ρ = 2",
                partial(better, here=_labels(2, 0.03), there={"method": "EJR"}),
                unit=POINTS,
                source="C-T6, C-T5",
            ),
        ],
        figure=_second_figure,
        departures=[*wide_departures(scale), SETTING],
        table=partial(_second_table, grid=grid),
    )


def _labels(rho: float, mu: float) -> dict[str, Any]:
    return {"method": "EJR.v2", "rho": rho, "mu": mu}


def _second_figure(results: Results) -> Panels:
    base = [
        *mean_line("SGD", percent(results, method="SGD")),
        *mean_line("EJR, ρ = 2", percent(results, method="EJR")),
    ]
    panels = [
        Panel(
            f"ρ = {rho:g} (the paper's)",
            "μ",
            "test accuracy, %",
            [over_label(results, percents, "mu", "EJR.v2", method="EJR.v2", rho=rho)],
            lines=base,
            x_names=[f"{mu:g}" for mu in levels_of(results, "mu", method="EJR.v2", rho=rho)],
        )
        for rho in levels_of(results, "rho", method="EJR.v2")
    ]
    return Panels(panels, columns=2, caption="Mean and standard deviation over seeds.")


def _second_table(results: Results, *, grid: list[tuple[float, float]]) -> Table:
    rows = [
        ["baseline", "paper", SECOND_BASE, "", ""],
        ["baseline", "ours", told(percent(results, method="SGD")), "", ""],
    ]
    for rho, mu in grid:
        labels, name = _labels(rho, mu), f"ρ {rho:g}, μ {mu:g}"
        gain = error_reduction(results, here=labels, there={"method": "SGD"})
        rows += [[name, "paper", *SECOND[rho, mu]], [name, "ours", told(percent(results, **labels)), *gain]]
    return Table(["setting", "source", "test accuracy", "Δ", "ERR"], rows)
