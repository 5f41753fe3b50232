"""What a figure shows, in plain frozen data: series, threshold lines, panels.  Two renderers read it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

STYLES = ("solid", "dashed", "dotted", "markers", "bars")
Numbers = Sequence[float] | np.ndarray


@dataclass(frozen=True)
class Line:
    """A straight line across a panel, such as 2/lr: at a height `y` or at a place `x`; `colour` as that of a series."""

    label: str
    x: float | None = None
    y: float | None = None
    colour: int | None = None

    def __post_init__(self) -> None:
        if (self.x is None) == (self.y is None):
            raise ValueError(f"line {self.label!r}: expected x or y, and not both")
        place = self.x if self.y is None else self.y
        if place is None or not math.isfinite(place):
            raise ValueError(f"line {self.label!r}: expected a finite place, got {place}")


@dataclass(frozen=True)
class Series:
    """Numbers over numbers, with a band (or, for markers and bars, error bars) from `low` to `high`.

    A nan is a gap. `colour` is a place in the palette; without it, equal labels of a figure have equal colours.
    A series without a label is drawn and not named.

    Example:
        >>> Series("lr 0.1", x=[0, 10, 20], y=[1.0, 2.0, 2.5], style="dashed")
    """

    label: str
    x: Numbers
    y: Numbers
    low: Numbers | None = None
    high: Numbers | None = None
    style: str = "solid"
    colour: int | None = None

    def __post_init__(self) -> None:
        if self.style not in STYLES:
            raise ValueError(f"series {self.label!r}: expected a style of {', '.join(STYLES)}, got {self.style!r}")
        if (self.low is None) != (self.high is None):
            raise ValueError(f"series {self.label!r}: expected low and high, or neither")
        for name in ("x", "y", "low", "high"):
            values = getattr(self, name)
            if values is not None:
                object.__setattr__(self, name, tuple(float(value) for value in values))
                _same_length(self.label, name, len(getattr(self, name)), len(self.x))


@dataclass(frozen=True)
class Panel:
    """Series on two axes; `x_names` are written at the places 0, 1, 2, ... instead of numbers."""

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    log_x: bool = False
    log_y: bool = False
    lines: Sequence[Line] = ()
    x_names: Sequence[str] = ()

    def __post_init__(self) -> None:
        for name in ("series", "lines", "x_names"):
            object.__setattr__(self, name, tuple(getattr(self, name)))


@dataclass(frozen=True)
class HeatPanel:
    """A matrix in colours that are neutral at zero and full at ±`limit` (its largest entry where none is given).

    `numbers` writes each entry into its cell, and the interval from `low` to `high` beneath it: a matrix of
    correlations. A nan is an empty cell.
    """

    title: str
    matrix: Sequence[Numbers]
    rows: Sequence[str]
    columns: Sequence[str]
    limit: float | None = None
    low: Sequence[Numbers] | None = None
    high: Sequence[Numbers] | None = None
    numbers: bool = False
    x_label: str = ""
    y_label: str = ""

    def __post_init__(self) -> None:
        if (self.low is None) != (self.high is None):
            raise ValueError(f"panel {self.title!r}: expected low and high, or neither")
        if self.limit is not None and not 0 < self.limit < math.inf:
            raise ValueError(f"panel {self.title!r}: expected a positive limit, got {self.limit}")
        for name in ("rows", "columns"):
            object.__setattr__(self, name, tuple(str(entry) for entry in getattr(self, name)))
        for name in ("matrix", "low", "high"):
            table = getattr(self, name)
            if table is not None:
                object.__setattr__(self, name, tuple(tuple(float(entry) for entry in row) for row in table))
                _same_length(self.title, f"rows of {name}", len(table), len(self.rows))
                for row in table:
                    _same_length(self.title, f"columns of {name}", len(row), len(self.columns))

    @property
    def reach(self) -> float:
        """Where the colours are full."""
        sizes = (abs(entry) for row in self.matrix for entry in row if math.isfinite(entry))
        return self.limit or max(sizes, default=0.0) or 1.0


@dataclass(frozen=True)
class Panels:
    """A figure: panels in reading order, so many in a row, and a caption that says what to see.

    Example:
        >>> Panels([Panel("sharpness", "step", "λ₁", [series], lines=[Line("2/lr", y=25.0)])], caption="...")
    """

    panels: Sequence[Panel | HeatPanel]
    columns: int = 3
    caption: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "panels", tuple(self.panels))
        if not self.panels or self.columns < 1:
            raise ValueError(f"expected panels and columns, got {len(self.panels)} and {self.columns}")

    def colour_of(self, series: Series) -> int:
        """The palette's place of a series: its own, or that of its label among the labels of the figure."""
        if series.colour is not None:
            return series.colour
        found = {entry.label: None for panel in self.panels if isinstance(panel, Panel) for entry in panel.series}
        return list(found).index(series.label)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; a nan becomes null, infinities become words."""
        return {
            "panels": [_dict_of(panel) for panel in self.panels],
            "columns": self.columns,
            "caption": self.caption,
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """What `to_dict` wrote; anything else is a ValueError."""
        try:
            return cls([_panel_of(entry) for entry in content["panels"]], int(content["columns"]), content["caption"])
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"expected the description of a figure, got something else: {error!r}") from None


def _same_length(owner: str, name: str, found: int, wanted: int) -> None:
    if found != wanted:
        raise ValueError(f"{owner!r}: expected {wanted} {name}, got {found}")


def _dict_of(panel: Panel | HeatPanel) -> dict[str, Any]:
    if isinstance(panel, HeatPanel):
        return {"kind": "heat"} | {name: _plain(value) for name, value in vars(panel).items()}
    parts = {
        "series": [{name: _plain(value) for name, value in vars(entry).items()} for entry in panel.series],
        "lines": [dict(vars(line)) for line in panel.lines],
        "x_names": list(panel.x_names),
    }
    return {"kind": "axes"} | vars(panel) | parts


def _panel_of(content: Mapping[str, Any]) -> Panel | HeatPanel:
    entries = {name: value for name, value in content.items() if name != "kind"}
    if content["kind"] == "heat":
        tables = {name: _numbers(entries[name]) for name in ("matrix", "low", "high")}
        return HeatPanel(**(entries | tables))
    if content["kind"] != "axes":
        raise ValueError(f"expected a panel of kind axes or heat, got {content['kind']!r}")
    series = [
        Series(**(entry | {name: _numbers(entry[name]) for name in ("x", "y", "low", "high")}))
        for entry in entries["series"]
    ]
    return Panel(**(entries | {"series": series, "lines": [Line(**line) for line in entries["lines"]]}))


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value


def _numbers(value: Any) -> Any:
    """The inverse of `_plain` inside a list of numbers; None for no list at all."""
    if value is None:
        return None
    return [
        _numbers(entry) if isinstance(entry, list) else math.nan if entry is None else float(entry) for entry in value
    ]
