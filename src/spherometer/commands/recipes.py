"""`spherometer recipes`: the catalogue of experiments, or one of them in full."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from spherometer.commands.kinds import Folder

if TYPE_CHECKING:
    from rich.console import RenderableType

    from spherometer.recipes import Recipe


@dataclass(frozen=True)
class Recipes:
    """List the experiments of the papers with what they should find, or show the plan and the claims of one."""

    id: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="[ID]")] = "all"
    """the one to show, such as A-F1"""
    scale: str = "laptop"
    """of the plan that is shown: smoke, laptop or paper"""
    out: Folder = Path("spherometer-results")
    """folder of results, to tell which recipes are done"""
    json: bool = False
    """print JSON instead of text"""

    def run(self) -> int:
        """Print the catalogue."""
        from spherometer.commands.output import show, show_json
        from spherometer.recipes import find_recipe, recipes

        chosen = list(recipes().values()) if self.id == "all" else [find_recipe(self.id)]
        if self.json:
            show_json({"recipes": [_described(recipe, self.out) for recipe in chosen]})
        elif self.id == "all":
            show(*_catalogue(chosen, self.out))
        else:
            show(*_in_full(chosen[0], self.scale, self.out))
        return 0


def _described(recipe: Recipe, out: Path) -> dict[str, Any]:
    from spherometer.recipes import SCALES

    return {
        "id": recipe.id,
        "idea": recipe.idea,
        "finding": recipe.finding,
        "laptop_minutes": recipe.minutes,
        "times": {scale: recipe.time(scale) for scale in SCALES},
        "done": _states(recipe, out),
    }


def _states(recipe: Recipe, out: Path) -> dict[str, str]:
    """The answers of what was run, and how long its runs took: `laptop: 2 hold, 1 undecided; 8 min of computing`."""
    from spherometer.recipes import SCALES
    from spherometer.recipes.result import RecipeResult
    from spherometer.report.results.words import tally, told
    from spherometer.sweeps.progress import duration

    found: dict[str, str] = {}
    for scale in SCALES:
        path = out / "recipes" / f"{recipe.id}.{scale}" / "result.json"
        if path.exists():
            try:
                result = RecipeResult.read(path)
            except ValueError as error:  # one damaged file hides none of the others
                found[scale] = f"{path.parent.name}: {error}"
            else:
                took = duration(sum(float(run["seconds"]) for run in result.runs))
                found[scale] = f"{told(tally(result.verdicts))}; {took} of computing"
    return found


def _catalogue(chosen: list[Recipe], out: Path) -> list[RenderableType]:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("id", style="bold", no_wrap=True)
    table.add_column("idea and finding")
    table.add_column("laptop", justify="right", no_wrap=True)
    table.add_column("done")
    for recipe in chosen:
        done = "\n".join(f"{scale}: {answers}" for scale, answers in _states(recipe, out).items())
        words = Text.assemble(f"{recipe.idea}\n", (recipe.finding, "dim"))
        table.add_row(recipe.id, words, f"{recipe.minutes:g} min", done)
    footer = "Run one: spherometer run A-F1 --scale smoke    Its plan and claims: spherometer recipes A-F1"
    times = "smoke ends in seconds to a minute, laptop in the minutes said on two cores; of paper the time is not known"
    return [table, f"{len(chosen)} recipes. {times}.", footer]


def _in_full(recipe: Recipe, scale: str, out: Path) -> list[RenderableType]:
    from spherometer.recipes import SCALES

    experiment = recipe.at(scale)
    lines = [f"{recipe.id}  {recipe.idea}", f"The paper finds: {recipe.finding}.", ""]
    lines += [f"At {scale} scale {len(experiment.runs)} runs, claims fixed before them:"]
    lines += [f"  - {claim.sentence}" for claim in experiment.claims]
    lines += ["", "Time:", *(f"  {name}: {recipe.time(name)}" for name in SCALES)]
    lines += ["", "Departures from the paper:", *(f"  - {text}" for text in experiment.departures or ["none"])]
    lines += ["", "Runs:", *(f"  {run.job.key}  {run.job.title}" for run in experiment.runs)]
    lines += [f"\nDone at {name} scale: {answers}" for name, answers in _states(recipe, out).items()]
    return ["\n".join(lines)]
