"""Our evaluation of paper A's theorems on known data: 6.1 over N and over training (TH-2), 4.3 and its gap (TH-3)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from spherometer.figures.panels import Panel, Panels, Series
from spherometer.problems import HalfSquaredError, Problem
from spherometer.recipes.claims import AnyClaim, Claim, Inequality
from spherometer.recipes.margins import falling, numbers, smaller
from spherometer.recipes.recipe import Experiment, Scale, at_scale, recipe
from spherometer.recipes.results import Results, Run
from spherometer.records import RunWriter
from spherometer.sweeps import Job
from spherometer.theory import Bound, Cover, Cube, Theorems, TwoClusters
from spherometer.training import Plain, Training
from spherometer.training.optim import SAM
from spherometer.training.schedules import cosine
from spherometer.zoo import build_model, uniform_cube

METHODS = {"Adam": (0.0, 0.0), "weight decay": (0.02, 0.0), "SAM": (0.0, 0.02)}  # weight decay, radius of SAM
EPSILON, HELD_OUT = 0.1, 1000
STEEPNESSES = (20.0, 40.0, 80.0)


@recipe(
    "TH-2",
    "the generalisation bound, evaluated",
    finding="E‖f − f*‖ ≤ δ(‖f*‖ + max(‖J‖ + V)); a flatter model has a smaller bound, and more samples have",
    minutes=3,
)
def generalisation(scale: Scale) -> Experiment:
    """Both sides of Theorem 6.1 on an interval, where everything is known, over N and three ways to train; gap G2."""
    sizes = at_scale(scale, smoke=(16, 40), laptop=(16, 40, 100, 250), paper=(16, 40, 100, 250, 600))
    seeds, steps = range(at_scale(scale, smoke=2, laptop=5, paper=5)), at_scale(scale, smoke=60, laptop=300, paper=1000)
    claims: list[AnyClaim] = [
        Inequality(
            f"{words}: the measured side is at most the certified one",
            partial(_holds, name=name),
            unit="ln(right / left)",
            source=f"TH-2; A {theorem}",
        )
        for words, name, theorem in (
            ("Theorem 6.1, corrected", "generalisation", "Thm 6.1, T47"),
            ("Theorem 5.1, corrected", "sharpening", "Thm 5.1, T47"),
            ("Theorem 4.3 on a convex support", "lipschitz", "Thm 4.3, T46"),
        )
    ]
    claims += [
        Claim(
            f"{method}: the bound falls with the number of samples",
            lambda results, method=method: falling(results, "generalisation_right", over="num", method=method),  # type: ignore[misc]
            unit="ln of the factor over the range",
            source="TH-2; A Thm 6.1",
        )
        for method in METHODS
    ]
    claims += [
        Claim(
            f"{method} has a smaller bound than Adam alone, all N together",
            lambda results, method=method: smaller(  # type: ignore[misc]
                results, _over_sizes, here={"method": method}, there={"method": "Adam"}
            ),
            unit="ln of the factor",
            source="TH-2; A Sec 6",
        )
        for method in ("weight decay", "SAM")
    ]
    return Experiment(
        runs=[_run(method, num, seed, steps) for method in METHODS for num in sizes for seed in seeds],
        claims=claims,
        figure=_figure,
        departures=[
            "our own: paper A does not evaluate its bound",
            f"f* = sin(πx) on [0, 1], a tanh network of width 16, {steps} full-batch steps, ε = {EPSILON:g}",
        ],
    )


@recipe(
    "TH-3",
    "a support in two pieces breaks Theorem 4.3",
    finding="‖f‖_Lip on the support is at most max(‖J‖ + V): false where the support is not convex (A-e6)",
    minutes=0.3,
)
def two_clusters(scale: Scale) -> Experiment:
    """f is flat on both pieces and climbs between them, where no sample is; T46."""
    num = at_scale(scale, smoke=50, laptop=400, paper=400)
    return Experiment(
        runs=[
            Run(
                {"steepness": steepness, "seed": 0},
                Job(f"{__name__}:split", {"steepness": steepness, "num": num, "seed": 0}, f"steepness {steepness:g}"),
            )
            for steepness in STEEPNESSES
        ],
        claims=[
            Inequality(
                "Theorem 4.3 as printed is violated on two clusters",
                lambda results: [
                    math.log(left / right)
                    for left, right in zip(results.final("printed_left"), results.final("printed_right"), strict=True)
                ],
                unit="ln(left / right)",
                source="TH-3; A-e6, T46",
            ),
            Inequality(
                "the hypothesis that is missing, a convex support, is found to fail",
                lambda results: [-proved for proved in results.final("printed_proved")],
                source="TH-3; A-e6",
            ),
        ],
        figure=_split_figure,
        departures=[f"our own counterexample: f(x) = 1/(1 + e^(−sx)) on [−1, −0.45] ∪ [0.45, 1], {num} samples"],
    )


def perform(settings: Mapping[str, Any], folder: Path) -> None:
    """The run function of TH-2: train, then both sides of all three theorems."""
    data = uniform_cube(settings["num"], 1, seed=settings["seed"], target=_target)
    held_out = uniform_cube(HELD_OUT, 1, seed=10_000 + settings["seed"], target=_target)
    model = _trained(settings, data.tensors)
    problem = Problem(model, HalfSquaredError(), data.tensors, dtype=torch.float64)
    cover = Cover.of_support(Cube(1), settings["num"], EPSILON)
    theorems = Theorems(problem, cover, held_out.tensors, target_lipschitz=math.pi)
    with RunWriter(folder, settings=settings, seed=settings["seed"], title="theorems", resume=True) as run:
        for name in ("generalisation", "sharpening", "lipschitz"):
            run.write(0, _sides(name, getattr(theorems, name)().corrected))


def split(settings: Mapping[str, Any], folder: Path) -> None:
    """The run function of TH-3."""
    toy = TwoClusters(settings["steepness"])
    model, num = toy.model(), settings["num"]
    inputs, more = toy.samples(num, seed=1), toy.samples(num, seed=2)
    data, held_out = ((points, (points > 0).double()) for points in (inputs, more))
    cover = Cover.of_support(toy.support, num, EPSILON)
    found = Theorems(Problem(model, HalfSquaredError(), data), cover, held_out).lipschitz().printed
    with RunWriter(folder, settings=settings, seed=settings["seed"], title="two clusters", resume=True) as run:
        run.write(0, {**_sides("printed", found), "printed_proved": float(bool(found.proved))})


def _target(inputs: Tensor) -> Tensor:
    """Lipschitz constant π."""
    return (math.pi * inputs.sum(1)).sin()


def _trained(settings: Mapping[str, Any], data: tuple[Tensor, Tensor]) -> nn.Module:
    decay, rho = METHODS[settings["method"]]
    model = build_model("digits-mlp", num_classes=1, input_shape=(1,), width=16, seed=settings["seed"])
    optimizer = SAM(model.parameters(), torch.optim.Adam, rho=rho, model=model, lr=0.01, weight_decay=decay)
    objective = Plain(HalfSquaredError())
    training = Training(model, optimizer, data, objective, schedule=cosine(settings["steps"]), seed=settings["seed"])
    for _ in training.run(settings["steps"]):
        pass
    return model.eval()


def _sides(name: str, bound: Bound) -> dict[str, float]:
    return {f"{name}_left": bound.left, f"{name}_right": bound.right, f"{name}_seen": bound.seen}


def _run(method: str, num: int, seed: int, steps: int) -> Run:
    settings = {"method": method, "num": num, "seed": seed, "steps": steps}
    labels = {"method": method, "num": num, "seed": seed}
    return Run(labels, Job(f"{__name__}:perform", settings, f"{method}, {num} samples, seed {seed}"))


def _holds(results: Results, *, name: str) -> list[float]:
    """ln(right/left) of every run; a left side that is not positive is below any right side."""
    sides = zip(results.final(f"{name}_left"), results.final(f"{name}_right"), strict=True)
    return [math.log(right / max(left, 1e-12)) for left, right in sides]


def _over_sizes(results: Results, **labels: Any) -> list[float]:
    """The geometric mean of the bound over the numbers of samples, one for each seed."""
    logs = [
        [math.log(value) for value in numbers(results, "generalisation_right", num=num, **labels)]
        for num in results.values("num")
    ]
    return [math.exp(sum(seed) / len(seed)) for seed in zip(*logs, strict=True)]


def _figure(results: Results) -> Panels:
    sizes = sorted(results.values("num"))

    def series(method: str, side: str, label: str, style: str) -> Series:
        values = [numbers(results, f"generalisation_{side}", method=method, num=num).mean() for num in sizes]
        return Series(label, range(len(sizes)), values, style=style)

    lines = (("right", "bound, certified", "solid"), ("seen", "bound, V as it was met", "dashed"))
    panels = [
        Panel(
            method,
            "samples N",
            "E‖f − f*‖ and its bound",
            [*(series(method, *line) for line in lines), series(method, "left", "measured error", "markers")],
            log_y=True,
            x_names=[str(num) for num in sizes],
        )
        for method in METHODS
    ]
    return Panels(panels, caption="Both sides of Theorem 6.1 (corrected) over the number of samples; means over seeds.")


def _split_figure(results: Results) -> Panels:
    steep = sorted(results.values("steepness"))
    series = [
        Series(label, steep, [results.final(f"printed_{side}", steepness=one)[0] for one in steep], style=style)
        for side, label, style in (("left", "steepest secant", "solid"), ("right", "max(‖J‖ + V)", "dashed"))
    ]
    panel = Panel("Theorem 4.3 on two clusters", "steepness s", "slope", series, log_y=True)
    return Panels([panel], columns=1, caption="The theorem says that the solid line is below the dashed one.")
