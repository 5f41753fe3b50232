"""A table for the terminal, and the same as Markdown for the docs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table


def write_table(
    path: Path, conditions: str, columns: Sequence[str], rows: Sequence[Sequence[str]], remarks: Sequence[str] = ()
) -> Table:
    """Write it, under the conditions it was made in and above remarks, and return it for the terminal."""
    lines = ["| " + " | ".join(cells) + " |" for cells in (columns, ["---"] * len(columns), *rows)]
    below = ["", *(f"- {remark}" for remark in remarks)] if remarks else []
    path.write_text("\n".join([conditions, "", *lines, *below, ""]), encoding="utf-8")
    table = Table(*columns, title=conditions, title_justify="left", caption="\n".join(remarks) or None)
    for row in rows:
        table.add_row(*row)
    return table
