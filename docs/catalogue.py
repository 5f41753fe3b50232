"""A Sphinx directive that lists every metric of the registry, so that the page cannot fall behind the code."""

from __future__ import annotations

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx

from spherometer import Metric, metrics


class Catalogue(Directive):
    """Every metric with its symbol, formula, source, unit, cost and options."""

    def run(self) -> list[nodes.Node]:
        return [_section(entry) for entry in metrics().values()]


def _section(entry: Metric) -> nodes.section:
    """One metric, under an address of its own: metrics.html#its-name."""
    section = nodes.section(ids=[entry.name.replace("_", "-")], names=[entry.name])
    section += [nodes.title("", entry.name), nodes.paragraph("", entry.summary)]
    fields = nodes.field_list()
    options = ", ".join(f"{key}={value}" for key, value in entry.options.items()) or "none"
    for label, text in (
        ("Symbol", entry.symbol),
        ("Formula", entry.formula),
        ("Unit", entry.unit),
        ("Source", entry.source),
        ("Cost", entry.cost),
        ("Options", options),
    ):
        body = nodes.field_body("", nodes.paragraph("", text))
        fields += nodes.field("", nodes.field_name("", label), body)
    section += fields
    return section


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("catalogue", Catalogue)
    return {"parallel_read_safe": True}
