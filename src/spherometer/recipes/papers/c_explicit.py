"""Paper C, Sec 5.3: explicit Jacobian regularisation on SimpleCNN (C-T1, C-F36)."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from spherometer.figures.panels import Panel, Panels
from spherometer.recipes.claims import AnyClaim, Claim, Near
from spherometer.recipes.ends import over_label, told
from spherometer.recipes.margins import levels_of, weakest
from spherometer.recipes.papers.c_methods import (
    FULL_RATES,
    METHODS,
    NARROWER,
    PENALISED,
    SIMPLE_RATES,
    better,
    error_reduction,
    full_batch_departures,
    mean_better,
    percent,
    percents,
    simple_departures,
    simple_run,
    wide_run,
)
from spherometer.recipes.papers.c_printed import PENALISED_PRINTED, SIMPLE, SIMPLE_WHOLE, WIDE
from spherometer.recipes.recipe import Experiment, Scale, Table, at_scale, recipe
from spherometer.recipes.results import Results, Run

POINTS = "percentage points"
COEFFICIENTS = {  # of C-F36; the grid is not in the text
    "smoke": (0.0, 0.01),
    "laptop": (0.0, 0.001, 0.01, 0.1),
    "paper": (0.0, 0.001, 0.003, 0.01, 0.03, 0.1),
}
WHOLE_COEFFICIENT = 0.001
LENGTHS = {"wrn-28-10": 200, "wrn-28-2": 1600}  # epochs of Setting 3
AS_GOOD = 0.5  # points: the largest difference between SAM, ASAM and EJR on CIFAR-10 in the table is 0.23


def seeds(scale: Scale) -> range:
    """Of each setting: mean ± std of three runs in the paper."""
    return range(at_scale(scale, smoke=1, laptop=3, paper=3))


def plain(rate: float, *, whole: bool = False) -> dict[str, Any]:
    """The labels of SGD."""
    return {"rate": rate, "method": "SGD", "whole": whole}


def regularised(rate: float, *, whole: bool = False) -> dict[str, Any]:
    """The labels of EJR."""
    return {"rate": rate, "method": "EJR", "whole": whole}


@recipe(
    "C-T1",
    "EJR makes the test accuracy independent of the learning rate",
    finding="SimpleCNN with EJR 75.0-75.7 % at every rate, SGD 68.9-72.6 %; EJR about as good as SAM and ASAM on WRN",
    minutes=13,
)
def main_table(scale: Scale) -> Experiment:
    """SGD, SAM, ASAM and EJR: SimpleCNN in small and in full batches, wide residual networks; C Table 1, 5.3 item 8."""
    small, full = SIMPLE_RATES[scale], FULL_RATES[scale]
    runs = [
        simple_run(scale, rate, method, seed)
        for rate in small
        for method in (METHODS if scale != "laptop" else ("SGD", "SAM", "EJR"))
        for seed in seeds(scale)
    ]
    runs += [
        simple_run(scale, rate, method, seed, coefficient=WHOLE_COEFFICIENT, whole=True)
        for rate in full
        for method in (METHODS if scale == "paper" else ("SGD", "EJR"))
        for seed in seeds(scale)
    ]
    if scale == "paper":
        runs += wide_rows(scale) + penalised_rows(scale)
    source = "C-T1; 5.3 item 8"
    claims: list[AnyClaim] = [
        Claim(
            "EJR flattens the dependence on the learning rate",
            partial(_flatter, rates=small),
            unit=f"{POINTS}: range over rates of SGD less that of EJR",
            source=source,
        ),
        Claim(
            f"EJR beats SGD at the smallest rate ({small[0]:g})",
            partial(better, here=regularised(small[0]), there=plain(small[0])),
            unit=POINTS,
            source=source,
        ),
        Claim(
            "EJR beats SGD on average over the rates",
            partial(mean_better, cases=[(regularised(rate), plain(rate)) for rate in small]),
            unit=POINTS,
            source=source,
        ),
        Claim(
            "EJR beats SGD in full batches too",
            partial(mean_better, cases=[(regularised(rate, whole=True), plain(rate, whole=True)) for rate in full]),
            unit=POINTS,
            source=source,
        ),
    ]
    if scale == "paper":
        claims += [*_wide_claims(), _failing_asam(full)]
    return Experiment(
        runs=runs,
        claims=claims,
        figure=_main_figure,
        departures=[*simple_departures(scale), *full_batch_departures(scale), *_missing(scale)],
        table=partial(_main_table, scale=scale),
    )


def wide_rows(scale: Scale) -> list[Run]:
    """Setting 3: 200 epochs for WRN-28-10 and 1600 for WRN-28-2, SGD twice as many."""
    return [
        wide_run(
            scale,
            method,
            seed,
            data=data,
            model=model,
            setting=3,
            epochs=LENGTHS[model] * (2 if method == "SGD" else 1),
        )
        for model, data in WIDE
        for method in METHODS
        for seed in seeds(scale)
    ]


def penalised_rows(scale: Scale) -> list[Run]:
    """The penalties of the text on CIFAR-10, as long as EJR."""
    return [
        wide_run(scale, method, seed, model=model, setting=3, epochs=LENGTHS[model])
        for model in LENGTHS
        for method in PENALISED
        for seed in seeds(scale)
    ]


def _wide_claims() -> list[AnyClaim]:
    """EJR on the wide networks: above SGD and the penalties, not below SAM and ASAM."""

    def beyond(method: str, least: float, sentence: str) -> AnyClaim:
        where = [(model, data) for model, data in WIDE if data == "cifar10" or method not in PENALISED]
        labels = [{"model": model, "data": data} for model, data in where]
        cases = [({"method": "EJR", **chosen}, {"method": method, **chosen}) for chosen in labels]
        return Claim(sentence, partial(mean_better, cases=cases), unit=POINTS, least=least, source="C-T1")

    return [
        beyond("SGD", 0.0, "EJR beats SGD with twice the epochs on the wide networks"),
        *(
            beyond(name, -AS_GOOD, f"EJR is as good as {name} on the wide networks, up to {AS_GOOD:g} points")
            for name in ("SAM", "ASAM")
        ),
        *(beyond(name, 0.0, f"EJR beats the {name} penalty on the wide networks") for name in PENALISED),
    ]


def _failing_asam(rates: tuple[float, ...]) -> AnyClaim:
    def accuracy(results: Results) -> list[float]:
        table = [percent(results, rate=rate, method="ASAM", whole=True) for rate in rates]
        return [float(value) for value in np.mean(table, 0)]

    sentence = "ASAM fails in full batches: about 20 % are right"
    return Near(sentence, accuracy, target=20.0, tolerance=10.0, unit="% of the test set", source="C-T1")


def _missing(scale: Scale) -> list[str]:
    if scale == "paper":
        return [
            f"'as good as' means not more than {AS_GOOD:g} points below, ASAM 'fails' at 10 to 30 %: chosen here",
            "coefficient 0.01 of the gradient-norm and input-Jacobian penalties, as long as EJR (not in the text)",
        ]
    return [
        "no wide residual networks here: C-F6, C-F29, C-T5 and C-T6 have their stand-ins",
        "SAM in small batches only; no ASAM at laptop scale, for its time",
        f"radii of SAM and ASAM 1/{NARROWER} of the paper's",
    ]


def _flatter(results: Results, *, rates: tuple[float, ...]) -> list[float]:
    def ranges(labels: Any) -> np.ndarray:
        table = np.stack([percent(results, **labels(rate)) for rate in rates])
        return np.asarray(table.max(0) - table.min(0))

    return [float(value) for value in ranges(plain) - ranges(regularised)]


def _main_figure(results: Results) -> Panels:
    panels = []
    for whole, title in ((False, "small batches"), (True, "full batch")):
        methods = [name for name in METHODS if any(_is(run, name, whole) for run in results.runs)]
        series = [over_label(results, percents, "rate", name, method=name, whole=whole) for name in methods]
        names = [f"{rate:g}" for rate in levels_of(results, "rate", method="SGD", whole=whole)]
        panels.append(Panel(title, "learning rate", "test accuracy, %", series, x_names=names))
    return Panels(panels, columns=2, caption="SimpleCNN by four methods; mean and standard deviation over seeds.")


def _is(run: Run, method: str, whole: bool) -> bool:
    return run.labels["method"] == method and run.labels.get("whole") == whole


def _main_table(results: Results, *, scale: Scale) -> Table:
    columns = ["setting", "lr", "source", *METHODS, "Δ", "ERR"]
    rows: list[list[str]] = []
    for name, printed, whole in (("SimpleCNN B=128", SIMPLE, False), ("SimpleCNN full batch", SIMPLE_WHOLE, True)):
        rows += [[name, f"{rate:g}", "paper", *row] for rate, row in printed.items()]
        rows += [_our_row(results, name, rate, whole) for rate in levels_of(results, "rate", method="SGD", whole=whole)]
    for (model, data), row in WIDE.items():
        rows.append([f"{model} {data}", "0.1", "paper", *row])
        if scale == "paper":
            labels = {"model": model, "data": data}
            numbers = [told(percent(results, method=method, **labels)) for method in METHODS]
            gain = error_reduction(results, here={"method": "EJR", **labels}, there={"method": "SGD", **labels})
            rows.append([f"{model} {data}", "0.1", "ours", *numbers, *gain])
    for model, printed_range in PENALISED_PRINTED.items():
        rows.append([f"{model} cifar10, both penalties", "0.1", "paper", printed_range, *[""] * (len(columns) - 4)])
        for method in PENALISED if scale == "paper" else ():
            ours = told(percent(results, model=model, method=method))
            rows.append([f"{model} cifar10, {method} penalty", "0.1", "ours", ours, *[""] * (len(columns) - 4)])
    return Table(columns, rows)


def _our_row(results: Results, name: str, rate: float, whole: bool) -> list[str]:
    cells = []
    for method in METHODS:
        known = any(_is(run, method, whole) and run.labels["rate"] == rate for run in results.runs)
        cells.append(told(percent(results, rate=rate, method=method, whole=whole)) if known else "-")
    gain = error_reduction(results, here=regularised(rate, whole=whole), there=plain(rate, whole=whole))
    return [name, f"{rate:g}", "ours", *cells, *gain]


@recipe(
    "C-F36",
    "a moderate coefficient of EJR is best at every learning rate",
    finding="test accuracy over lr x λ_reg: optimum at about 0.01-0.03",
    minutes=15,
)
def coefficients(scale: Scale) -> Experiment:
    """SimpleCNN in batches of 128 over learning rates and coefficients of simple EJR; C Fig 36."""
    used, strengths = SIMPLE_RATES[scale], COEFFICIENTS[scale]
    middle = [strength for strength in strengths if 0.01 <= strength <= 0.03]
    weak = [strength for strength in strengths if 0 < strength < 0.01]

    def level(results: Results, strength: float) -> np.ndarray:
        """Mean over rates, one for each seed."""
        return np.asarray(np.mean([percent(results, rate=rate, coefficient=strength) for rate in used], 0))

    def over(results: Results, strength: float) -> list[float]:
        best = np.mean([level(results, entry) for entry in middle], 0)
        return [float(value) for value in best - level(results, strength)]

    claims = [
        Claim(
            "λ_reg of 0.01-0.03 is better than none",
            partial(over, strength=0.0),
            unit=f"{POINTS}, mean over rates",
            source="C-F36; 5.3 item 8",
        )
    ]
    if weak:
        claims.append(
            Claim(
                f"λ_reg of 0.01-0.03 is better than {' and '.join(f'{strength:g}' for strength in weak)}",
                lambda results: weakest([over(results, strength) for strength in weak]),
                unit=f"{POINTS}, mean over rates" + (", above the better of both" if len(weak) > 1 else ""),
                source="C-F36",
            )
        )
    if strengths[-1] > middle[-1]:
        claims.append(
            Claim(
                f"λ_reg of 0.01-0.03 is better than {strengths[-1]:g}",
                partial(over, strength=strengths[-1]),
                unit=f"{POINTS}, mean over rates",
                source="C-F36",
            )
        )
    return Experiment(
        runs=[
            _grid_run(scale, rate, strength, seed) for rate in used for strength in strengths for seed in seeds(scale)
        ],
        claims=claims,
        figure=partial(_grid_figure, rates=used),
        departures=[*simple_departures(scale), "the grid of coefficients is chosen here: not in the text"],
    )


def _grid_run(scale: Scale, rate: float, strength: float, seed: int) -> Run:
    run = simple_run(scale, rate, "EJR" if strength else "SGD", seed, coefficient=strength or 0.01)
    return Run({"rate": rate, "coefficient": strength, "seed": seed}, run.job)


def _grid_figure(results: Results, *, rates: tuple[float, ...]) -> Panels:
    series = [over_label(results, percents, "coefficient", f"lr {rate:g}", rate=rate) for rate in rates]
    names = [f"{strength:g}" for strength in levels_of(results, "coefficient")]
    return Panels([Panel("EJR", "λ_reg", "test accuracy, %", series, x_names=names)], columns=1)
