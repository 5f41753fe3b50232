"""What a step of each training method costs, in bare steps of SGD.  `python -m benchmarks.training`.

Every method runs through the loop, so its ratio holds the loop's own cost as well. How rounds take turns: `loop.py`.
"""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.loop import SETTINGS, ratios
from benchmarks.machine import machine
from benchmarks.tables import write_table

NAMES = ("bare loop", "the loop, SGD", "SAM", "ASAM", "EJR efficient", "EJR v2", "EJR simple")
COLUMNS = ("network", "batch", "method", "ms a step", "over the bare loop", "wanted at most")


def write(folder: Path, *, quick: bool) -> Table:
    """The table, also as `training.md` in the folder of the docs; the quick one is of the digits alone."""
    rows = [
        (setting.network, str(setting.batch_size), name, f"{each:.2f}", f"{over:.2f}", wanted)
        for setting in (SETTINGS[:2] if quick else SETTINGS)
        for name, each, over, wanted in ratios(setting, rounds=10 if quick else 40, names=NAMES)
    ]
    conditions = (
        f"{machine()}; methods take turns in one process, medians over rounds of the time over the bare loop's in the "
        "same round."
    )
    return write_table(folder / "training.md", conditions, COLUMNS, rows)


if __name__ == "__main__":
    Console().print(write(Path("docs/benchmarks"), quick=False))
