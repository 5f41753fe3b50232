"""Paper C: which way gradients point (C-F10, F34), and whether J q⁽ⁱ⁾ are alike and orthogonal (C-F11)."""

from __future__ import annotations

from functools import partial
from math import inf, log, nan
from typing import Any

import numpy as np

from spherometer.figures.panels import Line, Panel, Panels, Series, over_seeds
from spherometer.recipes.claims import Claim, Near
from spherometer.recipes.papers.c_curves import within
from spherometer.recipes.papers.c_geometry import (
    COSINE_STEPS,
    EVERY,
    RATE,
    descent_said,
    geometry_run,
    geometry_settings,
)
from spherometer.recipes.papers.c_runs import departures, parts_of, seeds
from spherometer.recipes.recipe import Experiment, Scale, recipe, variant
from spherometer.recipes.results import Results

AGAINST_CHANCE = 10  # times the level of a random direction is "much larger"
MOSTLY = 0.5  # of a length: "high"
NEARLY_ONE = 0.8
UNDEFINED = 800  # steps of C Fig 34 without A_S


@recipe(
    "C-F10",
    "gradients point along the sharpest direction and the class means",
    finding="cos(g, r) ≫ 1/√m; cos(−g, Jq⁽¹⁾) → 1; A_S(g) and A_S(r) high",
    minutes=3,
)
def alignment(scale: Scale, *, network: str = "cnn6") -> Experiment:
    """Q52, Q53 and Q57 over full-batch training; C Fig 10 (6CNN) and Fig 34 (VGG), App D, 5.3 item 7."""
    source = ("C-F10" if network == "cnn6" else "C-F34") + "; 5.3 item 7"
    level = partial(random_level, scale, network)
    return Experiment(
        runs=[geometry_run(scale, network, seed) for seed in seeds(scale)],
        claims=[
            Claim(
                "|cos(g, r)| is more than ten times that of a random direction, 1/√m",
                lambda results: [
                    log(value / (AGAINST_CHANCE * level())) if value > 0 else nan
                    for value in results.reduce("gradient_alignment", np.median, part="r1")
                ],
                unit="ln of the median over training, over 10/√m",
                source=source,
            ),
            Claim(
                "|cos(−g, Jq⁽¹⁾)| of single samples tends to 1: it rises in training",
                partial(_rise, name="sample_alignment", part="mean |cos|"),
                unit="mean at the end less at the start",
                source=source,
            ),
            Claim(
                "|cos(−g, Jq⁽¹⁾)| of single samples tends to 1: it is above 0.8 at the end",
                lambda results: results.final("sample_alignment", part="mean |cos|"),
                least=NEARLY_ONE,
                unit="mean over samples at the end",
                source=source,
            ),
            *(
                Claim(
                    f"most of the {name} lies in the span of the class means",
                    partial(_mean_when_defined, part=part),
                    least=MOSTLY,
                    unit="A_S, mean from the first step on at which every class is predicted",
                    source=source,
                )
                for name, part in (("gradient", "gradient"), ("top eigenvector", "top eigenvector"))
            ),
            *([] if network == "cnn6" else [_undefined_claim(scale)]),
        ],
        figure=partial(_figure, level=level),
        departures=departures(
            scale,
            network,
            *_setting(scale, network),
            "|cos| instead of cos for single samples: its sign says only whether the label is the second guess",
            "10/√m for '≫', 0.8 for '→ 1' and 0.5 for 'high': chosen here",
        ),
    )


def _setting(scale: Scale, network: str) -> list[str]:
    said = [
        f"measured every {EVERY[network][scale]} steps" + ("" if network == "vgg11" else ": not in the text"),
        "A_S is judged from the first step on at which every class is predicted",
    ]
    if network == "cnn6":
        return [descent_said(scale), *said]
    return [
        *said,
        "A_S counts as undefined while a class is never predicted, and is then shown for the classes that are; 'about "
        f"{UNDEFINED}' steps means within half of it, and as many times fewer as the learning rate is larger",
    ]


def _undefined_claim(scale: Scale) -> Near:
    """How long a class mean is missing, in steps of the paper's learning rate."""
    steps = round(UNDEFINED * RATE["vgg11"] / geometry_settings(scale, "vgg11")["rate"])
    return Near(
        f"A_S is undefined for about the first {steps} steps: some class is not predicted yet",
        undefined_steps,
        target=steps,
        tolerance=steps / 2,
        unit="steps",
        source="C-F34",
    )


def undefined_steps(results: Results) -> list[float]:
    """The first step at which every class has a mean, one for each seed; infinite where there is none."""
    found = []
    for entries in results.vectors("mean_resultant_length"):
        defined = [step for step, lengths in entries.items() if np.isfinite(list(lengths.values())).all()]
        found.append(float(min(defined, default=inf)) if entries else nan)
    return found


