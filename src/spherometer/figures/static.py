"""The same pictures drawn by matplotlib, for files: README, papers, slides."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from spherometer.figures.ticks import log_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Numbers = Sequence[float]
INK, QUIET, RULE, ACCENT, SECOND, GOAL = "#23262b", "#6a6f78", "#d9d6d0", "#1f5fa8", "#b4541a", "#a02c4a"


def draw_edge(
    path: Path, steps: Numbers, sharpness: Numbers, errors: Numbers, losses: Numbers, *, threshold: float
) -> None:
    """Sharpness with its error band and the line 2/lr above, the loss below, into a PNG, SVG or PDF file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure  # not pyplot: no global state, no window

    figure = Figure(figsize=(8, 4.4), dpi=120, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[2.6, 1])
    lower = [value - error for value, error in zip(sharpness, errors, strict=True)]
    upper = [value + error for value, error in zip(sharpness, errors, strict=True)]
    above.fill_between(steps, lower, upper, color=ACCENT, alpha=0.22, linewidth=0)
    above.plot(steps, sharpness, color=ACCENT, linewidth=1.5)
    above.axhline(threshold, color=GOAL, linewidth=1.1, linestyle=(0, (5, 4)), zorder=0)
    above.annotate(
        "2 / learning rate", (steps[-1], threshold), xytext=(0, -9), textcoords="offset points",
        color=GOAL, ha="right", va="top", fontsize=10,
    )  # fmt: skip
    above.set_ylim(0, 1.12 * max(*sharpness, threshold))
    below.semilogy(steps, losses, color=SECOND, linewidth=1.5)
    ticks = log_ticks(losses)
    below.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    below.set_yticks([], minor=True)
    for axes, name in ((above, "sharpness"), (below, "loss")):
        _calm(axes, name)
    below.set_xlabel("step of gradient descent", color=INK)
    below.set_xlim(steps[0], steps[-1])
    figure.align_ylabels()
    figure.savefig(path, metadata={"Software": None} if path.suffix == ".png" else None)


def _calm(axes: Axes, name: str) -> None:
    """Thin rules, quiet ticks, no box."""
    axes.set_ylabel(name, color=INK)
    axes.grid(color=RULE, linewidth=0.5, alpha=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(colors=QUIET, length=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(RULE)
