"""What a step of each training method costs, in bare steps of SGD.  `python -m benchmarks.training`.

Every method runs through the loop, so its ratio holds the loop's own cost as well. How rounds take turns: `loop.py`.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.loop import SETTINGS, ratios
from benchmarks.machine import machine

NAMES = ("bare loop", "the loop, SGD", "SAM", "ASAM", "EJR efficient", "EJR v2", "EJR simple")
COLUMNS = ("network", "batch", "method", "ms a step", "over the bare loop", "wanted at most")


def table(*, quick: bool) -> str:
    """The table in Markdown; the quick one is of the digits alone."""
    lines = [
        f"{machine()}; methods take turns in "
        "one process, medians over rounds of the time over the bare loop's in the same round.",
        "",
        "| " + " | ".join(COLUMNS) + " |",
        "|" + "---|" * len(COLUMNS),
    ]
    for setting in SETTINGS[:2] if quick else SETTINGS:
        for name, each, over, wanted in ratios(setting, rounds=10, names=NAMES):
            lines.append(f"| {setting.network} | {setting.batch_size} | {name} | {each:.2f} | {over:.2f} | {wanted} |")
    return "\n".join(lines) + "\n"


def write(folder: Path, *, quick: bool) -> str:
    """The table, also as `training.md` in the folder of the docs."""
    text = table(quick=quick)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "training.md").write_text(text)
    return text


if __name__ == "__main__":
    print(write(Path("docs/benchmarks"), quick=False))
