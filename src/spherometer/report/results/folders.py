"""What is in a folder of results; what cannot be read is told, and does not hide the rest."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from spherometer.figures.panels import Panels
from spherometer.recipes.recipe import place
from spherometer.recipes.result import RecipeResult, read_json


@dataclass(frozen=True)
class Done:
    """A recipe that was run, and its figure where that can be read."""

    result: RecipeResult
    figure: Panels | None


def read_results(folder: Path) -> tuple[list[Done], list[str]]:
    """The results in `folder/recipes/*/` paper after paper, and a line for each that is missing or broken.

    Example:
        >>> done, troubles = read_results(Path("spherometer-results"))
    """
    shelf = folder / "recipes"
    if not shelf.is_dir():
        raise ValueError(f"{folder}: expected a folder of results, with recipes in it: make it by spherometer run")
    done: list[Done] = []
    troubles: list[str] = []
    for path in sorted(path for path in shelf.iterdir() if path.is_dir()):
        try:
            result = RecipeResult.read(path / "result.json")
        except ValueError as error:
            troubles.append(f"{path.name}: {error}")
            continue
        figure = None
        try:
            figure = Panels.from_dict(read_json(path / "figure.json"))
        except ValueError as error:
            troubles.append(f"{path.name}: {error}; the rest of it is shown")
        done.append(Done(result, figure))
    if not done:
        reason = f": {troubles[0]}" if troubles else ""
        raise ValueError(f"{folder}: no result to show{reason}")
    return sorted(done, key=lambda one: (place(one.result.id), one.result.scale)), troubles
