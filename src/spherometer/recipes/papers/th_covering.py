"""Our evaluation of paper A's covering radii (TH-1): are delta-good radii good, counted by Monte Carlo?"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from spherometer.figures.panels import Panel, Panels, Series
from spherometer.recipes.claims import Inequality
from spherometer.recipes.recipe import Experiment, Scale, at_scale, recipe
from spherometer.recipes.results import Results, Run
from spherometer.records import RunWriter
from spherometer.sweeps import Job
from spherometer.theory import Cube, Sphere, covering_radius
from spherometer.zoo import uniform_cube, uniform_sphere

EPSILON = 0.1
FORMS = ("printed", "corrected", "solved")
SUPPORTS = ("cube 1", "cube 2", "cube 3", "sphere 1", "sphere 2")
NUMBERS = (50, 100, 200, 400)


@recipe(
    "TH-1",
    "do delta-good radii cover?",
    finding="samples cover cube and sphere at the radii of Eq 6 and 7 with probability at least 1 − ε",
    minutes=1,
)
def covering(scale: Scale) -> Experiment:
    """Covering radii of many draws of N samples against the printed, corrected and solved radius; A Thm 4.2, T48."""
    supports, numbers = (SUPPORTS[:2], NUMBERS[:2]) if scale == "smoke" else (SUPPORTS, NUMBERS)
    draws = at_scale(scale, smoke=20, laptop=200, paper=1000)
    return Experiment(
        runs=[_run(support, num, draws) for support in supports for num in numbers],
        claims=[
            Inequality(
                f"the {form} radius covers in at least {1 - EPSILON:.0%} of the draws",
                partial(_surplus, form=form),
                unit="share of draws − 0.9",
                source=f"TH-1; A Thm 4.2{'; A-e1, A-e3' if form != 'printed' else ''}",
            )
            for form in FORMS
        ],
        figure=_figure,
        departures=[
            f"our own: paper A evaluates none of its radii; ε = {EPSILON:g}, {draws} draws, 2,000 probes for each",
            "the covering radius is that of the probes, a lower bound of the true one",
        ],
    )


def perform(settings: Mapping[str, Any], folder: Path) -> None:
    """The run function: draw samples again and again, and count the draws that each radius covers."""
    kind, _, dimension = settings["support"].partition(" ")
    support = Cube(int(dimension)) if kind == "cube" else Sphere(int(dimension))
    draw = uniform_cube if kind == "cube" else uniform_sphere
    seeds = np.random.default_rng(settings["seed"]).integers(2**31, size=(settings["draws"], 2)).tolist()
    found = np.array(
        [
            covering_radius(
                draw(settings["num"], int(dimension), seed=first).inputs,
                draw(settings["probes"], int(dimension), seed=second).inputs,
            ).value
            for first, second in seeds
        ]
    )
    radii = support.radii(settings["num"], EPSILON)
    with RunWriter(folder, settings=settings, seed=settings["seed"], title="covering", resume=True) as run:
        for form in FORMS:
            radius = getattr(radii, form).value
            run.write(0, {form: radius, f"covered_{form}": float((found <= radius).mean())})
        run.write(0, {"observed": float(np.quantile(found, 1 - EPSILON))})


def _run(support: str, num: int, draws: int) -> Run:
    settings = {"support": support, "num": num, "draws": draws, "probes": 2000, "seed": 0}
    labels = {"support": support, "num": num, "seed": 0}
    return Run(labels, Job(f"{__name__}:perform", settings, f"{support}, {num} samples"))


def _surplus(results: Results, *, form: str) -> list[float]:
    return [share - (1 - EPSILON) for share in results.final(f"covered_{form}")]


def _figure(results: Results) -> Panels:
    panels = []
    for support in results.values("support"):
        runs = sorted(results.choose(support=support), key=lambda run: run.labels["num"])
        ordered = Results(runs, results.root)
        numbers = [run.labels["num"] for run in runs]

        def values(name: str, numbers: list[int] = numbers, ordered: Results = ordered) -> list[float]:
            return [ordered.final(name, num=num)[0] for num in numbers]

        styles = {"printed": "dotted", "corrected": "dashed", "solved": "solid"}
        places = range(len(numbers))
        series = [Series(form, places, values(form), style=style) for form, style in styles.items()]
        series.append(Series("observed, 90 %", places, values("observed"), style="markers"))
        names = [str(num) for num in numbers]
        panels.append(Panel(support, "samples N", "radius", series, log_y=True, x_names=names))
    return Panels(
        panels, caption=f"Radii that cover with probability 1 − {EPSILON:g}, and what draws of N samples need."
    )