def random_level(scale: Scale, network: str) -> float:
    """1/√m of the network of this scale."""
    from spherometer.zoo import build_model

    data, model = parts_of(scale, network)
    shape = {"digits": (1, 8, 8), "mnist": (1, 28, 28)}.get(data["data"], (3, 32, 32))
    options: dict[str, Any] = {name: value for name, value in model.items() if name != "model"}
    built = build_model(model["model"], num_classes=10, input_shape=shape, **options)
    return float(sum(weight.numel() for weight in built.parameters()) ** -0.5)


def _rise(results: Results, *, name: str, part: str) -> list[float]:
    return [float(values[-1] - values[0]) if len(values) else nan for _, values in results.curve(name, part=part)]


def _mean_when_defined(results: Results, *, part: str) -> list[float]:
    """A_S is undefined before every class has a mean (C Fig 34)."""
    curves = zip(results.curve("subspace_alignment", part=part), undefined_steps(results), strict=True)
    found = [within(curve, start, inf) for curve, start in curves]
    return [float(np.nanmean(values)) if np.isfinite(values).any() else nan for values in found]


def _figure(results: Results, *, level: partial[float]) -> Panels:
    def panel(title: str, name: str, parts: dict[str, str], lines: list[Line]) -> Panel:
        series = [over_seeds(results.curve(name, part=part), label) for part, label in parts.items()]
        return Panel(title, "step", title, series, lines=lines)

    return Panels(
        [
            panel("|cos(g, r)|", "gradient_alignment", {"r1": "|cos(g, r)|"}, [Line("1/√m", y=level())]),
            Panel(
                "single samples",
                "step",
                "mean |cos|",
                [
                    over_seeds(results.curve("sample_alignment", part="mean |cos|"), "cos(−g, Jq⁽¹⁾)"),
                    over_seeds(
                        results.curve("logit_alignment", part="mean |cos|"), "cos(e^y − p, q⁽¹⁾)", style="dashed"
                    ),
                ],
                lines=[Line("1", y=1.0)],
            ),
            panel("A_S", "subspace_alignment", {"gradient": "A_S(g)", "top eigenvector": "A_S(r)"}, []),
        ],
        caption="Alignment of gradients with the top Hessian eigenvector r, with Jq⁽¹⁾ and with the class means of m.",
    )


variant("C-F34", alignment, "gradients point along the sharpest direction in a deeper network", network="vgg11")


@recipe(
    "C-F11",
    "J q⁽ⁱ⁾ are of similar length and nearly orthogonal",
    finding="‖Jq⁽ⁱ⁾‖ over their mean near 1, cos²(Jq⁽ⁱ⁾, Jq⁽ʲ⁾) near 0",
    minutes=3,
)
def histograms(scale: Scale) -> Experiment:
    """The two histograms behind tr G ≈ ⟨tr(M)‖J‖_F²⟩/C, in the middle of training; C Fig 11, Eq 14, Q58."""
    step = COSINE_STEPS[scale][1]

    def share(results: Results, *, name: str, low: float, high: float) -> list[float]:
        """Of the histogram between two bin centres."""
        found = [entries.get(step, {}) for entries in results.vectors(name)]
        return [
            sum(value for centre, value in one.items() if low <= float(centre) <= high) if one else nan for one in found
        ]

    def figure(results: Results) -> Panels:
        def panel(title: str, name: str) -> Panel:
            found = [entries[step] for entries in results.vectors(name)]
            centres = [float(centre) for centre in found[0]]
            table = np.array([list(entries.values()) for entries in found])
            return Panel(title, title, "share", [Series("mean over seeds", centres, table.mean(0), style="bars")])

        return Panels(
            [
                panel("‖Jq⁽ⁱ⁾‖ / mean over i", "eigen_length_histogram"),
                panel("cos²(Jq⁽ⁱ⁾, Jq⁽ʲ⁾)", "eigen_cosine_histogram"),
            ],
            columns=2,
            caption=f"Over samples and eigenvectors at step {step}.",
        )

    return Experiment(
        runs=[geometry_run(scale, "cnn6", seed) for seed in seeds(scale)],
        claims=[
            Claim(
                "most lengths ‖Jq⁽ⁱ⁾‖ are within 0.4 .. 1.6 of their sample's mean",
                partial(share, name="eigen_length_histogram", low=0.5, high=1.5),
                least=0.5,
                unit="share of lengths",
                source="C-F11",
            ),
            Claim(
                "most cos²(Jq⁽ⁱ⁾, Jq⁽ʲ⁾) are below 0.1",
                partial(share, name="eigen_cosine_histogram", low=0.0, high=0.1),
                least=0.5,
                unit="share of pairs",
                source="C-F11",
            ),
        ],
        figure=figure,
        departures=departures(
            scale,
            "cnn6",
            descent_said(scale),
            f"at step {step}: not in the text",
            "what counts as near 1 and near 0 is chosen here",
        ),
    )
