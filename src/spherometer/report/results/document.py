"""The page of results as HTML: what it says is put together here, how it looks is in the template."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from spherometer import __version__
from spherometer.figures.panels import plotly_panels
from spherometer.recipes.verdicts import ANSWERS, Verdict
from spherometer.report.results import words
from spherometer.report.results.comparison import Block, Side, compared
from spherometer.report.results.folders import Done
from spherometer.report.results.marks import interval_mark, stamp
from spherometer.sweeps.progress import duration


def results_page(sides: Sequence[Side], troubles: Sequence[str] = ()) -> str:
    """One HTML file: the verdicts of all recipes, then each recipe; two sides stand beside each other.

    Everything shown is escaped, nothing is fetched from anywhere.

    Example:
        >>> results_page([Side("laptop", read_results(Path("results"))[0])])
    """
    import jinja2
    from plotly.offline import get_plotlyjs

    report, own = files("spherometer.report"), files("spherometer.report.results")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"number": words.number, "duration": duration}
    template = environment.from_string((own / "results.html").read_text(encoding="utf-8"))
    blocks = compared(sides)
    return template.render(
        title=_title(sides, blocks),
        lead=_lead(sides),
        sides=[{"name": side.name, "counts": words.tally(counted(side))} for side in sides],
        answers=ANSWERS,
        symbols=words.SYMBOLS,
        troubles=list(troubles),
        recipes=sum(done.result.scale != "smoke" for done in sides[0].done),
        smoke=sum(done.result.scale == "smoke" for side in sides for done in side.done),
        blocks=[_block(block, place) for place, block in enumerate(blocks)],
        version=__version__,
        style="\n".join(path.read_text(encoding="utf-8") for path in (report / "page.css", own / "results.css")),
        script=(report / "page.js").read_text(encoding="utf-8"),
        plotly=get_plotlyjs(),
    )


def counted(side: Side) -> list[Verdict]:
    """The verdicts that say something: those of the smoke scale only show that recipes run."""
    return [verdict for done in side.done if done.result.scale != "smoke" for verdict in done.result.verdicts]


def _title(sides: Sequence[Side], blocks: Sequence[Block]) -> str:
    if len(sides) > 1:
        num = sum(row.differs for block in blocks for row in block.rows)
        return f"{num or 'No'} answer{'s differ' if num != 1 else ' differs'}"
    num = len(counted(sides[0]))
    return f"{num} claims, tested" if num else "Smoke only: nothing is tested yet"


def _lead(sides: Sequence[Side]) -> str:
    if len(sides) > 1:
        told = "; ".join(f"{side.name}: {words.told(words.tally(counted(side)))}" for side in sides)
        return f"Two folders of results side by side, answers that differ first. {told}."
    papers = sorted({done.result.paper for done in sides[0].done if done.result.scale != "smoke"})
    if not papers:
        return "Every result here is at smoke scale, which shows that recipes run and says nothing about the papers."
    told = words.told(words.tally(counted(sides[0])))
    num = sum(done.result.scale != "smoke" for done in sides[0].done)
    return (
        f"Sentences of the papers as statistical tests: {told}. They come from "
        f"{num} recipe{'s' * (num != 1)} ({', '.join(papers)})."
    )


def _block(block: Block, place: int) -> dict[str, Any]:
    first = block.first.result
    return {
        "anchor": f"{_slug(first.id)}-{place}",
        "id": first.id,
        "idea": first.idea,
        "finding": first.finding,
        "scales": [done.result.scale if done else "" for done in block.sides],
        "stamp": stamp(block.first.figure) if block.first.figure else "",
        "smoke": all(done is None or done.result.scale == "smoke" for done in block.sides),
        "differs": block.differs,
        "rows": [
            {
                "sentence": row.sentence,
                "source": row.source,
                "differs": row.differs,
                "verdicts": [_verdict(verdict) if verdict else None for verdict in row.verdicts],
            }
            for row in block.rows
        ],
        "sides": [_side(done) if done else None for done in block.sides],
    }


def _verdict(verdict: Verdict) -> dict[str, Any]:
    return {
        "answer": verdict.answer,
        "effect": words.number(verdict.effect),
        "interval": words.interval(verdict),
        "unit": verdict.unit,
        "chance": words.chance(verdict),
        "basis": words.basis(verdict),
        "remark": verdict.remark,
        "mark": interval_mark(verdict),
    }


def _side(done: Done) -> dict[str, Any]:
    result = done.result
    return {
        "scale": result.scale,
        "caption": done.figure.caption if done.figure else "",
        "columns": min(done.figure.columns, len(done.figure.panels)) if done.figure else 1,
        "panels": _panels(done),
        "table": result.table,
        "departures": result.departures,
        "settings": words.cells(result.settings),
        "labels": list(dict.fromkeys(name for run in result.runs for name in run["labels"])),
        "runs": result.runs,
        "failed": [run for run in result.runs if run["state"] == "failed"],
        "seconds": result.seconds,
        "inside": sum(float(run["seconds"]) for run in result.runs),
        "provenance": words.cells(_without_process(result.provenance)),
    }


def _panels(done: Done) -> list[dict[str, Any]]:
    if done.figure is None:
        return []
    pairs = zip(done.figure.panels, plotly_panels(done.figure), strict=True)
    return [{"title": panel.title, "figure": figure} for panel, figure in pairs]


def _without_process(provenance: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in provenance.items() if name != "process"}


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", name)
