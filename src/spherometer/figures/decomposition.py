"""Pictures of layers and alignment: who makes the loss sharp, how concentrated the classes are, histograms."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from spherometer.figures.static import ACCENT, GOAL, INK, SECOND

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_layers(measured: Any, axes: Axes, *, label: str = "share of ‖G‖") -> None:
    """One bar for each layer with its error, first layer on top: `sharpness_by_layer` or one of its factors."""
    estimate = _estimate(measured)
    values = torch.as_tensor(estimate.value).double()
    errors = torch.as_tensor(estimate.error).double().expand_as(values)
    places = range(len(values))
    axes.barh(places, _plain(values), xerr=_plain(errors), color=ACCENT, ecolor="0.3")
    axes.set_yticks(places, list(estimate.labels))
    axes.invert_yaxis()
    axes.set(xlabel=label)
    for place, value in zip(places, values.tolist(), strict=True):
        if math.isnan(value):
            axes.text(0, place, " undefined", va="center", color="0.4", fontsize="small")


def draw_factors(shares: Any, loss: Any, suffix: Any, parameter: Any, axes: Axes) -> None:
    """The share of each layer as the product of its three factors, on one logarithmic axis (A Eq 4; gap G1)."""
    labels = list(_estimate(shares).labels)
    constant = torch.full((len(labels),), float(_estimate(loss).value), dtype=torch.float64)
    curves = {
        "share of ‖G‖ = loss x suffix x parameter": (_values(shares), INK, "o-"),
        "loss": (constant, GOAL, ":"),
        "suffix: what later layers amplify": (_values(suffix), SECOND, "s--"),
        "parameter: size of the features": (_values(parameter), ACCENT, "^--"),
    }
    for name, (values, colour, style) in curves.items():
        shown = torch.where(values > 0, values, torch.nan)
        axes.plot(range(len(labels)), shown, style, color=colour, label=name, markersize=4)
    axes.set_yscale("log")
    axes.set_xticks(range(len(labels)), labels, rotation=45, ha="right")
    axes.legend(frameon=False, fontsize="small", loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)


def draw_histogram(measured: Any, axes: Axes, *, label: str) -> None:
    """A histogram metric (`eigen_length_histogram`, `eigen_cosine_histogram`): shares over bin centres (C Fig 11)."""
    estimate = _estimate(measured)
    centres = [float(centre) for centre in estimate.labels]
    width = centres[1] - centres[0] if len(centres) > 1 else 1.0
    axes.bar(centres, _plain(_values(measured)), width=0.95 * width, color=ACCENT)
    axes.set(xlabel=label, ylabel="share")


def draw_concentration(measured: Any, axes: Axes) -> None:
    """`mean_resultant_length`: one bar for each predicted class, 1 if all its samples point the same way (C Fig 33)."""
    estimate = _estimate(measured)
    values = torch.as_tensor(estimate.value).double()
    axes.bar(range(len(values)), _plain(values), color=ACCENT)
    axes.set_xticks(range(len(values)), list(estimate.labels), rotation=45, ha="right")
    axes.set(ylabel="mean resultant length", ylim=(0, 1))
    for place, value in enumerate(values.tolist()):
        if math.isnan(value):
            axes.text(place, 0.02, "never predicted", rotation=90, ha="center", color="0.4", fontsize="small")


def _estimate(measured: Any) -> Any:
    """The estimate of a Measurement, or what was given if it is one already."""
    return getattr(measured, "estimate", measured)


def _values(measured: Any) -> torch.Tensor:
    return torch.as_tensor(_estimate(measured).value).double()


def _plain(values: torch.Tensor) -> list[float]:
    """Numbers for matplotlib; nothing is drawn where they are undefined."""
    return values.nan_to_num(0.0).tolist()
