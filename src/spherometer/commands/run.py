"""`spherometer run`: an experiment of a paper from training to verdict; what is done is never done twice."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from spherometer.commands.errors import UsageError
from spherometer.commands.kinds import CountOrAuto, Folder

if TYPE_CHECKING:
    from rich.console import RenderableType

    from spherometer.recipes.result import RecipeResult

COLOURS = {"holds": "green", "fails": "red", "undecided": "yellow"}


@dataclass(frozen=True)
class Run:
    """Run experiments by their ids: train, measure, draw, judge. Exit code 1 says that a claim fails.

    Killed or interrupted, the same command goes on where it stopped. Runs that several experiments share are done once.
    """

    ids: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="ID [ID ...]", help_behavior_hint="(required)")
    ]
    """recipes such as A-F1, or a paper (A, B, C, D, TH), or all"""
    scale: str = "laptop"
    """smoke (seconds; shows that it runs), laptop (minutes), paper (the paper's own setting)"""
    out: Folder = Path("spherometer-results")
    """folder of the results; runs already in it are kept"""
    workers: CountOrAuto = None
    """local processes; as many as there are cores where not said"""
    ray: str | None = None
    """address of a Ray cluster instead: local (started here), auto, host:port, or ray://host:port"""
    slurm: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=VALUE ...")] = ()
    """submit the runs to SLURM instead, with parameters such as partition=cpu timeout_min=240"""
    retries: int = 1
    """times a crashed run is tried again"""
    json: bool = False
    """print JSON instead of a table"""

    def run(self) -> int:
        """Do the recipes one after the other and print their verdicts."""
        from spherometer.commands.output import note, show, show_json
        from spherometer.recipes import perform
        from spherometer.sweeps import sweeping
        from spherometer.sweeps.progress import shown

        chosen, parameters, ours = _chosen(self.ids), _parameters(self.slurm), sys.stdout
        (self.out / "recipes").mkdir(parents=True, exist_ok=True)  # refused before anything is trained
        results: list[RecipeResult] = []
        with (
            shown() as tell,
            sweeping(
                self.out, workers=self.workers, ray=self.ray, slurm=parameters, retries=self.retries, tell=tell
            ) as do,
        ):
            for recipe in chosen:
                note(f"{recipe.id} {recipe.idea}, {self.scale} scale")
                results.append(perform(recipe, self.scale, self.out, do))
                if not self.json:
                    with redirect_stdout(ours):  # a Ray cluster takes standard output for itself
                        show(*_report(results[-1], self.out))
        if self.json:
            show_json({"results": [result.to_dict() for result in results]})
        return int(any(verdict.answer == "fails" for result in results for verdict in result.verdicts))


def _chosen(ids: tuple[str, ...]) -> list[Any]:
    from spherometer.recipes import find_recipe, recipes

    if not ids:
        raise UsageError("expected ID, got nothing: spherometer recipes lists them", "run")
    known, found = recipes(), []
    for word in ids:
        family = [recipe for recipe in known.values() if word.upper() == recipe.paper or word == "all"]
        found += family or [find_recipe(word)]
    return list(dict.fromkeys(found))


def _parameters(words: tuple[str, ...]) -> dict[str, Any] | None:
    """`timeout_min=240` as {"timeout_min": 240}; None where SLURM was not asked for."""
    for word in words:
        if "=" not in word:
            raise ValueError(f"--slurm: expected NAME=VALUE, got {word!r}")
    pairs = (word.split("=", 1) for word in words)
    return {name: int(value) if value.isdigit() else value for name, value in pairs} or None


def _report(result: RecipeResult, out: Path) -> list[RenderableType]:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    from spherometer.report.results import words

    title = Text(f"{result.id}  {result.idea}", style="bold")
    table = Table(box=SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left")
    table.add_column("claim")
    table.add_column("verdict", no_wrap=True)
    table.add_column("effect (95 % interval)")
    for verdict in result.verdicts:
        answer = Text(f"{words.SYMBOLS[verdict.answer]} {verdict.answer}", style=COLOURS[verdict.answer])
        remarks = [words.chance(verdict), words.basis(verdict), verdict.remark]
        effect = "\n".join([words.effect(verdict), "; ".join(remark for remark in remarks if remark)])
        table.add_row(Text(verdict.sentence), answer, Text(effect))
    parts: list[RenderableType] = [table]
    failed = [run for run in result.runs if run["state"] == "failed"]
    if failed:
        parts.append(f"{len(failed)} of {len(result.runs)} runs failed; the first: {failed[0]['message']}")
    if result.scale == "smoke":
        parts.append("At smoke scale verdicts say only that the recipe runs.")
    folder = out / "recipes" / f"{result.id}.{result.scale}"
    return [*parts, f"Figure, data and verdicts: {folder}    Page of all results: spherometer report {out}"]
