"""Pictures of the logit Hessian: the averaged QΛ^½, the impurity between its bounds, the secular function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from spherometer.figures.static import ACCENT, GOAL
from spherometer.operators.logit_hessian import (
    logit_hessian_eigenpairs,
    secular_function,
    top_logit_eigenpair,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_heat_map(
    matrix: Any, axes: Axes, *, rows: str, columns: str, limit: float | None = None, first: int = 1
) -> None:
    """A matrix (tensor, Estimate or Measurement) in colours that are white at zero; undefined entries are grey."""
    from matplotlib import colormaps

    values = torch.as_tensor(getattr(matrix, "value", matrix)).double()
    reach = limit or float(values.nan_to_num(0.0).abs().max()) or 1.0
    colours = colormaps["RdBu_r"].with_extremes(bad="0.8")
    image = axes.imshow(values.numpy(), cmap=colours, vmin=-reach, vmax=reach)
    axes.figure.colorbar(image, ax=axes, fraction=0.046)
    axes.set(xlabel=columns, ylabel=rows)
    ticks = [range(size) if size <= 12 else range(0, size, size // 10) for size in values.shape]
    axes.set_yticks(list(ticks[0]), [str(k + first) for k in ticks[0]])
    axes.set_xticks(list(ticks[1]), [str(k + first) for k in ticks[1]])


def draw_impurity_matrix(matrix: Any, axes: Axes) -> None:
    """The metric `impurity_matrix`: + at class (i), − at class (i+1), fading with the eigenvalue (C Fig 8, 30)."""
    draw_heat_map(matrix, axes, rows="class, by falling probability", columns="eigenvector of M")
    axes.set_title("mean of QΛ$^{1/2}$")


def draw_class_cosines(matrix: Any, axes: Axes, names: list[str] | None = None) -> None:
    """The metric `class_mean_cosines`; grey where a class is never predicted (C Fig 9, 32)."""
    draw_heat_map(matrix, axes, rows="predicted class", columns="predicted class", limit=1.0, first=0)
    axes.set_title("cosines between class means of m")
    if names is not None:
        axes.set_yticks(range(len(names)), names)
        axes.set_xticks(range(len(names)), names, rotation=90)


def draw_impurity(probabilities: Any, axes: Axes) -> None:
    """λ⁽¹⁾ of softmax outputs (n, C) over their largest probability, between ½Gini and min{p, Gini} (C Fig 1; T2)."""
    values = torch.as_tensor(probabilities).double()
    grid = torch.linspace(1 / values.shape[1], 1, 400, dtype=torch.float64)
    gini = 2 * grid * (1 - grid)
    axes.fill_between(grid, gini / 2, gini.minimum(grid), color="0.9", label="between the bounds")
    axes.plot(grid, gini.minimum(grid), color="0.3", linewidth=1.2, label="min{p, Gini}")
    axes.plot(grid, gini / 2, color="0.3", linewidth=1.2, linestyle="--", label="½ Gini")
    axes.scatter(values.amax(1), top_logit_eigenpair(values)[0], s=8, color=GOAL, alpha=0.5, label="samples")
    axes.set(xlabel="largest probability p", ylabel="impurity λ$^{(1)}$", xlim=(0, 1), ylim=(0, 0.55))
    axes.legend(frameon=False, loc="upper left", fontsize="small")


def draw_secular_function(probabilities: Any, axes: Axes, *, reach: float = 4.0) -> None:
    """v(λ) of one output p (C,), its poles p_(i) and the eigenvalues of M, which interlace (C Fig 7; T3)."""
    p = torch.as_tensor(probabilities).double()
    points = torch.linspace(-0.05, float(p.max()) + 0.1, 4000, dtype=torch.float64)
    points = torch.cat([points, p]).sort().values  # nan at the poles: the line breaks there
    axes.plot(points, secular_function(p, points), color=ACCENT, linewidth=1.2)
    for pole in p[p > 0].tolist():
        axes.axvline(pole, color="0.7", linewidth=0.8, linestyle=":")
    axes.axhline(0, color="0.3", linewidth=0.8)
    values = logit_hessian_eigenpairs(p)[0]
    axes.plot(values, torch.zeros_like(values), "o", color=GOAL, markersize=4, label="eigenvalues of M")
    axes.set(xlabel="λ", ylabel="v(λ)", ylim=(-reach, reach))
    axes.legend(frameon=False, loc="upper right", fontsize="small")
