"""Paper C, Tables 3 and 4: its settings beside those that our recipes build at paper scale (C-T3, C-T4)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from spherometer.figures.panels import Panel, Panels, Series
from spherometer.recipes.claims import Inequality
from spherometer.recipes.papers.c_explicit import wide_rows
from spherometer.recipes.papers.c_methods import simple_run
from spherometer.recipes.papers.c_robust import defended_run
from spherometer.recipes.recipe import Experiment, Scale, Table, find_recipe, recipe
from spherometer.recipes.results import Results, Run
from spherometer.training.settings import Settings

Entry = tuple[str, Any, Any]  # what, the paper's, ours


def table_three() -> list[Entry]:
    """Radii and lengths of the methods by data set, as C-T1's runs have them."""
    runs = wide_rows("paper")

    def ours(method: str, data: str, model: str = "wrn-28-10") -> Settings:
        labels = {"method": method, "data": data, "model": model, "seed": 0}
        return _settings(next(run for run in runs if labels.items() <= run.labels.items()))

    printed = {"SAM": (0.05, 0.1), "ASAM": (0.5, 1.0), "EJR": (2.0, 4.0)}
    entries: list[Entry] = [
        (f"ρ of {method}, {data}", value, ours(method, data).rho)
        for method, values in printed.items()
        for data, value in zip(("cifar10", "cifar100"), values, strict=True)
    ]
    narrow = ours("EJR", "cifar10", "wrn-28-2")
    return [
        *entries,
        ("η of ASAM", 0.01, _asam_eta()),
        ("batch size, WRN-28-2", 256, narrow.loop.batch_size),
        ("batch size, WRN-28-10", 128, ours("EJR", "cifar10").loop.batch_size),
        ("epochs, WRN-28-2", 1600, narrow.loop.epochs),
        ("epochs, WRN-28-10", 200, ours("EJR", "cifar10").loop.epochs),
        ("epochs of SGD, WRN-28-10", 400, ours("SGD", "cifar10").loop.epochs),
        ("λ_reg of simple EJR, B = 128", 0.01, _planned("C-T1", method="EJR", whole=False).usual("coefficient")),
        ("λ_reg of simple EJR, full batch", 0.001, _planned("C-T1", method="EJR", whole=True).usual("coefficient")),
    ]


def _asam_eta() -> float:
    from inspect import signature

    from spherometer.training.optim import ASAM

    return float(signature(ASAM.__init__).parameters["eta"].default)


def _planned(name: str, **labels: Any) -> Settings:
    """The settings of a run that a recipe plans at paper scale."""
    runs = find_recipe(name).at("paper").runs
    return _settings(next(run for run in runs if labels.items() <= run.labels.items()))


def table_four() -> list[Entry]:
    """Augmentation, smoothing, length, schedule, momentum and decay of Settings 1-4."""
    first = _settings(simple_run("paper", 0.03, "SGD", 0))
    second, third = (_planned(name, method="EJR") for name in ("C-F6", "C-F29"))
    fourth = _settings(defended_run("paper", "preact-resnet18", ("at", None, None), 0))
    fifth = _settings(defended_run("paper", "wrn-34-10", ("at", None, None), 0))
    printed: dict[str, tuple[Any, ...]] = {
        "augmentation": (0.0, 1.0, 1.0, 1.0),
        "label smoothing": (0.0, 0.1, 0.1, 0.0),
        "schedule": ("constant", "steps", "cosine", "steps"),
        "momentum": (0.0, 0.9, 0.9, 0.9),
        "weight decay": (0.0, 5e-4, 5e-4, 5e-4),
    }
    read: dict[str, Callable[[Settings], Any]] = {
        "augmentation": lambda found: found.loop.augment,
        "label smoothing": lambda found: found.objective.label_smoothing,
        "schedule": lambda found: found.method.schedule,
        "momentum": lambda found: found.method.momentum,
        "weight decay": lambda found: found.method.weight_decay,
    }
    entries: list[Entry] = [
        (f"Setting {number}: {what}", value, read[what](found))
        for what, values in printed.items()
        for number, (value, found) in enumerate(zip(values, (first, second, third, fourth), strict=True), start=1)
    ]
    return [
        *entries,
        ("Setting 1: most steps", 100_000, first.loop.steps),
        ("Setting 2: epochs", 400, second.loop.epochs),
        ("Setting 2: decays at epochs (30, 60, 80 %)", (120, 240, 320), second.method.milestones),
        ("Setting 2: decay by", 0.2, second.usual("factor")),
        ("Setting 3: epochs", 200, third.loop.epochs),
        ("Setting 4: epochs", (110, 120), (fourth.loop.epochs, fifth.loop.epochs)),
        ("Setting 4: decays at epochs", ((100, 105), (100, 110)), (fourth.method.milestones, fifth.method.milestones)),
        ("Setting 4: decay by", 0.1, fourth.usual("factor")),
    ]


def _settings(run: Run) -> Settings:
    tables: Mapping[str, Any] = run.job.settings
    return Settings.of(tables)


def _experiment(entries: list[Entry], source: str, departures: list[str]) -> Experiment:
    def figure(_: Results) -> Panels:
        numbers = [(what, value, ours) for what, value, ours in entries if isinstance(value, int | float) and value > 0]
        places = range(len(numbers))
        panel = Panel(
            "settings",
            "",
            "value",
            [
                Series("paper", places, [float(value) for _, value, _ in numbers], style="bars"),
                Series("ours", places, [float(ours) for _, _, ours in numbers], style="markers"),
            ],
            log_y=True,
            x_names=[what for what, _, _ in numbers],
        )
        return Panels([panel], columns=1, caption="Numbers of the table; words and lists are in the table only.")

    return Experiment(
        runs=[],
        claims=[
            Inequality(
                "every setting of the table is the one our recipes use at paper scale",
                lambda _: [0.0 if value == ours else -1.0 for _, value, ours in entries],
                source=source,
            )
        ],
        figure=figure,
        departures=departures,
        table=lambda _: Table(
            ["setting", "paper", "ours"], [[what, str(value), str(ours)] for what, value, ours in entries]
        ),
    )


@recipe("C-T3", "strengths of the methods, as in the paper", finding="SAM, ASAM and EJR by data set", minutes=0)
def strengths(_: Scale) -> Experiment:
    """Radii, batches and epochs of C Table 3 beside what C-T1 builds; nothing is trained."""
    return _experiment(table_three(), "C-T3", ["the same at every scale: nothing is trained"])


@recipe("C-T4", "the four settings, as in the paper", finding="augmentation, smoothing, length, schedule", minutes=0)
def settings(_: Scale) -> Experiment:
    """Settings 1-4 of C Table 4 beside what our recipes build; nothing is trained."""
    return _experiment(
        table_four(),
        "C-T4",
        [
            "the same at every scale: nothing is trained",
            "no norm and ReLU are properties of the networks, tested there",
        ],
    )
