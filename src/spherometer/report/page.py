"""One self-contained page: prose, pictures, tables and facts in a template, with plotly.js inside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, ClassVar


@dataclass(frozen=True)
class Prose:
    """Paragraphs."""

    kind: ClassVar[str] = "prose"
    paragraphs: Sequence[str]
    title: str = ""


@dataclass(frozen=True)
class Picture:
    """A plotly description with a caption that says what to see."""

    kind: ClassVar[str] = "picture"
    title: str
    figure: dict[str, Any]
    caption: str = ""


@dataclass(frozen=True)
class Grid:
    """A table; a cell may hold several lines. Columns in `numeric` are set flush right, those in `fixed` never wrap."""

    kind: ClassVar[str] = "grid"
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    numeric: Sequence[int] = ()
    fixed: Sequence[int] = ()
    caption: str = ""


@dataclass(frozen=True)
class Facts:
    """Names and values: conventions, versions, seeds."""

    kind: ClassVar[str] = "facts"
    title: str
    entries: dict[str, str]


@dataclass(frozen=True)
class Page:
    """What a page says, in order; `headlines` are a few large numbers at the top, each (value, meaning)."""

    title: str
    lead: str
    sections: Sequence[Prose | Picture | Grid | Facts]
    headlines: Sequence[tuple[str, str]] = ()
    footer: str = ""


def render(page: Page) -> str:
    """The page as HTML; everything shown is escaped, nothing is fetched from anywhere."""
    import jinja2
    from plotly.offline import get_plotlyjs

    folder = files("spherometer.report")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    template = environment.from_string((folder / "page.html").read_text(encoding="utf-8"))
    pictured = any(section.kind == "picture" for section in page.sections)
    return template.render(
        page=page,
        style=(folder / "page.css").read_text(encoding="utf-8"),
        script=(folder / "page.js").read_text(encoding="utf-8"),
        plotly=get_plotlyjs() if pictured else "",
    )
