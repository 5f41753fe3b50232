"""Paper B, App G.2: what goes with what over a zoo of trained networks (B-FG5, B-FG6, B-FG7)."""

from __future__ import annotations

import numpy as np

from spherometer.figures.panels import HeatPanel, Panel, Panels, Series
from spherometer.recipes.claims import AnyClaim, Correlation, Stronger, Weak
from spherometer.recipes.papers.b_learners import FASTER, LEARNERS, STAND_INS, open_choices, rate_at
from spherometer.recipes.recipe import Experiment, Scale, Table, at_scale, recipe, variant
from spherometer.recipes.results import Results, Run, training_run
from spherometer.recipes.statistics import Tested, pearson

DRAWN = {"rate": "learning rate", "batch": "batch size"}
RATES, BATCHES = (0.05, 0.2), (8, 32)  # drawn between these
MEASURED = (
    "participation_ratio",
    "jacobian_sharpness",
    "log_volume",
    "mls",
    "nmls",
    "mls_chain",
    "nmls_bound",
    "relative_flatness",
)
COLUMNS = ("D_PR", "√S", "log volume", "MLS", "NMLS", "gap", "bound C", "bound D", "Eq 12 bound", "κ")
SCATTERED = [("gap", name) for name in COLUMNS if name != "gap"]
SCATTERED += [
    ("√S", "log volume"),
    ("MLS", "log volume"),
    ("MLS", "bound C"),
    ("MLS", "bound D"),
    ("NMLS", "Eq 12 bound"),
]

STEPS = {"vgg11": 2000, "mlp4": 3000, "lenet": 1200}


@recipe(
    "B-FG5",
    "sensitivity goes with the generalisation gap",
    finding="MLS, NMLS and its bound correlate with the gap, log volume with S and MLS, S with the gap",
    minutes=3,
)
def zoo(scale: Scale, *, network: str = "vgg11") -> Experiment:
    """Networks that differ in learning rate, batch size and seed, measured when they are trained; L40."""
    num = at_scale(scale, smoke=5, laptop=30, paper=100)
    draws = np.random.default_rng(0)
    rates = np.exp(draws.uniform(np.log(RATES[0]), np.log(RATES[1]), size=num))
    batches = draws.integers(BATCHES[0], BATCHES[1] + 1, size=num)
    drawn = zip(rates.tolist(), batches.tolist(), strict=True)
    return Experiment(
        runs=[
            _run(scale, network, round(rate_at(scale, network, rate), 4), batch, seed)
            for seed, (rate, batch) in enumerate(drawn)
        ],
        claims=CLAIMS[network](),
        figure=_figure,
        table=_partial_table,
        departures=_departures(scale, network, num),
    )


def _run(scale: Scale, network: str, rate: float, batch: int, seed: int) -> Run:
    return training_run(
        {"rate": rate, "batch": batch, "seed": seed},
        **LEARNERS[network][scale],
        objective={"loss": "half-squared-error"},
        method={"learning_rate": rate},
        loop={
            "steps": at_scale(scale, smoke=60, laptop=STEPS[network], paper=100_000),
            "batch_size": batch,
            "evaluate_every": at_scale(scale, smoke=60, laptop=500, paper=1000),
        },
        measurement={"measure": list(MEASURED), "measure_num": at_scale(scale, smoke=20, laptop=100, paper=100)},
    )


def table(results: Results) -> dict[str, list[float]]:
    """The columns of the matrix, one number for each network; the gap is test loss − training loss."""

    def final(name: str, part: str = "") -> list[float]:
        return results.final(f"final_{name}", part=part)

    test, train = final("test_loss"), final("train_loss")
    return {
        "D_PR": final("participation_ratio"),
        "√S": [float(np.sqrt(value)) for value in final("jacobian_sharpness")],
        "log volume": final("log_volume"),
        "MLS": final("mls"),
        "NMLS": final("nmls"),
        "gap": [one - other for one, other in zip(test, train, strict=True)],
        "bound C": final("mls_chain", "C"),
        "bound D": final("mls_chain", "D"),
        "Eq 12 bound": final("nmls_bound", "right"),
        "κ": final("relative_flatness"),
    }


def _drawn(results: Results) -> dict[str, list[float]]:
    """What the networks were drawn with, which may move two columns at once; partial correlations take it out."""
    runs = results.choose()
    return {f"ln {label}": [float(np.log(run.labels[name])) for run in runs] for name, label in DRAWN.items()}


def _goes_with(one: str, other: str, source: str, *, sign: int = 1) -> AnyClaim:
    return Correlation(
        f"{one} correlates {'positively' if sign > 0 else 'negatively'} with {other}",
        lambda results: (table(results)[one], table(results)[other]),
        sign=sign,
        beside=_drawn,
        source=source,
    )


def _columns(results: Results, x: str, y: str, z: str) -> tuple[list[float], list[float], list[float]]:
    known = table(results)
    return known[x], known[y], known[z]


