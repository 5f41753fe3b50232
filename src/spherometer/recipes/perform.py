"""A recipe done: its runs swept, its claims judged, its figure drawn, all of it written to a folder."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from spherometer.figures.panels import Panel, Panels, draw_panels, panels_csv
from spherometer.recipes.claims import MISSED, judge
from spherometer.recipes.recipe import Experiment, Recipe, Table
from spherometer.recipes.result import RecipeResult
from spherometer.recipes.results import Results, Run
from spherometer.records.files import write_whole
from spherometer.records.provenance import provenance
from spherometer.records.schema import flat, to_json
from spherometer.sweeps import Job, Outcome
from spherometer.sweeps.attempt import one_line

Sweep = Callable[[list[Job]], list[Outcome]]
PICTURES = ("png", "svg", "pdf")
NAMED = 3  # failed runs that a caption names


def perform(recipe: Recipe, scale: str, out: Path, sweep: Sweep) -> RecipeResult:
    """Do what is not done yet, judge and draw; the result is in `out/recipes/ID.scale`.

    Runs are shared by all recipes of the folder: one with the same settings is done once. A run that failed leaves
    its claims undecided, and is named in the result; figure and table show the seeds that are left, and the caption
    says which are missing.

    Example:
        >>> perform(find_recipe("A-F1"), "smoke", Path("results"), lambda jobs: sweep(jobs, Path("results")))
    """
    began, experiment = time.perf_counter(), recipe.at(scale)
    runs = list(experiment.runs)
    outcomes = sweep([run.job for run in runs])
    if experiment.then is not None:
        later = list(experiment.then(Results(runs, out)))
        outcomes, runs = [*outcomes, *sweep([run.job for run in later])], [*runs, *later]
    results = Results(runs, out)
    result = RecipeResult(
        id=recipe.id,
        idea=recipe.idea,
        paper=recipe.paper,
        finding=recipe.finding,
        scale=scale,
        verdicts=judge(experiment.claims, results),
        departures=list(experiment.departures),
        settings=_shared(runs),
        runs=[_told(run, outcome) for run, outcome in zip(runs, outcomes, strict=True)],
        seconds=time.perf_counter() - began,
        provenance=provenance(),
        table=_table(experiment, results),
    )
    _write(result, experiment, results, out / "recipes" / f"{recipe.id}.{scale}")
    return result


def _write(result: RecipeResult, experiment: Experiment, results: Results, folder: Path) -> None:
    """The figure in every form first, the result last: where a result is, everything is."""
    panels = _figure(experiment, results)
    folder.mkdir(parents=True, exist_ok=True)
    draw_panels(panels, *(folder / f"figure.{ending}" for ending in PICTURES))
    write_whole(folder / "figure.json", to_json(panels.to_dict()).encode())
    write_whole(folder / "data.csv", panels_csv(panels).encode())
    result.write(folder / "result.json")


def _figure(experiment: Experiment, results: Results) -> Panels:
    try:
        panels = experiment.figure(results.left())
    except MISSED as error:
        panels = Panels([Panel("no figure", "", "", [])], columns=1, caption=f"could not be drawn: {one_line(error)}")
    return replace(panels, caption=" ".join(filter(None, (panels.caption, _missing(results)))))


def _missing(results: Results) -> str:
    """1 of 6 runs failed: rate 0.1, seed 0."""
    if not results.missing:
        return ""
    named = [", ".join(f"{name} {value}" for name, value in run.labels.items()) for run in results.missing]
    more = "; ..." if len(named) > NAMED else "."
    num = len({run.job.key for run in results.runs})
    return f"{len(named)} of {num} runs failed: {'; '.join(named[:NAMED])}{more}"


def _table(experiment: Experiment, results: Results) -> Table | None:
    if experiment.table is None:
        return None
    try:
        return experiment.table(results.left())
    except MISSED as error:
        return Table(["table"], [[f"could not be made: {one_line(error)}"]])


def _told(run: Run, outcome: Outcome) -> dict[str, Any]:
    return {
        "labels": dict(run.labels),
        "key": run.job.key,
        "state": outcome.state,
        "seconds": outcome.seconds,
        "message": outcome.message,
    }


def _shared(runs: list[Run]) -> dict[str, Any]:
    """What all runs have in common, by dotted names; nothing where there are none."""
    if not runs:
        return {}
    first, *others = (flat(run.job.settings) for run in runs)
    return {name: value for name, value in first.items() if all(one.get(name) == value for one in others)}
