"""`spherometer check`: the instrument held against exact answers, on this machine, with this torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spherometer.commands.kinds import Seed

if TYPE_CHECKING:
    from rich.table import Table

SLACK = 5.0  # standard errors that a random estimate may be off; one in a million is further


@dataclass(frozen=True)
class Check:
    """Measure small networks whose Hessian can be written down in float64, and compare.

    A disagreement beyond the error bars ends with exit code 1: the numbers of this machine are not to be trusted.
    """

    seed: Seed = 0
    """of networks, data and random vectors"""
    json: bool = False
    """print JSON instead of a table"""

    def run(self) -> int:
        """Compare and print."""
        from spherometer.commands.machine import threads
        from spherometer.commands.output import progress, show, show_json
        from spherometer.commands.truths import compare

        with threads(1), progress("comparing with dense Hessians") as tell:
            comparisons = compare(self.seed, tell)
        agree = all(entry["agrees"] for entry in comparisons)
        if self.json:
            show_json({"agrees": agree, "comparisons": comparisons})
        else:
            show(_table(comparisons), _verdict(agree, len(comparisons)))
        return 0 if agree else 1


def _verdict(agree: bool, count: int) -> str:
    if agree:
        return f"All {count} numbers agree with the exact ones within their error bars."
    return "Some numbers disagree: please report this with the versions of `spherometer --version`."


def _table(comparisons: list[dict[str, Any]]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from spherometer.values import format_with_error

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in ("network", "quantity", "exact", "measured", "ok"):
        table.add_column(column, no_wrap=True)
    for place, entry in enumerate(comparisons):
        began = place == 0 or comparisons[place - 1]["network"] != entry["network"]
        measured = format_with_error(entry["measured"], entry["error"])
        agrees = "yes" if entry["agrees"] else "NO"
        table.add_row(entry["network"] if began else "", entry["quantity"], f"{entry['exact']:.5g}", measured, agrees)
    return table
