"""What a run folder holds: the tables of `run.db`, and how a number becomes rows of it."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass, field, fields
from typing import Any

import numpy as np

VERSION = 1
DATABASE, LOCK, ARRAYS = "run.db", "run.lock", "arrays"

TABLES = """
CREATE TABLE manifest (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE status (id INTEGER PRIMARY KEY AUTOINCREMENT, time REAL, state TEXT, message TEXT, session TEXT);
CREATE TABLE rows (
    id INTEGER PRIMARY KEY AUTOINCREMENT, step INTEGER NOT NULL, name TEXT NOT NULL, part TEXT NOT NULL,
    value REAL, error REAL, kind TEXT, source TEXT, low REAL, high REAL, products INTEGER, seconds REAL,
    converged INTEGER, message TEXT, note TEXT, time REAL, UNIQUE (step, name, part));
CREATE TABLE arrays (
    id INTEGER PRIMARY KEY AUTOINCREMENT, step INTEGER NOT NULL, name TEXT NOT NULL,
    dtype TEXT, shape TEXT, content BLOB, file TEXT, time REAL, UNIQUE (step, name));
CREATE TABLE events (
    id INTEGER PRIMARY KEY AUTOINCREMENT, step INTEGER NOT NULL, name TEXT NOT NULL,
    text TEXT, details TEXT, time REAL, UNIQUE (step, name));
"""


@dataclass(frozen=True)
class Row:
    """One number of one step; `part` names the entry of a vector. A value that is not a number is None, with a
    message.
    """

    step: int
    name: str
    part: str = ""
    value: float | None = None
    error: float | None = None
    kind: str = ""
    source: str = ""
    low: float | None = None  # ends of the 95 % interval over data samples, if there is one
    high: float | None = None
    products: int = 0
    seconds: float = 0.0
    converged: bool = True
    message: str = ""
    note: str = ""
    time: float = field(default_factory=time.time)

    @property
    def record(self) -> tuple[Any, ...]:
        """As it is stored."""
        return astuple(self)


@dataclass(frozen=True)
class Event:
    """Something that happened at a step: its name, a sentence, and the numbers behind it."""

    step: int
    name: str
    text: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    time: float = field(default_factory=time.time)

    @property
    def record(self) -> tuple[Any, ...]:
        """As it is stored."""
        return self.step, self.name, self.text, to_json(self.details), self.time


ROW_COLUMNS = tuple(entry.name for entry in fields(Row))
EVENT_COLUMNS = tuple(entry.name for entry in fields(Event))
ARRAY_COLUMNS = ("step", "name", "dtype", "shape", "content", "file", "time")


def rows_of(step: int, name: str, value: Any) -> Iterator[Row]:
    """The rows of a plain number, an Estimate or a Measurement; one for each entry of a vector.

    Example:
        >>> [row.value for row in rows_of(10, "loss", 0.25)]
        [0.25]
    """
    estimate = getattr(value, "estimate", value)
    if not hasattr(estimate, "to_dict"):
        number = _number(estimate)
        yield Row(step, name, value=number, message="" if number is not None else "not a number")
        return
    told = estimate.to_dict()
    values, errors = np.ravel(_plain(told["value"])), np.ravel(_plain(told["error"]))
    vector = np.ndim(told["value"]) > 0
    labels = told["labels"] or ([str(index) for index in range(len(values))] if vector else [""])
    low, high = (_number(_plain(end)) for end in told["interval"] or ("nan", "nan"))
    for index, label in enumerate(labels):
        number, error = _number(values[index]), _number(errors[min(index, len(errors) - 1)])
        yield Row(
            step,
            name,
            label,
            number,
            error,
            told["kind"],
            told["source"],
            low,
            high,
            told["products"] if index == 0 else 0,  # a vector is paid for once: sums over rows stay right
            told["seconds"] if index == 0 else 0.0,
            told["converged"],
            told["message"] or ("" if number is not None else "not a number"),
            told["note"],
        )


def to_json(content: Any) -> str:
    """Plain data as text; what JSON does not know becomes a string."""
    return json.dumps(plain(content), sort_keys=True, allow_nan=False)


def flat(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested dictionaries as one, with dotted names.

    Example:
        >>> flat({"method": {"momentum": 0.9}, "seed": 0})
        {'method.momentum': 0.9, 'seed': 0}
    """
    found: dict[str, Any] = {}
    for name, value in content.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return found


def plain(content: Any) -> Any:
    """Dictionaries, lists, numbers and strings all the way down; what JSON cannot hold (inf, nan) becomes a string."""
    if isinstance(content, Mapping):
        return {str(key): plain(value) for key, value in content.items()}
    if isinstance(content, list | tuple | set | frozenset):
        return [plain(value) for value in content]
    if isinstance(content, float) and not math.isfinite(content):
        return str(content)
    return content if content is None or isinstance(content, str | int | float) else str(content)


def _plain(value: Any) -> Any:
    """Numbers that were written as strings because JSON has no word for them."""
    return [_plain(entry) for entry in value] if isinstance(value, list) else float(value)


def _number(value: Any) -> float | None:
    number = float(value)
    return None if math.isnan(number) else number
