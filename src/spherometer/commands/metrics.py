"""`spherometer metrics`: the catalogue of quantities, or one of them in full."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import tyro

if TYPE_CHECKING:
    from rich.console import RenderableType

    from spherometer.metrics import Metric


@dataclass(frozen=True)
class Metrics:
    """List the quantities that can be measured, or explain one of them in full."""

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="[NAME]")] = "all"
    """the one to explain"""
    json: bool = False
    """print JSON instead of text"""

    def run(self) -> int:
        """Print the catalogue."""
        from spherometer.commands.output import show, show_json
        from spherometer.metrics import metrics
        from spherometer.metrics.registry import parse

        chosen = metrics() if self.name == "all" else {self.name: parse(self.name)[0]}
        if self.json:
            show_json({"metrics": [_described(metric) for metric in chosen.values()]})
        elif self.name == "all":
            show(*_chapters(list(chosen.values())), _footer(len(chosen)))
        else:
            show(_in_full(next(iter(chosen.values()))))
        return 0


def _described(metric: Metric) -> dict[str, Any]:
    keys = ("name", "symbol", "formula", "unit", "source", "cost", "summary", "options")
    return {key: getattr(metric, key) for key in keys}


def _chapters(chosen: list[Metric]) -> list[RenderableType]:
    """Each file of metrics is a chapter, and its docstring the heading; curvature, the heart of it, comes first."""
    from rich.text import Text

    homes = dict.fromkeys(metric.function.__module__ for metric in chosen)
    parts: list[RenderableType] = []
    for home in sorted(homes, key=lambda name: not name.endswith(".curvature")):
        title = (import_module(home).__doc__ or home).strip().splitlines()[0]
        parts.append(Text(f"{title}\n", style="bold underline"))
        parts += [_entry(metric) for metric in chosen if metric.function.__module__ == home]
    return parts


def _entry(metric: Metric) -> RenderableType:
    from rich.text import Text

    heading = Text.assemble((metric.name, "bold"), "  ", (f"{metric.symbol} = {metric.formula}", "cyan"))
    heading.append(f"\n{metric.summary}")
    heading.append("\n" + " · ".join(filter(None, (metric.cost, metric.source, _options(metric)))), style="dim")
    return heading.append("\n")


def _options(metric: Metric) -> str:
    return " ".join(f":{name}={default}" for name, default in metric.options.items())


def _footer(count: int) -> str:
    return (
        f"{count} quantities. One in full: spherometer metrics NAME.\n"
        "Measure some: spherometer measure digits-mlp --metrics sharpness,top_eigenvalues:num=4"
    )


def _in_full(metric: Metric) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column()
    facts = {
        "": metric.name,
        "symbol": metric.symbol,
        "formula": metric.formula,
        "unit": metric.unit,
        "source": metric.source,
        "cost": metric.cost,
        "options": "\n".join(f"{name}={default}" for name, default in metric.options.items()) or "none",
        "meaning": inspect.getdoc(metric.function) or "",
        "measure": f"spherometer measure digits-mlp --metrics {metric.name}",
    }
    for key, value in facts.items():
        table.add_row(key, Text(value, style="bold" if not key else ""))
    return table
