"""Paper C, App R: adversarial training with EJR (C-T2, C-T7)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np

from spherometer.figures.panels import Panel, Panels, Series
from spherometer.recipes.claims import Claim
from spherometer.recipes.ends import told
from spherometer.recipes.papers.c_methods import ACCURACY, mean_better, percent
from spherometer.recipes.papers.c_printed import CHOSEN, ROBUST, Row
from spherometer.recipes.recipe import Experiment, Scale, Table, at_scale, recipe, variant
from spherometer.recipes.results import Results, Run, training_run

PGD, AUTOATTACK = "final_test_robust_accuracy", "final_test_autoattack_accuracy"
LENGTHS = {"preact-resnet18": (110, (100, 105)), "wrn-34-10": (120, (100, 110))}  # epochs and decays
NAMES = {"at": "AT", "trades": "TRADES"}
STEPS, STEP_SIZE, RADIUS = 10, 2 / 255, 8 / 255


def defended_run(scale: Scale, model: str, row: Row, seed: int) -> Run:
    """Setting 4: AT or TRADES, with the ascent of EJR where ρ is given."""
    defence, rho, beta = row
    epochs, marks = LENGTHS[model]
    objective: dict[str, Any] = {"defence": defence}
    if defence == "trades":
        objective["beta"] = float(beta or 6)
    method: dict[str, Any] = {"momentum": 0.9, "weight_decay": 5e-4, "schedule": "steps", "factor": 0.1}
    if rho is not None:
        method |= {"method": "ejr", "rho": rho}
    labels = {"model": model, "defence": defence, "rho": rho, "beta": beta, "seed": seed}
    if scale == "paper":
        return training_run(
            labels,
            data={"data": "cifar10", "standardise": "cifar"},
            model={"model": model},
            objective={**objective, "attack_steps": STEPS, "attack_step_size": STEP_SIZE, "radius": RADIUS},
            method={**method, "learning_rate": 0.1, "milestones": list(marks)},
            loop={"epochs": epochs, "batch_size": 128, "augment": 1.0},
            measurement={"autoattack": 10_000},
        )
    used = at_scale(scale, smoke=1, laptop=20, paper=epochs)
    return training_run(
        labels,
        data=at_scale(
            scale,
            smoke={"data": "digits", "num": 64, "num_test": 32},
            laptop={"data": "digits", "num": 500},
            paper={},
        ),
        model={"model": "digits-cnn"},
        objective={**objective, "radius": 0.1, "attack_steps": at_scale(scale, smoke=2, laptop=STEPS, paper=STEPS)},
        method={**method, "learning_rate": 0.05, "milestones": [max(1, used - 2)]},
        loop={"epochs": used, "batch_size": 50},
    )


@recipe(
    "C-T7",
    "EJR raises the robustness of adversarial training",
    finding="AT-EJR and TRADES-EJR withstand PGD-20 and AutoAttack better than AT and TRADES",
    minutes=2,
)
def robustness(scale: Scale, *, chosen: bool = False) -> Experiment:
    """Standard, PGD-20 and AutoAttack accuracy over ρ and β; C Table 7, and its best rows in C Table 2."""
    models = list(ROBUST) if scale == "paper" else ["preact-resnet18"]
    rows = {model: CHOSEN[model] if chosen or scale == "smoke" else list(ROBUST[model]) for model in models}
    seeds = range(at_scale(scale, smoke=1, laptop=3, paper=3))
    source = "C-T2" if chosen else "C-T7"
    judges = {PGD: "PGD-20"} | ({AUTOATTACK: "AutoAttack"} if scale == "paper" else {})
    return Experiment(
        runs=[defended_run(scale, model, row, seed) for model in models for row in rows[model] for seed in seeds],
        claims=[
            Claim(
                f"EJR raises the {judge} accuracy of {NAMES[defence]}" + (f" ({model})" if scale == "paper" else ""),
                partial(mean_better, cases=_cases(model, defence, rows[model]), quantity=quantity),
                unit="percentage points, mean over ρ and β",
                source=source,
            )
            for model in models
            for defence in ("at", "trades")
            for quantity, judge in judges.items()
        ],
        figure=partial(_figure, rows=rows, judges=judges),
        departures=_departures(scale),
        table=partial(_table, rows=rows, printed=CHOSEN if chosen else ROBUST, judges=judges),
    )


def _cases(model: str, defence: str, rows: list[Row]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Each row with EJR beside the row without, at the same β."""
    return [
        (_labels(model, row), _labels(model, (defence, None, row[2])))
        for row in rows
        if row[0] == defence and row[1] is not None
    ]


def _labels(model: str, row: Row) -> dict[str, Any]:
    return {"model": model, "defence": row[0], "rho": row[1], "beta": row[2]}


def _name(row: Row) -> str:
    defence, rho, beta = row
    parts = [f"{letter} {value:g}" for letter, value in (("ρ", rho), ("β", beta)) if value is not None]
    said = f" ({', '.join(parts)})" if parts else ""
    return f"{NAMES[defence]}{'-EJR' if rho is not None else ''}{said}"


def _figure(results: Results, *, rows: dict[str, list[Row]], judges: dict[str, str]) -> Panels:
    panels = []
    for model, chosen in rows.items():
        series = []
        for quantity, name in ({ACCURACY: "standard"} | judges).items():
            found = [percent(results, quantity, **_labels(model, row)) for row in chosen]
            mean = np.array([values.mean() for values in found])
            spread = np.array([values.std(ddof=1) if len(values) > 1 else 0.0 for values in found])
            series.append(Series(name, range(len(chosen)), mean, mean - spread, mean + spread, style="markers"))
        title = model if len(rows) > 1 else "robustness"
        panels.append(Panel(title, "", "test accuracy, %", series, x_names=[_name(row) for row in chosen]))
    return Panels(panels, columns=1, caption="Mean and standard deviation over seeds.")


def _table(
    results: Results, *, rows: dict[str, list[Row]], printed: Mapping[str, Iterable[Row]], judges: dict[str, str]
) -> Table:
    found: list[list[str]] = []
    for model, known in ROBUST.items():
        for row in printed[model]:
            found.append([model, _name(row), "paper", *known[row]])
            if row in rows.get(model, ()):
                ours = [told(percent(results, name, **_labels(model, row))) for name in (ACCURACY, *judges)]
                found.append([model, _name(row), "ours", *ours, *["-"] * (2 - len(judges))])
    return Table(["model", "defence", "source", "standard", "PGD-20", "AutoAttack"], found)


def _departures(scale: Scale) -> list[str]:
    said = ["EJR's ascent takes the logits that the robust loss is computed from: which ones is not in the text"]
    if scale == "paper":
        return [
            *said,
            "lr 0.1, batches of 128, 10 steps of 2/255: of Pang et al., not in the text",
            "PGD-20 by steps of 2.5/20 of the radius: not in the text",
            "three seeds where the paper prints one number",
        ]
    return [
        *said,
        "a small convolutional network on 500 digits instead of PreAct ResNet-18; no WRN-34-10",
        "radius 0.1 on inputs in [0, 1] instead of 8/255; 20 epochs of batches of 50, lr 0.05, one decay",
        "no augmentation; judged by PGD-20 alone: AutoAttack is part of the paper scale",
    ]


variant("C-T2", robustness, "EJR raises the robustness of adversarial training: chosen rows", chosen=True, minutes=0.5)
