"""Paper D, section 4: L2 regularisation, sharpness and generalisation (D-F1 .. D-F5, D-F8)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from spherometer.figures.panels import Panel, Panels
from spherometer.recipes.claims import AnyClaim, Claim
from spherometer.recipes.ends import label_panel, over_label, told
from spherometer.recipes.margins import above, larger, numbers, rising_throughout, weakest
from spherometer.recipes.papers.d_networks import ABOUT, NETWORKS, PLAIN, Network, about, measured_so
from spherometer.recipes.recipe import Experiment, Scale, Table, at_scale, recipe, variant
from spherometer.recipes.results import Results, Run, training_run
from spherometer.recipes.spectra import spectrum_panel

DECAYS = (0.0, 1e-4, 5e-4)
NONE, LITTLE, MOST = ({"decay": decay} for decay in DECAYS)
REGULARISED = (0.0, 5e-4)  # without and with, in D-F8
MODES = {"eval": "", "train": "batch_"}  # of batch norm, before the names of rows
ENDS = {"λ₁": "sharpness", "Tr(H²)/P": "mean_squared_eigenvalue"}
MEASURED = ("sharpness", "hessian_trace", "mean_squared_eigenvalue", "weight_norm")


@recipe(
    "D-F1",
    "the sharper solution generalises better: softmax regression",
    finding="more L2 regularisation gives a larger λ₁ and a better validation accuracy",
    minutes=9,
)
def weight_decay(scale: Scale, *, network: str = "softmax-regression", source: str = "D-F1") -> Experiment:
    """SGD with momentum and three strengths of L2; the Hessian is that of the unregularised loss; 5.3 item 4."""
    wanted = NETWORKS[network]
    sharpness = f"final_{wanted.prefix}sharpness"
    claims: list[AnyClaim] = [
        _sharper(network, sharpness, f"{source}; 5.3 item 4"),
        Claim(
            "the most L2 gives a better test accuracy than none",
            lambda results: above(results, _percent("test"), here=MOST, there=NONE),
            unit="points of accuracy",
            source=f"{source}; 5.3 item 4",
        ),
        *_particular(network, source),
    ]
    return Experiment(
        _runs(scale, wanted, DECAYS),
        claims,
        partial(_figure, prefix=wanted.prefix),
        _departures(scale, wanted),
        table=partial(_table, wanted=wanted),
    )


@recipe(
    "D-F8",
    "with batch norm in eval mode the regularised network is far sharper",
    finding="λ₁ about 1000 times and Tr(H²)/P about 5·10⁶ times as large when regularised (D-e13, D-e16)",
    minutes=2,
)
def eval_mode(scale: Scale) -> Experiment:
    """The runs of D-F5 with and without L2, measured with running statistics and with those of the batch; gap G18."""
    wanted = NETWORKS["wrn-28-10-bias"]
    claims: list[AnyClaim] = [
        Claim(
            f"{words} is larger when regularised, batch norm in eval mode",
            lambda results, quantity=quantity: larger(results, quantity, here=MOST, there=NONE),  # type: ignore[misc]
            unit="ln of the factor",
            source="D-F8",
        )
        for words, quantity in (("λ₁", "final_sharpness"), ("Tr(H²)/P", "final_mean_squared_eigenvalue"))
    ]
    claims += [
        about(
            f"{words} is about {factor:,.0f} times as large when regularised, batch norm in eval mode",
            lambda results, quantity=quantity: larger(results, quantity, here=MOST, there=NONE),  # type: ignore[misc]
            factor,
            "D-F8",
        )
        for words, quantity, factor in (
            ("λ₁", "final_sharpness", 1000.0),
            ("Tr(H²)/P", "final_mean_squared_eigenvalue", 4.9e-5 / 9.8e-12),
        )
    ]
    return Experiment(
        _runs(scale, wanted, REGULARISED),
        claims,
        _mode_figure,
        [*_departures(scale, wanted), ABOUT, "the network is that of D-F5 (the caption of D-F8 is lost)"],
        table=_mode_table,
    )


def _runs(scale: Scale, wanted: Network, decays: Sequence[float]) -> list[Run]:
    seeds = range(at_scale(scale, smoke=2, laptop=wanted.num_seeds, paper=3))
    return [_run(scale, wanted, decay, seed) for decay in decays for seed in seeds]


def _run(scale: Scale, wanted: Network, decay: float, seed: int) -> Run:
    paper = scale == "paper"
    num, num_steps = wanted.measured(scale)
    spectrum = num_steps if seed == 0 else 0
    measurement: dict[str, Any] = {
        "measure": list(MEASURED),
        "measure_num": num,
        "spectrum": spectrum,
    }
    if wanted.batchnorm:
        measurement |= {"measure_batch_statistics": list(MEASURED[:3]), "batch_spectrum": spectrum}
    epochs = at_scale(scale, smoke=4, laptop=wanted.epochs[1], paper=wanted.epochs[0])
    return training_run(
        {"decay": decay, "seed": seed},
        **at_scale(scale, smoke=wanted.smoke, laptop=wanted.laptop, paper=wanted.paper),
        method={
            "learning_rate": wanted.rates[0 if paper else 1],
            "momentum": 0.9,
            "weight_decay": decay,
            "schedule": "flat-then-linear",
        },
        loop={"epochs": epochs, "batch_size": at_scale(scale, smoke=50, laptop=128, paper=128)},
        measurement=measurement,
    )


def _percent(part: str) -> Any:
    def accuracy(results: Results, **labels: Any) -> list[float]:
        return [100 * share for share in results.final(f"final_{part}_accuracy", **labels)]

    return accuracy


def _gap(results: Results, **labels: Any) -> list[float]:
    """Accuracy on the training set minus that on the test set; Q6."""
    return list(numbers(results, _percent("train"), **labels) - numbers(results, _percent("test"), **labels))


def _sharper(network: str, sharpness: str, source: str) -> Claim:
    """λ₁ rises with γ; of All-CNN-C the paper says only where it is largest."""
    if network == "all-cnn-c":
        return Claim(
            "the most L2 gives the largest λ₁",
            lambda results: weakest([larger(results, sharpness, here=MOST, there=less) for less in (NONE, LITTLE)]),
            unit="ln of the factor over the larger of both others",
            source=source,
        )
    return Claim(
        "more L2 gives a larger λ₁",
        lambda results: rising_throughout(results, sharpness, over="decay"),
        unit="ln of the factor from one γ to the next, the weakest",
        source=source,
    )


def _particular(network: str, source: str) -> list[AnyClaim]:
    """What the paper says of this network only."""
    if network in ("mlp-10-100", "all-cnn-c"):
        return [
            Claim(
                "the most L2 has the smallest accuracy gap",
                lambda results: weakest([above(results, _gap, here=less, there=MOST) for less in (NONE, LITTLE)]),
                unit="points of accuracy, below the smaller of both others",
                source=source,
            )
        ]
    if network == "preresnet164":
        return [
            Claim(
                "with the most L2 λ₁ ends above 2/α of the first learning rate α",
                lambda results: [value - 20.0 for value in results.final("final_batch_sharpness", **MOST)],
                unit="λ₁ − 2/α",
                source=source,
            ),
            Claim(
                "and far below 2/α of the last: less than a tenth of it",
                lambda results: [200.0 - value for value in results.final("final_batch_sharpness", **MOST)],
                unit="200 − λ₁; the last α is a hundredth of the first",
                source=source,
            ),
        ]
    return []


def _figure(results: Results, *, prefix: str) -> Panels:
    spectra: list[Panel] = [
        spectrum_panel(results, f"spectrum, γ = {decay:g}", prefix=prefix, decay=decay) for decay in DECAYS
    ]
    ends = [
        ("λ₁", f"final_{prefix}sharpness"),
        ("test accuracy (%)", _percent("test")),
        ("accuracy gap (points)", _gap),
    ]
    panels = [label_panel(results, title, quantity, "decay", "γ", [("", {})]) for title, quantity in ends]
    return Panels(
        [*spectra, *panels],
        caption="Hessian of the unregularised loss after SGD with L2 coefficient γ; spectra are of the first seed.",
    )


def _mode_figure(results: Results) -> Panels:
    spectra = [
        spectrum_panel(results, f"{mode} mode, γ = {decay:g}", prefix=prefix, decay=decay)
        for mode, prefix in MODES.items()
        for decay in REGULARISED
    ]
    ends = [
        Panel(
            title,
            "γ",
            title,
            [over_label(results, f"final_{prefix}{name}", "decay", f"{mode} mode") for mode, prefix in MODES.items()],
            log_y=True,
            x_names=[f"{decay:g}" for decay in REGULARISED],
        )
        for title, name in ENDS.items()
    ]
    return Panels(
        [*spectra, *ends],
        columns=2,
        caption="The same networks with batch norm in eval and in training mode; spectra are of the first seed.",
    )


def _mode_table(results: Results) -> Table:
    printed = {("Tr(H²)/P", "eval"): ("9.8e-12", "4.9e-05")}
    rows = [
        [title, mode, f"{decay:g}", paper, told(numbers(results, f"final_{prefix}{name}", decay=decay), ".3g", ".2g")]
        for title, name in ENDS.items()
        for mode, prefix in MODES.items()
        for decay, paper in zip(REGULARISED, printed.get((title, mode), ("", "")), strict=True)
    ]
    return Table(["quantity", "batch norm", "γ", "paper", "ours"], rows)


def _table(results: Results, *, wanted: Network) -> Table:
    ours = {
        "train accuracy": _percent("train"),
        "test accuracy": _percent("test"),
        "accuracy gap": _gap,
        "λ₁": f"final_{wanted.prefix}sharpness",
    }
    rows = []
    for name, quantity in ours.items():
        for place, decay in enumerate(DECAYS):
            known = wanted.numbers.get(name)
            found = told(numbers(results, quantity, decay=decay), ".4g", ".2g")
            rows.append([name, f"{decay:g}", f"{known[place]:g}" if known else "", found])
    return Table(["quantity", "γ", "paper", "ours"], rows)


def _departures(scale: Scale, wanted: Network) -> list[str]:
    chosen = ["batch size 128 (not in the text)", PLAIN, *wanted.chosen]
    chosen += ["the official test set instead of a validation split", *measured_so(*wanted.measured(scale))]
    if scale == "paper":
        return [*chosen, "three seeds (the paper shows one)"]
    rate, epochs = wanted.rates[1], at_scale(scale, smoke=4, laptop=wanted.epochs[1], paper=0)
    return [wanted.stand_in, f"learning rate {rate:g}, {epochs} epochs", *chosen]


for number, (network, words, minutes, finding) in enumerate(
    [
        ("mlp-10-100", "a perceptron", 9, "λ₁ rises with L2; the smallest gap goes with the largest λ₁"),
        ("all-cnn-c", "All-CNN-C", 6, "the most L2 has the largest λ₁ and the smallest gap"),
        ("preresnet164", "PreResNet-164", 10, "λ₁ and test accuracy rise with L2; λ₁ exceeds 2/α of the first rate"),
        ("wrn-28-10-bias", "WRN-28x10", 5, "λ₁ and validation accuracy rise with L2, batch norm in training mode"),
    ],
    start=2,
):
    variant(
        f"D-F{number}",
        weight_decay,
        f"the sharper solution generalises better: {words}",
        finding=finding,
        minutes=minutes,
        network=network,
        source=f"D-F{number}",
    )
