"""The path of the weights in two dimensions (L30; C App J, Figs 3 and 27)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from spherometer.figures.static import INK, QUIET, RULE

Method = Literal["pca", "umap"]


def flattened(points: Any, method: Method = "pca", *, seed: int = 0) -> tuple[np.ndarray, str]:
    """(T, k) points as (T, 2), and what the axes are: principal components, or the neighbourhoods of UMAP.

    Example:
        >>> places, label = flattened(np.stack([run.array(step, "trajectory") for step in steps]))
    """
    table = np.asarray(points, dtype=float)
    if table.ndim != 2 or len(table) < 3 or table.shape[1] < 2:
        raise ValueError(f"expected at least 3 points of at least 2 numbers each, got shape {table.shape}")
    if not np.isfinite(table).all():
        raise ValueError("expected finite points, got inf or nan: the run diverged, leave its end out")
    if method == "umap":
        return _umap(table, seed), "UMAP"
    if method != "pca":
        raise ValueError(f"expected method='pca' or 'umap', got {method!r}")
    centred = table - table.mean(0)
    left, values, _ = np.linalg.svd(centred, full_matrices=False)
    places = left[:, :2] * values[:2]
    places *= np.where(places[-1] < places[0], -1, 1)  # the path ends to the upper right of its beginning
    share = float((values[:2] ** 2).sum() / max((values**2).sum(), 1e-300))
    return places, f"principal components, {share:.0%} of the variance"


def draw_trajectory(path: Path, steps: Sequence[float], points: Any, *, method: Method = "pca", seed: int = 0) -> None:
    """The path, coloured by step, into a PNG, SVG or PDF file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure  # not pyplot: no global state, no window

    places, label = flattened(points, method, seed=seed)
    if len(places) != len(steps):
        raise ValueError(f"expected as many points as steps, got {len(places)} and {len(steps)}")
    figure = Figure(figsize=(6, 4.6), dpi=120, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.plot(*places.T, color=RULE, linewidth=0.8, zorder=1)
    marks = axes.scatter(places[:, 0], places[:, 1], c=list(steps), s=12, cmap="viridis", zorder=2)
    bar = figure.colorbar(marks, ax=axes, label="step")
    bar.outline.set_visible(False)
    axes.set_xlabel(label, color=INK)
    axes.tick_params(colors=QUIET, length=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(RULE)
    figure.savefig(path, metadata={"Software": None} if path.suffix == ".png" else None)


def _umap(table: np.ndarray, seed: int) -> np.ndarray:
    try:
        from umap import UMAP  # type: ignore[import-not-found]
    except ImportError:
        raise ImportError("method='umap' needs pip install 'spherometer[umap]'; or take method='pca'") from None
    if len(table) < 4:
        raise ValueError(f"method='umap' expected at least 4 points, got {len(table)}: take method='pca'")
    neighbours = min(15, len(table) - 1)  # its default, where there are so many
    found: np.ndarray = UMAP(n_neighbors=neighbours, random_state=seed, n_jobs=1).fit_transform(table)
    return found
