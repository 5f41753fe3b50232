"""A Sphinx directive that lists every metric of the registry, so that the page cannot fall behind the code."""

from __future__ import annotations

from itertools import groupby

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx

from spherometer import Metric, metrics


class Catalogue(Directive):
    """Every metric with its symbol, formula, source, unit, cost and options, family by family."""

    def run(self) -> list[nodes.Node]:
        entries = sorted(metrics().values(), key=_family)
        return [_family_section(family, list(members)) for family, members in groupby(entries, _family)]


def _family(entry: Metric) -> str:
    return entry.function.__module__.rpartition(".")[2].replace("_", " ")


def _family_section(family: str, members: list[Metric]) -> nodes.section:
    section = nodes.section(ids=[f"family-{family.replace(' ', '-')}"], names=[f"family {family}"])
    section += [nodes.title("", family), *map(_section, members)]
    return section


def _section(entry: Metric) -> nodes.section:
    """One metric, under an address of its own: metrics.html#its-name."""
    section = nodes.section(ids=[entry.name.replace("_", "-")], names=[entry.name])
    options = ", ".join(f"{key}={value}" for key, value in entry.options.items())
    facts = [f"unit {entry.unit}", f"source {entry.source}", f"cost {entry.cost}"]
    lines = nodes.line_block()
    lines += nodes.line("", "", nodes.strong("", entry.symbol), nodes.Text(f"   {entry.formula}"))
    lines += nodes.line("", "; ".join(facts))
    if options:
        lines += nodes.line("", "options ", nodes.literal("", options))
    section += [nodes.title("", entry.name), nodes.paragraph("", entry.summary), lines]
    return section


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("catalogue", Catalogue)
    return {"parallel_read_safe": True}
