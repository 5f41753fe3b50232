"""What a recipe came to, as one file: the only place that knows its schema."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from spherometer.recipes.recipe import Table
from spherometer.recipes.verdicts import Verdict
from spherometer.records.files import write_whole
from spherometer.records.schema import plain

FORMAT = 1
PLAIN = ("id", "idea", "paper", "finding", "scale", "departures", "settings", "runs", "seconds", "provenance")


@dataclass(frozen=True)
class RecipeResult:
    """A recipe done at a scale: verdicts, and all one wants to know about how they were come by.

    Args:
        settings: what all runs have in common.
        runs: of each run its labels, key, state, seconds and message.
        seconds: of the whole recipe, the drawing included.
    """

    id: str
    idea: str
    paper: str
    finding: str
    scale: str
    verdicts: Sequence[Verdict]
    departures: Sequence[str]
    settings: Mapping[str, Any]
    runs: Sequence[Mapping[str, Any]]
    seconds: float
    provenance: Mapping[str, Any]
    table: Table | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        content = {"format": FORMAT} | {name: plain(getattr(self, name)) for name in PLAIN}
        content["verdicts"] = [verdict.to_dict() for verdict in self.verdicts]
        content["table"] = self.table and {
            "columns": plain(self.table.columns),
            "rows": [plain(row) for row in self.table.rows],
        }
        return content

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """What `to_dict` wrote; anything else is a ValueError that says what is wrong."""
        if not isinstance(content, Mapping) or content.get("format") != FORMAT:
            raise ValueError(f"expected the result of a recipe in format {FORMAT}, got something else")
        try:
            table = content["table"]
            entries: dict[str, Any] = {name: content[name] for name in PLAIN}
            entries["verdicts"] = [Verdict.from_dict(entry) for entry in content["verdicts"]]
            entries["table"] = None if table is None else Table(table["columns"], table["rows"])
            entries["seconds"] = float(entries["seconds"])
            entries["runs"] = [_run(entry) for entry in entries["runs"]]
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"expected the result of a recipe, but it is incomplete: {error!r}") from None
        return cls(**entries)

    def write(self, path: Path) -> None:
        """The file, whole or not at all."""
        write_whole(path, json.dumps(self.to_dict(), indent=1, ensure_ascii=False, allow_nan=False).encode())

    @classmethod
    def read(cls, path: Path) -> Self:
        """What `write` wrote; a file that is something else is a ValueError."""
        return cls.from_dict(read_json(path))


def read_json(path: Path) -> Any:
    """The content of a file of results; what is missing or damaged is a ValueError that names it."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"no {path.name}: it is not finished") from None
    except OSError as error:
        raise ValueError(f"{path.name} cannot be read: {error.strerror or error}") from None
    except ValueError:
        raise ValueError(f"{path.name} is not JSON: half-written, or damaged") from None


def _run(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {name: entry[name] for name in ("labels", "key", "state", "seconds", "message")}
