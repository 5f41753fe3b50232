"""Paper D, sections 2-3: the deep linear network with exponential loss, and Theorem 1 with its counterexample."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import exp
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.functional import hessian
from torch.nn import functional

from spherometer.figures.panels import Panel, Panels, Series, over_seeds
from spherometer.recipes.claims import Claim, Inequality
from spherometer.recipes.margins import every
from spherometer.recipes.recipe import Experiment, Scale, at_scale, recipe
from spherometer.recipes.results import Results, Run
from spherometer.records import RunWriter
from spherometer.sweeps import Job
from spherometer.theory import DeepLinear, TwoWeights

INPUT = 0.7  # X of the deep linear network
SIZES, SAMPLES = (5, 8, 3), 20  # of the random networks that grow
ROUNDING = 1e-9
NEAR_ONE = 0.98
LOW_LOSS = 1e-4  # below which flatness must follow from small loss


@recipe(
    "D-TOY",
    "large weights make flat minima, unless they are out of balance",
    finding="λ₁ → Tr H as the margin grows; H → 0 as all weights grow, though not at once; out of balance it does not",
    minutes=0.2,
)
def toy(scale: Scale) -> Experiment:
    """T17, T18 and the counterexample D-e4, all with exact Hessians in float64."""
    seeds = range(at_scale(scale, smoke=2, laptop=20, paper=20))
    points = at_scale(scale, smoke=9, laptop=33, paper=33)
    plans = [("linear", 0), ("balance", 0), *(("growth", seed) for seed in seeds)]
    return Experiment(
        runs=[_run(demo, seed, points) for demo, seed in plans],
        claims=[
            Inequality(
                "deep linear network: Tr H = X² L ‖v‖², v the products of two weights",
                lambda results: ROUNDING - np.abs(_curve(results, "trace_over_formula", "linear") - 1),
                source="D-TOY; T17, D-e1",
            ),
            Inequality(
                f"deep linear network: λ₁/Tr H ends above {NEAR_ONE:g}",
                lambda results: [_curve(results, "share", "linear")[-1] - NEAR_ONE],
                source="D-TOY; T17",
            ),
            Claim(
                "when all weights of a random network grow, λ₁ rises first",
                lambda results: results.reduce("sharpness", _rise, demo="growth"),
                unit="ln of the factor",
                source="D-TOY; T18",
            ),
            Inequality(
                f"and where the loss is below {LOW_LOSS:g} it falls with every step",
                partial(_falls_at_low_loss, name="sharpness", demo="growth"),
                source="D-TOY; Thm 1, T18",
            ),
            Inequality(
                "weights out of balance: λ₁ rises as the loss falls, against Theorem 1 as printed",
                lambda results: np.diff(np.log(_curve(results, "unbalanced_sharpness", "balance"))[1:]),
                source="D-TOY; D-e4",
            ),
            Inequality(
                f"the same products in balance: where the loss is below {LOW_LOSS:g} λ₁ falls with it",
                partial(_falls_at_low_loss, name="balanced_sharpness", demo="balance"),
                source="D-TOY; D-e4, T18",
            ),
        ],
        figure=_figure,
        departures=["X = 0.7, w = s(1, −1, 1) and the random networks are chosen here: the paper prints formulas only"],
    )


def _run(demo: str, seed: int, points: int) -> Run:
    settings = {"demo": demo, "seed": seed, "points": points}
    return Run({"demo": demo, "seed": seed}, Job(f"{__name__}:perform", settings, f"{demo}, seed {seed}"))


def perform(settings: Mapping[str, Any], folder: Path) -> None:
    """The run function: one of the three parts, its rows over a grid of weight scales."""
    demos: dict[str, Callable[[int, int], list[dict[str, float]]]] = {
        "linear": _linear,
        "growth": _growing,
        "balance": _balance,
    }
    rows = demos[settings["demo"]](settings["points"], settings["seed"])
    with RunWriter(folder, settings=settings, seed=settings["seed"], title="toy", resume=True) as run:
        for step, values in enumerate(rows):
            run.write(step, values)


def _linear(points: int, seed: int) -> list[dict[str, float]]:  # noqa: ARG001
    """L = exp(w1 w2 w3 X) at w = s(1, −1, 1): the Hessian by differentiation against the closed form; T17."""
    rows = []
    for scale in np.linspace(1.0, 4.0, points).tolist():
        weights = scale * torch.tensor([1.0, -1.0, 1.0], dtype=torch.float64)
        matrix, loss = _hessian(lambda w: torch.exp(w.prod() * INPUT), weights)
        values = torch.linalg.eigvalsh(matrix)
        trace, formula = float(values.sum()), DeepLinear((scale, -scale, scale), INPUT).trace
        share = float(values[-1]) / trace
        rows.append({"scale": scale, "loss": loss, "share": share, "trace_over_formula": trace / formula})
    return rows


def _growing(points: int, seed: int) -> list[dict[str, float]]:
    """A random ReLU network on samples that it separates itself, all weights times a factor; T18."""
    stream = torch.Generator().manual_seed(seed)
    inputs, hidden, outputs = SIZES
    weights = torch.randn(hidden * inputs + outputs * hidden, dtype=torch.float64, generator=stream) / hidden**0.5
    drawn = torch.randn(2 * SAMPLES, inputs, dtype=torch.float64, generator=stream)

    def logits(w: Tensor, x: Tensor) -> Tensor:
        first, second = w.split([hidden * inputs, outputs * hidden])
        return functional.relu(x @ first.view(hidden, inputs).T) @ second.view(outputs, hidden).T

    best, second = logits(weights, drawn).topk(2, dim=1).values.T
    margins, chosen = (best - second).topk(SAMPLES)  # those it separates best
    samples = drawn[chosen]
    labels = logits(weights, samples).argmax(1)
    rows = []
    for margin in np.geomspace(0.05, 25.0, points).tolist():
        grown = weights * (margin / float(margins.min())) ** 0.5  # both layers grow, margins with their square
        matrix, loss = _hessian(lambda w: functional.cross_entropy(logits(w, samples), labels), grown)
        rows.append({"margin": margin, "loss": loss, "sharpness": float(torch.linalg.eigvalsh(matrix)[-1])})
    return rows


def _balance(points: int, seed: int) -> list[dict[str, float]]:  # noqa: ARG001
    """z = w1 w2 = K in balance and with w1 = e^K, logistic loss; D-e4."""
    rows = []
    for margin in np.linspace(0.5, 20.0, points).tolist():
        even, odd = TwoWeights.of_margin(margin), TwoWeights(exp(margin), margin * exp(-margin))
        rows.append(
            {
                "margin": margin,
                "loss": even.loss,
                "balanced_sharpness": even.sharpness,
                "unbalanced_sharpness": odd.sharpness,
            }
        )
    return rows


def _hessian(function: Callable[[Tensor], Tensor], weights: Tensor) -> tuple[Tensor, float]:
    """The exact Hessian, and the loss."""
    return hessian(function, weights), float(function(weights))


def _curve(results: Results, name: str, demo: str) -> np.ndarray:
    return results.curve(name, demo=demo)[0][1]


def _rise(values: np.ndarray) -> float:
    return float(np.log(values.max() / values[0]))


def _falls_at_low_loss(results: Results, *, name: str, demo: str) -> list[float]:
    """ln of the factor by which λ₁ falls at each step where the loss is low; before, it may rise (T18)."""
    curves = zip(results.curve("loss", demo=demo), results.curve(name, demo=demo), strict=True)
    return every(-np.diff(np.log(sharpness[losses < LOW_LOSS])) for (_, losses), (_, sharpness) in curves)


def _figure(results: Results) -> Panels:
    linear = Series("λ₁ / Tr H", _curve(results, "scale", "linear"), _curve(results, "share", "linear"))
    reach = results.curve("margin", demo="growth")[0][1]
    growth = over_seeds([(reach, values) for _, values in results.curve("sharpness", demo="growth")], "λ₁")
    loss = over_seeds([(reach, values) for _, values in results.curve("loss", demo="growth")], "loss", style="dashed")
    names = ("unbalanced_sharpness", "balanced_sharpness", "loss")
    labels, styles = ("λ₁, w₁ = e^K", "λ₁, w₁ = w₂", "loss"), ("solid", "solid", "dashed")
    balance = [
        Series(label, _curve(results, "margin", "balance"), _curve(results, name, "balance"), style=style)
        for name, label, style in zip(names, labels, styles, strict=True)
    ]
    return Panels(
        [
            Panel("deep linear network", "weight scale s", "λ₁ / Tr H", [linear]),
            Panel("all weights grow", "smallest margin", "", [growth, loss], log_x=True, log_y=True),
            Panel("w₁w₂ = K, out of balance", "margin K", "", balance, log_y=True),
        ],
        caption="Theorem 1 of paper D: small loss makes flat minima where weights grow together (middle, mean over "
        "random networks), and not where they are out of balance (right).",
    )
