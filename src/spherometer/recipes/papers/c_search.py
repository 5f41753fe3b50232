"""Paper C: EJR over strengths, learning rates and lengths of training (C-T5)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from spherometer.figures.panels import Panel, Panels
from spherometer.recipes.claims import Claim
from spherometer.recipes.ends import label_panel, mean_line, over_label, told
from spherometer.recipes.margins import levels_of
from spherometer.recipes.papers.c_explicit import POINTS, plain, regularised, seeds
from spherometer.recipes.papers.c_methods import (
    FULL_RATES,
    NARROWER,
    SIMPLE_RATES,
    error_reduction,
    full_batch_departures,
    mean_better,
    percent,
    percents,
    simple_departures,
    simple_run,
    wide_departures,
    wide_epochs,
    wide_run,
)
from spherometer.recipes.papers.c_printed import RADII, SEARCH, SEARCH_WHOLE
from spherometer.recipes.papers.c_wide import SETTING
from spherometer.recipes.recipe import Experiment, Scale, Table, recipe
from spherometer.recipes.results import Results

BEST: dict[str, tuple[float, ...]] = {"cifar10": (2,), "cifar100": (4, 5)}  # radii of the text
WIDE_SEEDS = {"smoke": 1, "laptop": 3, "paper": 3}


@recipe(
    "C-T5",
    "EJR improves on its baseline over strengths, rates and lengths",
    finding="SimpleCNN +4 .. +11 points; WRN-28-10 best at ρ = 2 (CIFAR-10) and 4-5 (CIFAR-100)",
    minutes=3,
)
def search_table(scale: Scale) -> Experiment:
    """SimpleCNN over rates with EJR, WRN-28-10 over radii of efficient EJR at two lengths; C Table 5, C-e10, C-e11."""
    small, full, wide = _search_rows(scale)
    runs = [
        simple_run(scale, rate, method, seed, coefficient=strength, whole=whole, pair=f"{rate:g} {strength:g}")
        for rows, whole in ((small, False), (full, True))
        for rate, strength in rows
        for method in ("SGD", "EJR")
        for seed in seeds(scale)
    ]
    for (data, epochs), radii in wide.items():
        for seed in range(WIDE_SEEDS[scale]):
            runs.append(wide_run(scale, "SGD", seed, data=data, epochs=epochs))
            runs += [wide_run(scale, "EJR", seed, data=data, epochs=epochs, rho=rho) for rho in radii]
    cases = [
        ({**regularised(rate, whole=whole), "pair": f"{rate:g} {strength:g}"}, plain(rate, whole=whole))
        for rows, whole in ((small, False), (full, True))
        for rate, strength in rows
    ]
    return Experiment(
        runs=runs,
        claims=[
            Claim(
                "EJR improves SimpleCNN, on average over rates and batches",
                partial(mean_better, cases=cases),
                unit=POINTS,
                source="C-T5; 5.3 item 8",
            ),
            *_radius_claims(scale, wide),
        ],
        figure=partial(_search_figure, scale=scale, wide=wide),
        departures=[
            *dict.fromkeys([*simple_departures(scale), *full_batch_departures(scale), *wide_departures(scale)]),
            SETTING,
            *([] if scale == "paper" else ["no rows of CIFAR-100"]),
            "SimpleCNN rows use the simple EJR, though the title says efficient (C-e11)",
        ],
        table=partial(_search_table, scale=scale, rows=(small, full), wide=wide),
    )


def _search_rows(scale: Scale) -> tuple[list[Any], list[Any], dict[tuple[str, int], list[float]]]:
    """(rate, coefficient) pairs in small and full batches, and the radii of each (data, epochs)."""
    wide = {key: list(radii) for key, (_, radii) in RADII.items()}
    if scale == "paper":
        return list(SEARCH), list(SEARCH_WHOLE), wide
    small = [(rate, strength) for rate, strength in SEARCH if rate in SIMPLE_RATES[scale]]
    full = [(rate, strength) for rate, strength in SEARCH_WHOLE if rate in FULL_RATES[scale]]
    lengths = {key: radii for key, radii in wide.items() if key[0] == "cifar10"}
    return small, full, lengths if scale == "laptop" else {("cifar10", 200): [0.5, 2, 3]}


def _called(scale: Scale, data: str, epochs: int) -> str:
    """What is run: no data set of the paper where digits stand for it."""
    length = f"{wide_epochs(scale, epochs)} epochs"
    return f"{data}, {length}" if scale == "paper" else f"digits, {length}"


def _radius_claims(scale: Scale, wide: dict[tuple[str, int], list[float]]) -> list[Claim]:
    found = []
    tenth = "" if scale == "paper" else f" (1/{NARROWER} of it)"
    network = "wide" if scale == "paper" else "residual"
    for (data, epochs), radii in wide.items():
        labels: dict[str, Any] = {"data": data, "epochs": epochs}
        where = _called(scale, data, epochs)
        found.append(
            Claim(
                f"efficient EJR improves the {network} network on {where}, on average over radii",
                partial(
                    mean_better,
                    cases=[({"method": "EJR", "rho": rho, **labels}, {"method": "SGD", **labels}) for rho in radii],
                ),
                unit=POINTS,
                source="C-T5",
            )
        )
        best = [rho for rho in BEST[data] if rho in radii]
        if best and {radii[0], radii[-1]}.isdisjoint(best):
            found.append(
                Claim(
                    f"ρ = {' and '.join(f'{rho:g}' for rho in best)}{tenth} is better than the smallest and the "
                    f"largest ρ on {where}",
                    partial(_above_the_ends, best=best, ends=(radii[0], radii[-1]), **labels),
                    unit=f"{POINTS} above the better of both",
                    source="C-T5",
                )
            )
    return found


def _above_the_ends(results: Results, *, best: list[float], ends: tuple[float, float], **labels: Any) -> list[float]:
    def at(rho: float) -> np.ndarray:
        return percent(results, method="EJR", rho=rho, **labels)

    margins = np.mean([at(rho) for rho in best], 0) - np.max([at(rho) for rho in ends], 0)
    return [float(margin) for margin in margins]


def _search_figure(results: Results, *, scale: Scale, wide: dict[tuple[str, int], list[float]]) -> Panels:
    panels = []
    for whole, title in ((False, "SimpleCNN, small batches"), (True, "SimpleCNN, full batch")):
        series = [over_label(results, percents, "rate", name, method=name, whole=whole) for name in ("SGD", "EJR")]
        names = [f"{rate:g}" for rate in levels_of(results, "rate", method="SGD", whole=whole)]
        panels.append(Panel(title, "learning rate", "test accuracy, %", series, x_names=names))
    lines: list[tuple[str, dict[str, Any]]] = [
        (_called(scale, data, epochs), {"data": data, "epochs": epochs}) for data, epochs in wide
    ]
    title = "wide network" if scale == "paper" else "residual network"
    by_radius = label_panel(results, title, percents, "rho", "ρ (the paper's)", lines, method="EJR")
    bases = [mean_line(f"SGD, {name}", percent(results, method="SGD", **labels)) for name, labels in lines]
    panels.append(replace(by_radius, y_label="test accuracy, %", lines=[line for base in bases for line in base]))
    return Panels(panels, caption="Baseline and EJR; mean and standard deviation over seeds.")


def _search_table(
    results: Results, *, scale: Scale, rows: tuple[list[Any], list[Any]], wide: dict[tuple[str, int], list[float]]
) -> Table:
    found: list[list[str]] = []
    for name, chosen, printed, whole in (
        ("SimpleCNN B=128", rows[0], SEARCH, False),
        ("SimpleCNN full batch", rows[1], SEARCH_WHOLE, True),
    ):
        for rate, strength in chosen:
            here = {**regularised(rate, whole=whole), "pair": f"{rate:g} {strength:g}"}
            found += _both(
                results, f"{name}, lr {rate:g}, λ {strength:g}", printed[rate, strength], here, plain(rate, whole=whole)
            )
    for (data, epochs), radii in wide.items():
        base, entries = RADII[data, epochs]
        for rho in radii:
            labels = {"data": data, "epochs": epochs}
            here = {"method": "EJR", "rho": rho, **labels}
            found += _both(
                results,
                f"WRN-28-10 {data}, {epochs} epochs, ρ {rho:g}",
                (base, *entries[rho]),
                here,
                {"method": "SGD", **labels},
                ours=None if scale == "paper" else f"ResNet-8 {_called(scale, data, epochs)}, ρ {rho / NARROWER:g}",
            )
    return Table(["setting", "source", "baseline", "with EJR", "Δ", "ERR"], found)


def _both(
    results: Results,
    name: str,
    printed: tuple[str, ...],
    here: dict[str, Any],
    there: dict[str, Any],
    ours: str | None = None,
) -> list[list[str]]:
    """A row of the paper and ours, with its name where that is another."""
    found = [
        told(percent(results, **there)),
        told(percent(results, **here)),
        *error_reduction(results, here=here, there=there),
    ]
    return [[name, "paper", *printed], [ours or name, "ours", *found]]
