"""What is in a folder of results; what cannot be read is told, and does not hide the rest."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spherometer.figures.panels import Panels
from spherometer.recipes.recipe import place
from spherometer.recipes.result import RecipeResult


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
            result = RecipeResult.from_dict(_content(path / "result.json"))
        except ValueError as error:
            troubles.append(f"{path.name}: {error}")
            continue
        figure = None
        try:
            figure = Panels.from_dict(_content(path / "figure.json"))
        except ValueError as error:
            troubles.append(f"{path.name}: {error}; the rest of it is shown")
        done.append(Done(result, figure))
    if not done:
        reason = f": {troubles[0]}" if troubles else ""
        raise ValueError(f"{folder}: no result to show{reason}")
    return sorted(done, key=lambda one: (place(one.result.id), one.result.scale)), troubles


def _content(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"no {path.name}: it is not finished") from None
    except OSError as error:
        raise ValueError(f"{path.name} cannot be read: {error.strerror or error}") from None
    except ValueError:
        raise ValueError(f"{path.name} is not JSON: half-written, or damaged") from None
