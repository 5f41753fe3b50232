"""Pictures of Jacobians: singular values over samples, chains of bounds, profiles over layers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from spherometer.figures.static import ACCENT, GOAL, INK, QUIET, SECOND, _calm

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIDES = ("violations", "ratio", "log ratio")


def draw_spectra(spectra: Any, axes: Axes, *, label: str = "singular value") -> None:
    """Singular values on a logarithmic axis: one thin line for each sample and their median, or a mean with its errors.

    Args:
        spectra: values (n, k) in descending order, or the Measurement of `input_singular_values`.
    """
    estimate = getattr(spectra, "estimate", spectra)
    if isinstance(estimate, Tensor):
        values, places = _above_rounding(estimate), range(1, estimate.shape[1] + 1)
        for row in values.tolist():
            axes.plot(places, row, color=ACCENT, alpha=max(0.05, min(0.4, 20 / len(values))), linewidth=0.7)
        axes.plot(places, _above_rounding(estimate.median(0).values).tolist(), color=INK, linewidth=1.8, label="median")
    else:
        values, errors = _above_rounding(torch.as_tensor(estimate.value)), torch.as_tensor(estimate.error).double()
        places = range(1, len(values) + 1)
        bars = torch.where(errors.isfinite(), errors, 0.0).expand_as(values).tolist()
        axes.errorbar(places, values.tolist(), yerr=bars, color=ACCENT, marker="o", markersize=4, label="mean")
    axes.set_yscale("log")
    axes.set_xticks(list(places) if len(places) <= 20 else list(places)[:: len(places) // 10])
    _calm(axes, label)
    axes.set_xlabel("index (values below 1e-6 of the largest are not drawn)", color=INK)
    axes.legend(frameon=False, fontsize="small")


def draw_bounds(measured: dict[str, Any], axes: Axes) -> None:
    """Each bound as a line from its left to its right side on a logarithmic axis; a violated one is red.

    Args:
        measured: Measurements of bounds by name, such as `measure(problem, ["mls_chain", "nmls_bound"])`. Sides given
            as logarithms are drawn as 10 to that power.
    """
    rows = [_sides(entry) for entry in measured.values()]
    drawn = [{k: v for k, v in row.items() if k not in SIDES and math.isfinite(v)} for row in rows]
    ends = [value for powers in drawn for value in powers.values()] or [0.0]
    for place, (row, powers) in enumerate(zip(rows, drawn, strict=True)):
        colour = GOAL if row.get("violations", 0.0) > 0 else ACCENT
        axes.plot(list(powers.values()), [place] * len(powers), color=colour, linewidth=1.2, marker="o", markersize=5)
        for number, (key, value) in enumerate(_joined_labels(powers, 0.05 * (max(ends) - min(ends))).items()):
            shift = {"xytext": (0, 7 if number % 2 == 0 else -14), "textcoords": "offset points"}
            axes.annotate(key, (value, place), ha="center", fontsize=8, color=QUIET, **shift)  # type: ignore[arg-type]
        if colour == GOAL:
            axes.annotate("violated   ", (min(powers.values(), default=0), place), ha="right", va="center", color=GOAL)
    axes.set_yticks(range(len(measured)), list(measured))
    axes.set_ylim(len(measured) - 0.4, -0.6)
    _calm(axes, "")
    axes.margins(x=0.12)
    axes.set_xlabel("log₁₀ of both sides", color=INK)


def draw_profile(measured: dict[str, Any], axes: Axes, *, label: str) -> None:
    """One curve for each labelled measurement over the layers of a network, with its error bars.

    Args:
        measured: Measurements with one entry per layer by the name to show: `layer_mls`, `layer_log_volume`, ...
    """
    colours, labels = (ACCENT, SECOND, GOAL, INK), ()
    for (name, entry), colour in zip(measured.items(), colours * len(measured), strict=False):
        estimate = getattr(entry, "estimate", entry)
        values = torch.as_tensor(estimate.value).double()
        errors = torch.as_tensor(estimate.error).double().expand_as(values)
        shown = torch.where(values.isfinite(), values, torch.nan).tolist()
        axes.errorbar(
            range(len(values)), shown, yerr=errors.tolist(), color=colour, marker="o", markersize=4, label=name
        )
        labels = estimate.labels
    axes.set_xticks(range(len(labels)), labels, rotation=45, ha="right", fontsize=8)
    _calm(axes, label)
    axes.set_xlabel("layer, from the input on", color=INK)
    if len(measured) > 1:
        axes.legend(frameon=False, fontsize="small")


def _above_rounding(values: Tensor) -> Tensor:
    return torch.where(values > 1e-6 * values.max(), values.double(), torch.nan)


def _joined_labels(powers: dict[str, float], width: float) -> dict[str, float]:
    """Labels of points nearer than `width` to the last one share its place."""
    joined: dict[str, float] = {}
    for key, value in powers.items():
        name = key.removeprefix("log ")
        last = next(reversed(joined), None)
        if last is not None and abs(value - joined[last]) < width:
            joined[f"{last}, {name}"] = joined.pop(last)
        else:
            joined[name] = value
    return joined


def _sides(entry: Any) -> dict[str, float]:
    """The sides of a bound as powers of ten, and its number of violations as it is."""
    estimate = getattr(entry, "estimate", entry)
    sides = dict(zip(estimate.labels, torch.as_tensor(estimate.value).tolist(), strict=True))
    return {key: value if key in SIDES else _power(key, value) for key, value in sides.items()}


def _power(key: str, value: float) -> float:
    if key.startswith("log "):
        return value / math.log(10)
    return math.log10(value) if value > 0 else -math.inf
