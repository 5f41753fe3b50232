"""`make bench`: run every contest, print one table, and write it where the docs show it."""

from __future__ import annotations

import argparse
import platform
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from benchmarks import curvature, jacobians, mean_jacobian, tracking, training
from benchmarks.contest import Row
from benchmarks.networks import images

COLUMNS = (
    "quantity",
    "network",
    "tool",
    "products",
    "seconds",
    "time, ours = 1",
    "wanted",
    "worst error",
    "stated error",
)


FAMILIES = {"curvature": [curvature.rows], "jacobians": [mean_jacobian.rows, jacobians.rows]}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the smallest network only: a minute")
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"), help="folder of the written table")
    parser.add_argument("--only", choices=FAMILIES, help="one family of contests")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for family in [options.only] if options.only else FAMILIES:
        rows = [row for contests in FAMILIES[family] for row in contests(quick=options.quick)]
        Console().print(_table(rows))
        (options.out / f"{family}.md").write_text(_markdown(rows))
    if not options.only:
        Console().print(training.write(options.out, quick=options.quick))
        Console().print(tracking.write(options.out, quick=options.quick))


def _table(rows: list[Row]) -> Table:
    table = Table(title=_conditions(), title_justify="left")
    for column in COLUMNS:
        table.add_column(column)
    for row in rows:
        table.add_row(*_cells(row), end_section=False)
    return table


def _markdown(rows: list[Row]) -> str:
    lines = [_conditions(), "", "| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    lines += ["| " + " | ".join(_cells(row)) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _cells(row: Row) -> list[str]:
    return [
        row.quantity, row.network, row.tool, row.products, f"{row.seconds:.2f}", f"{row.ratio:.2f}", row.target,
        row.error, row.stated,
    ]  # fmt: skip


def _conditions() -> str:
    return (
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, {platform.machine()}, {images()[2]}; "
        "tools take turns in one process, medians of times, largest error of all runs."
    )


if __name__ == "__main__":
    main()
