"""SGD, SAM and the two EJRs at three learning rates: mean and spread of the test accuracy over seeds.

`python -m benchmarks.methods digits` takes a minute; `fashion-mnist` some minutes and wants the files of FashionMNIST.
The strength of each method (ρ or λ) is chosen at the middle learning rate on training samples that are not trained on,
with a seed that is not among the reported ones; SGD has nothing to choose. The table is written where the docs show it.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

import torch
from torch import Tensor

from spherometer.training.assembly import assemble
from spherometer.training.evaluation import evaluate
from spherometer.training.settings import (
    DataSettings,
    LoopSettings,
    MethodSettings,
    ModelSettings,
    ObjectiveSettings,
    Settings,
)
from spherometer.zoo import load_data

TUNING_SEED = 1000
STRENGTHS = {
    "SGD": (0.0,),
    "SAM": (0.02, 0.05, 0.1, 0.2),
    "EJR simple": (0.001, 0.01, 0.03, 0.1),
    "EJR efficient": (0.1, 0.3, 1.0, 2.0),
}


@dataclass(frozen=True)
class Contest:
    """One data set: how much of it, on which network, for how long, at which rates."""

    data: str
    model: ModelSettings
    num: int
    num_test: int
    epochs: int
    rates: tuple[float, float, float]
    num_seeds: int

    def settings(self, method: str, strength: float, rate: float, seed: int) -> Settings:
        simple = method == "EJR simple"
        kind = {"SAM": "sam", "EJR efficient": "ejr"}.get(method, "plain")
        return Settings(
            DataSettings(self.data, num=self.num, num_test=self.num_test, standardise="channelwise"),
            self.model,
            ObjectiveSettings(penalty="mean-jacobian" if simple else "none", coefficient=strength if simple else 0.0),
            MethodSettings(
                kind,
                learning_rate=rate,
                momentum=0.9,
                rho=strength if kind != "plain" else None,
                schedule="cosine",
            ),
            LoopSettings(epochs=self.epochs, batch_size=64, seed=seed),
        )


CONTESTS = {
    "digits": Contest("digits", ModelSettings("fcn3-mnist", width=64), 500, 360, 40, (0.003, 0.03, 0.1), 5),
    "fashion-mnist": Contest(
        "fashion-mnist", ModelSettings("simple-cnn", width=8), 2000, 2000, 15, (0.01, 0.03, 0.1), 3
    ),
}


def accuracy(settings: Settings, data: tuple[Tensor, Tensor] | None = None) -> float:
    """Of a training run from start to end; 0 where it diverges, which is what it is worth."""
    parts = assemble(settings)
    try:
        for _ in parts.training.run(parts.num_steps):
            pass
    except FloatingPointError:
        return 0.0
    found = evaluate(parts.training.model, data or parts.test.tensors, parts.loss).accuracy
    assert found is not None
    return found


def chosen_strength(contest: Contest, method: str) -> float:
    """The best on the training samples behind those that are trained on."""
    if len(STRENGTHS[method]) == 1:
        return STRENGTHS[method][0]
    whole = load_data(contest.data, num=contest.num + 500, standardise="channelwise")
    held_out = tuple(part[contest.num :] for part in whole.tensors)
    found = {
        s: accuracy(contest.settings(method, s, contest.rates[1], TUNING_SEED), held_out) for s in STRENGTHS[method]
    }
    print(f"{method}: {found}", flush=True)
    return max(found, key=lambda strength: found[strength])


def row(contest: Contest, method: str) -> str:
    """One line of the table."""
    strength = chosen_strength(contest, method)
    cells = []
    for rate in contest.rates:
        runs = [100 * accuracy(contest.settings(method, strength, rate, seed)) for seed in range(contest.num_seeds)]
        cells.append(f"{fmean(runs):.2f} ± {stdev(runs):.2f}")
    name = {"SGD": "", "EJR simple": f"λ = {strength:g}"}.get(method, f"ρ = {strength:g}")
    return f"| {method} | {name} | " + " | ".join(cells) + " |"


def page(contest: Contest, rows: list[str]) -> str:
    """The table and what was run."""
    rates = [f"lr {rate:g}" for rate in contest.rates]
    told = (
        f"{contest.data}: {contest.num} training and {contest.num_test} test samples, {contest.model.model} of width "
        f"{contest.model.width}, {contest.epochs} epochs of batches of 64, cosine schedule, momentum 0.9, no weight "
        f"decay, inputs standardised; test accuracy in %, mean ± standard deviation over {contest.num_seeds} seeds; "
        f"torch {torch.__version__}."
    )
    head = ["| method | strength | " + " | ".join(rates) + " |", "|---|---|" + "---|" * len(rates)]
    return "\n".join([told, "", *head, *rows, ""])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.methods", description=__doc__)
    parser.add_argument("contest", choices=CONTESTS)
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"))
    options = parser.parse_args()
    contest, rows = CONTESTS[options.contest], []
    for method in STRENGTHS:
        rows.append(row(contest, method))
        print(rows[-1], flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / f"methods-{contest.data}.md").write_text(page(contest, rows))


if __name__ == "__main__":
    main()
