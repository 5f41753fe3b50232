"""A folder of made-up results: a dozen recipes of every kind, as `spherometer run` leaves them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from spherometer.figures import HeatPanel, Line, Panel, Panels, Series, over_seeds
from spherometer.recipes.claims import Claim, Correlation, Inequality, Near, Stronger, judge
from spherometer.recipes.recipe import Table
from spherometer.recipes.result import RecipeResult

IDS = "A-F1 A-F2 A-F5 A-F29 A-T1 B-F1 B-FG4 B-FG5 C-F4 C-F10 C-T1 D-F1".split()
IDEAS = [
    "label smoothing tames sharpening",
    "weight decay keeps the network sharp",
    "regularisers lower the Jacobian norm",
    "long training without smoothing",
    "smooth fits can be sharp",
    "larger steps, smaller volume",
    "a chain of bounds",
    "what goes with what over a hundred networks",
    "three phases of the mean logit Jacobian",
    "gradients align with the first eigenvector",
    "explicit regularisation at any learning rate",
    "sharper solutions generalise better",
]


def curves_of(generator: np.random.Generator, height: float) -> list[tuple[range, list[float]]]:
    steps = range(0, 600, 5)
    return [
        (steps, [height * (1.05 - math.exp(-s / 90)) * math.exp(0.05 * generator.standard_normal()) for s in steps])
        for _ in range(5)
    ]


def figure_of(place: int, generator: np.random.Generator) -> Panels:
    if place % 4 == 3:
        names = ["D_PR", "√S", "log volume", "MLS", "NMLS", "gap"]
        matrix = np.corrcoef(generator.standard_normal((6, 20)) + generator.standard_normal(20))
        heat = HeatPanel("Pearson's r", matrix, names, names, 1.0, matrix - 0.1, matrix + 0.1, numbers=True)
        points = Series("networks", generator.standard_normal(80), generator.standard_normal(80), style="markers")
        return Panels([heat, Panel("MLS and gap", "MLS", "gap", [points])], columns=2, caption="Each dot is a network.")
    levels = [("smoothing 0", 25.0, "solid"), ("smoothing 0.5", 15.0, "dashed"), ("smoothing 0.75", 8.0, "dotted")]
    panels = [
        Panel(
            title,
            "iteration",
            label,
            [over_seeds(curves_of(generator, height), name, style=style) for name, height, style in levels],
            log_y=log,
            lines=lines,
        )
        for title, label, log, lines in (
            ("loss", "cross-entropy", False, ()),
            ("sharpness", "λ₁", False, (Line("2/lr", y=25.0),)),
            ("Jacobian norm", "‖∇ₓf‖", True, ()),
        )
    ]
    return Panels(panels, caption="More smoothing, a smaller Jacobian norm and less sharpening. Bands: one deviation.")


def claims_of(place: int, generator: np.random.Generator) -> list:
    shift = (1.5, 0.3, -1.5)[place % 3]
    margins, x, y, z = generator.standard_normal(5) + shift, *generator.standard_normal((3, 30))
    return [
        Claim("more smoothing, smaller final Jacobian norm", lambda _: margins, unit="ln of the factor", source="A-F1"),
        Claim("more smoothing, less sharpening", lambda _: [*(margins * 2)[:4], math.nan], source="5.3 item 2"),
        *([Inequality("A ≤ B at every measurement", lambda _: abs(x) - (place == 6) * 0.5)] if place % 2 else []),
        *([Near("‖G‖ is near ‖H‖", lambda _: 1 + 0.02 * x, 1.0, 0.1, unit="ratio")] if place % 3 == 1 else []),
        *([Correlation("MLS goes with the gap", lambda _: (x + z, z), source="B-FG5")] if place % 4 == 3 else []),
        *([Stronger("MLS goes with the gap more than D_PR", lambda _: (x + z, y, z))] if place % 4 == 3 else []),
    ]


def result_of(place: int, *, seed: int = 0, scale: str = "laptop", claims: Sequence | None = None) -> RecipeResult:
    generator = np.random.default_rng([seed, place])
    table = Table(
        ["start", "Jacobian norm, paper", "ours", "sharpness, paper", "ours"],
        [["high frequency", "326.80 ± 182.51", "211.3 ± 40.2", "13517.61 ± 3871.97", "9120 ± 610"],
         ["low frequency", "84.07 ± 49.30", "77.1 ± 12.5", "18353.54 ± 5751.98", "15302 ± 990"]],
    )  # fmt: skip
    runs = [
        {
            "labels": {"smoothing": smoothing, "seed": seed},
            "key": f"{place:08x}{seed:08x}",
            "state": "failed" if (place, seed, smoothing) == (2, 1, 0.5) else "done",
            "seconds": 14.0 + seed,
            "message": "FloatingPointError: the loss is nan" if (place, seed, smoothing) == (2, 1, 0.5) else "",
        }
        for smoothing in (0.0, 0.5, 0.75)
        for seed in range(2)
    ]
    return RecipeResult(
        id=IDS[place],
        idea=IDEAS[place],
        paper=IDS[place][0],
        finding="more smoothing, a smaller Jacobian norm and less sharpening",
        scale=scale,
        verdicts=judge(claims_of(place, generator) if claims is None else claims, None),
        departures=["width 32 instead of 512", "digits instead of CIFAR-10", "1000 steps instead of 100 000"],
        settings={"model.name": "mlp", "data.name": "digits", "loop.steps": 1000, "method.learning_rate": 0.08},
        runs=runs,
        seconds=203.4,
        provenance={
            "started": "2026-11-16T02:00:00+00:00",
            "spherometer": "0.1.0",
            "commit": "0123456789abcdef",
            "libraries": {"torch": "2.13.0", "numpy": "2.3.1"},
            "machine": {"host": "bench", "cores": 2},
            "process": 4711,
            "command": ["spherometer", "run", IDS[place]],
        },
        table=table if "T" in IDS[place] else None,
    )


def write_results(root: Path, places: Sequence[int] = range(12), *, seed: int = 0, scale: str = "laptop") -> None:
    for place in places:
        result = result_of(place, seed=seed, scale=scale)
        folder = root / "recipes" / f"{result.id}.{scale}"
        result.write(folder / "result.json")
        figure = figure_of(place, np.random.default_rng([seed, place]))
        (folder / "figure.json").write_text(json.dumps(figure.to_dict(), allow_nan=False), encoding="utf-8")
