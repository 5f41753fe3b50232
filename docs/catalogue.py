"""A Sphinx directive that lists every metric of the registry, so that the page cannot fall behind the code."""

from __future__ import annotations

from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.statemachine import StringList
from sphinx.application import Sphinx

from spherometer import metrics


class Catalogue(Directive):
    """Every metric with its symbol, formula, source, unit, cost and options."""

    def run(self) -> list[nodes.Node]:
        lines: list[str] = []
        for name, entry in metrics().items():
            options = ", ".join(f"``{key}={value}``" for key, value in entry.options.items()) or "none"
            lines += [name, "^" * len(name), "", entry.summary, ""]
            for label, text in (
                ("Symbol", entry.symbol),
                ("Formula", entry.formula),
                ("Unit", entry.unit),
                ("Source", entry.source),
                ("Cost", entry.cost),
            ):
                lines += [f":{label}: {nodes.unescape(text).replace('*', chr(92) + '*').replace('|', chr(92) + '|')}"]
            lines += [f":Options: {options}", ""]
        container = nodes.section(ids=["catalogue"])
        self.state.nested_parse(StringList(lines, "catalogue"), self.content_offset, container, match_titles=True)
        return container.children


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("catalogue", Catalogue)
    return {"parallel_read_safe": True}