def _more_than(one: str, other: str, target: str, source: str, *, absolute: bool = False) -> AnyClaim:
    """Signed, or how strong whichever the sign: the paper calls the correlations of D_PR the weakest."""
    return Stronger(
        f"{one} correlates more with {target} than {other} does{', whichever the sign' if absolute else ''}",
        lambda results: _columns(results, one, other, target),
        unit="difference of |artanh r|" if absolute else "difference of artanh r",
        source=source,
        absolute=absolute,
    )


def _weak(one: str, other: str, source: str) -> AnyClaim:
    return Weak(
        f"{one} correlates weakly or negatively with {other}",
        lambda results: (table(results)[one], table(results)[other]),
        source=source,
    )


def _convolutional(source: str) -> list[AnyClaim]:
    pairs = [("Eq 12 bound", "gap"), ("MLS", "gap"), ("NMLS", "gap"), ("√S", "gap")]
    pairs += [("log volume", "√S"), ("log volume", "MLS"), ("Eq 12 bound", "NMLS")]
    return [_goes_with(one, other, source) for one, other in pairs]


CLAIMS = {
    "vgg11": lambda: _convolutional("B-FG5"),
    "mlp4": lambda: [
        _goes_with("bound C", "MLS", "B-FG6"),
        _goes_with("bound D", "MLS", "B-FG6", sign=-1),
        _goes_with("Eq 12 bound", "NMLS", "B-FG6"),
        _more_than("Eq 12 bound", "κ", "gap", "B-FG6"),
        _weak("κ", "gap", "B-FG6"),
    ],
    "lenet": lambda: [
        *_convolutional("B-FG7"),
        *(
            _more_than(name, "D_PR", "gap", "B-FG7", absolute=True)
            for name in ("MLS", "NMLS", "√S", "log volume", "Eq 12 bound")
        ),
    ],
}


def _correlation(x: list[float], y: list[float], *given: list[float]) -> Tested:
    """Over the networks that have all numbers: a diverged one would leave no correlation at all."""
    columns = np.array([x, y, *given])
    first, second, *others = columns[:, np.isfinite(columns).all(0)]
    return pearson(first, second, others)


def _partial_table(results: Results) -> Table:
    """Of the scattered pairs r, and r given what the networks were drawn with."""
    found, drawn = table(results), _drawn(results)
    rows = []
    for one, other in SCATTERED:
        tests = (_correlation(found[one], found[other], *given) for given in ((), drawn.values()))
        rows.append([f"{one}, {other}", *(f"{test.value:.2f} ({test.low:.2f} … {test.high:.2f})" for test in tests)])
    return Table(["pair", "Pearson's r", f"partial r given {' and '.join(drawn)}"], rows)


def _figure(results: Results) -> Panels:
    found = table(results)
    cells = [[_correlation(found[row], found[column]) for column in COLUMNS] for row in COLUMNS]
    panel = HeatPanel(
        f"Pearson correlation over {cells[0][0].num} networks, 95 % intervals",
        [[cell.value for cell in row] for row in cells],
        COLUMNS,
        COLUMNS,
        limit=1.0,
        low=[[cell.low for cell in row] for row in cells],
        high=[[cell.high for cell in row] for row in cells],
        numbers=True,
    )
    return Panels(
        [panel, *_scatter(found)],
        columns=3,
        caption="Each network has its own learning rate, batch size and seed. All correlations, then the networks.",
    )


def _scatter(found: dict[str, list[float]]) -> list[Panel]:
    """A point for each network, in their order."""
    return [
        Panel(f"{other} over {one}", one, other, [Series("", found[one], found[other], style="markers")])
        for one, other in SCATTERED
    ]


def _departures(scale: Scale, network: str, num: int) -> list[str]:
    chosen = [
        "learning rates drawn evenly in their logarithm from 0.05 to 0.2, batch sizes from 8 to 32 (not in the text)",
        "the gap is test loss − training loss (not in the text)",
        f"{len(SCATTERED)} of the 45 pairs are scattered: everything over the gap, and the pairs that claims are about",
        "‖W‖ of a convolution is that of the unrolled map (the text leaves it open)",
    ]
    if scale == "paper":
        return [*chosen, *open_choices(network)]
    steps = at_scale(scale, smoke=60, laptop=STEPS[network], paper=0)
    faster = f", learning rates {FASTER[network]} times as large" if FASTER[network] > 1 else ""
    return [STAND_INS[network], f"{num} networks instead of 100, {steps:,} iterations{faster}", *chosen]


variant(
    "B-FG6",
    zoo,
    "which bound goes with sensitivity",
    finding="bound C goes with MLS, bound D against it; the bound of all layers goes with NMLS; κ hardly with the gap",
    minutes=4,
    network="mlp4",
)
variant(
    "B-FG7",
    zoo,
    "sensitivity goes with the generalisation gap, LeNet",
    finding="as for VGG-11; the local dimension correlates least",
    network="lenet",
)
