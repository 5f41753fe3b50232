"""`make bench`: run every contest, print the tables, and write them where the docs show them."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import (
    curvature,
    events,
    jacobians,
    layouts,
    mean_jacobian,
    memory,
    pieces,
    sweeps,
    theory,
    tracking,
    training,
)
from benchmarks.contest import Row
from benchmarks.machine import keep_memory, machine
from benchmarks.networks import images
from benchmarks.tables import write_table

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


CONTESTS = {
    "curvature-3fcn": [partial(curvature.rows, "3FCN")],
    "curvature-6cnn": [partial(curvature.rows, "6CNN")],
    "curvature-vgg11": [partial(curvature.rows, "VGG-11")],
    "curvature-resnet18": [partial(curvature.rows, "ResNet-18")],
    "memory": [memory.rows],
    "layouts": [layouts.rows],
    "pieces": [pieces.rows],
    "jacobians": [mean_jacobian.rows, jacobians.rows],
}
OWN_TABLES = {
    "training": training.write,
    "tracking": tracking.write,
    "events": events.write,
    "sweeps": sweeps.write,
    "theory": theory.write,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the smallest network only: minutes")
    parser.add_argument("--out", type=Path, help="folder of the written tables: those the docs show, unless given")
    parser.add_argument("--only", choices=[*CONTESTS, *OWN_TABLES], help="one family of contests")
    parser.add_argument("--keep-memory", action="store_true", help="let the process keep freed memory, for all tools")
    options = parser.parse_args()
    folder = options.out or Path("docs/benchmarks", "kept-memory" if options.keep_memory else "")
    if options.keep_memory:
        keep_memory()
    folder.mkdir(parents=True, exist_ok=True)
    for family in [options.only] if options.only else [*CONTESTS, *OWN_TABLES]:
        write = OWN_TABLES.get(family) or partial(_write, family)
        Console().print(write(folder, quick=options.quick))


def _write(family: str, folder: Path, *, quick: bool) -> Table:
    """Run a family; its table for the terminal, and as Markdown in the folder, also while it is still growing."""
    rows, table = list[Row](), Table()
    for contests in CONTESTS[family]:
        for row in contests(quick=quick):
            rows.append(row)
            table = write_table(folder / f"{family}.md", _conditions(), COLUMNS, list(map(_cells, rows)))
    return table


def _cells(row: Row) -> list[str]:
    return [
        row.quantity, row.network, row.tool, row.products, f"{row.seconds:.2f}", f"{row.ratio:.2f}", row.target,
        row.error, row.stated,
    ]  # fmt: skip


def _conditions() -> str:
    return f"{machine()}, {images()[2]}; tools take turns in one process, medians of times, largest error of all runs."


if __name__ == "__main__":
    main()
