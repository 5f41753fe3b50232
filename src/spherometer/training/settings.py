"""A training in words and numbers: what a configuration file or the command line says, checked before anything runs."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from math import isfinite
from pathlib import Path
from typing import Any

from spherometer.zoo.names import suggest

LOSSES = ("auto", "cross-entropy", "half-squared-error")
PENALTIES = ("none", "mean-jacobian", "input-jacobian", "gradient-norm", "fisher")
DEFENCES = ("none", "at", "trades")
METHODS = ("plain", "sam", "asam", "ejr", "ejr-v2")
BASES = ("sgd", "adam", "adamw")
SCHEDULES = ("constant", "cosine", "flat-then-linear", "steps")
RADII = {"sam": 0.05, "asam": 0.5, "ejr": 2.0, "ejr-v2": 2.0}  # of paper C, Table 3, for CIFAR-10


@dataclass(frozen=True)
class DataSettings:
    """What is learned."""

    data: str = "digits"
    """name of a data set, or the path of its files"""
    data_root: Path | None = None
    """where the files of a named data set are"""
    num: int | None = None
    """the first so many training samples"""
    num_test: int | None = None
    """the first so many test samples"""
    standardise: str = "none"
    """none, componentwise, channelwise (L35), imagenet or cifar; inside the model where it is attacked"""
    input_scale: float = 1.0
    """factor of the standardised inputs (L31)"""


@dataclass(frozen=True)
class ModelSettings:
    """What learns."""

    model: str = "digits-mlp"
    """name of the zoo, or package.module:function"""
    width: int | None = None
    """where another than the usual one is wanted"""
    depth: int | None = None
    """where another than the usual one is wanted"""
    batchnorm: bool | None = None
    """with or without, where the model leaves it open"""
    activation: str | None = None
    """relu, tanh, ..."""


@dataclass(frozen=True)
class ObjectiveSettings:
    """What is to become small."""

    loss: str = "auto"
    """auto, cross-entropy or half-squared-error; auto: by the kind of targets"""
    label_smoothing: float = 0.0
    """degree α, the labels' entropy subtracted (L13)"""
    penalty: str = "none"
    """none, mean-jacobian (simple EJR, L8), input-jacobian (L16), gradient-norm or fisher (L18)"""
    coefficient: float = 0.01
    """of the penalty"""
    defence: str = "none"
    """none, at (L19) or trades (L20)"""
    radius: float = 8 / 255
    """of the adversary's ball, on inputs in [0, 1]"""
    norm: str = "linf"
    """linf or l2"""
    attack_steps: int = 10
    """of the adversary, for each batch"""
    attack_step_size: float | None = None
    """2.5 radius/steps where none is given"""
    beta: float = 6.0
    """of trades"""


@dataclass(frozen=True)
class MethodSettings:
    """How it becomes small."""

    method: str = "plain"
    """plain, sam, asam, ejr (L9) or ejr-v2 (L10)"""
    base: str = "sgd"
    """sgd, adam or adamw"""
    learning_rate: float = 0.1
    """at the start"""
    momentum: float = 0.0
    """of sgd"""
    weight_decay: float = 0.0
    """never part of a measured loss"""
    rho: float | None = None
    """radius of the two-pass methods; paper C's where none is given"""
    mu: float = 0.03
    """of ejr-v2"""
    schedule: str = "constant"
    """constant, cosine (L29), flat-then-linear (L27), or steps (L28)"""
    milestones: tuple[int, ...] = ()
    """epochs at which steps lower the rate"""
    factor: float = 0.1
    """by which steps lower the rate"""
    average_from: int | None = None
    """average the weights from this epoch on (L26) and evaluate the average"""


@dataclass(frozen=True)
class LoopSettings:
    """How long, and in what pieces."""

    epochs: int | None = None
    """passes over the data"""
    steps: int | None = None
    """updates, where no epochs are given"""
    batch_size: int | None = None
    """samples in a step; all where none is given: gradient descent"""
    ghost_size: int | None = None
    """samples that are computed at a time; gradients are averaged (L23)"""
    augment: float = 0.0
    """probability of crop and flip per sample (L15)"""
    padding: int = 4
    """of the crop"""
    mixup: float | None = None
    """β; 0 is a valid one (L14)"""
    stop_accuracy: float | None = None
    """stop at this training accuracy (L34)"""
    stop_loss: float | None = None
    """stop when the mean of the last ten training losses is below (L34)"""
    stop_every: int = 100
    """steps between two looks of a stop rule"""
    evaluate_every: int | None = None
    """steps between two rows; where none is given an epoch, or a hundredth of the run if that is more"""
    checkpoint_every: int | None = None
    """steps between two checkpoints; as rows where none is given"""
    seed: int = 0
    """of weights, batches, and everything else that is random"""


@dataclass(frozen=True)
class Settings:
    """All of it: five tables of a TOML file, or options of one flat list; names are unique across the tables."""

    data: DataSettings = field(default_factory=DataSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    objective: ObjectiveSettings = field(default_factory=ObjectiveSettings)
    method: MethodSettings = field(default_factory=MethodSettings)
    loop: LoopSettings = field(default_factory=LoopSettings)

    def checked(self) -> Settings:
        """Itself, or a ValueError of one line about the first thing that cannot be."""
        for check in (_check_names, _check_counts, _check_numbers, _check_company):
            check(self)
        return self

    def plain(self) -> dict[str, Any]:
        """Nested dictionaries for a manifest; where the data lie is not part of what decides the numbers."""
        told = asdict(self)
        told["data"].pop("data_root")
        return told

    @property
    def rho(self) -> float:
        """The radius that is used."""
        chosen = self.method.rho
        return RADII.get(self.method.method, 0.0) if chosen is None else chosen


def names_by_table() -> dict[str, list[str]]:
    """`{"data": ["data", "num", ...], ...}`: what a configuration file may say."""
    usual = Settings()
    return {table.name: [entry.name for entry in fields(getattr(usual, table.name))] for table in fields(usual)}


def _check_names(settings: Settings) -> None:
    objective, method = settings.objective, settings.method
    for name, given, known in (
        ("loss", objective.loss, LOSSES),
        ("penalty", objective.penalty, PENALTIES),
        ("defence", objective.defence, DEFENCES),
        ("norm", objective.norm, ("linf", "l2")),
        ("method", method.method, METHODS),
        ("base", method.base, BASES),
        ("schedule", method.schedule, SCHEDULES),
        ("standardise", settings.data.standardise, ("none", "componentwise", "channelwise", "imagenet", "cifar")),
    ):
        if given not in known:
            raise ValueError(f"no {name} is called {given!r}; {suggest(given, known)}")


def _check_counts(settings: Settings) -> None:
    least_one = {
        **{name: getattr(settings.data, name) for name in ("num", "num_test")},
        **{name: getattr(settings.model, name) for name in ("width", "depth")},
        "attack_steps": settings.objective.attack_steps,
        **{
            name: getattr(settings.loop, name)
            for name in ("epochs steps batch_size ghost_size stop_every evaluate_every checkpoint_every").split()
        },
    }
    for name, count in least_one.items():
        if count is not None and count < 1:
            raise ValueError(f"{name}: expected a whole number of at least 1, got {count}")
    for name, count in (("seed", settings.loop.seed), ("padding", settings.loop.padding)):
        if count < 0:
            raise ValueError(f"{name}: expected a whole number of at least 0, got {count}")


def _check_numbers(settings: Settings) -> None:
    objective, method, loop = settings.objective, settings.method, settings.loop
    positive = {
        "learning_rate": method.learning_rate,
        "factor": method.factor,
        "attack_step_size": objective.attack_step_size,
        "stop_loss": loop.stop_loss,
    }
    least_zero = {
        "momentum": method.momentum,
        "weight_decay": method.weight_decay,
        "rho": method.rho,
        "mu": method.mu,
        "coefficient": objective.coefficient,
        "radius": objective.radius,
        "beta": objective.beta,
        "mixup": loop.mixup,
        "average_from": method.average_from,
    }
    shares = {
        "label_smoothing": objective.label_smoothing,
        "augment": loop.augment,
        "stop_accuracy": loop.stop_accuracy,
    }
    finite = {"input_scale": settings.data.input_scale}
    for name, value in (positive | least_zero | shares | finite).items():
        if value is not None and not isfinite(value):
            raise ValueError(f"{name}: expected a finite number, got {value}")
    for name, value in positive.items():
        if value is not None and value <= 0:
            raise ValueError(f"{name}: expected a positive number, got {value:g}")
    for name, value in (least_zero | shares).items():
        if value is not None and value < 0:
            raise ValueError(f"{name}: expected a number of at least 0, got {value:g}")
    for name, value in (shares | {"momentum": method.momentum}).items():
        if value is not None and value > 1:
            raise ValueError(f"{name}: expected a number of at most 1, got {value:g}")


def _check_company(settings: Settings) -> None:
    """Things that do not go together."""
    objective, method, loop = settings.objective, settings.method, settings.loop
    defended = objective.defence != "none"
    for wrong, words in (
        (loop.epochs is None and loop.steps is None, "expected epochs or steps, got neither"),
        (loop.epochs is not None and loop.steps is not None, "expected epochs or steps, got both"),
        (defended and objective.penalty != "none", "a defence and a penalty cannot be combined: choose one"),
        (defended and loop.mixup is not None, "an adversary needs class numbers, which mixup takes away: choose one"),
        (defended and objective.loss == "half-squared-error", "a defence needs cross-entropy"),
        (objective.label_smoothing > 0 and objective.loss == "half-squared-error", "smoothing needs cross-entropy"),
        (method.schedule == "steps" and not method.milestones, "schedule steps needs milestones, got none"),
        (method.schedule != "steps" and bool(method.milestones), "milestones are for schedule steps: leave them out"),
        (
            method.method == "plain" and method.rho is not None,
            "plain steps have no rho: choose a method or leave it out",
        ),
        (loop.stop_accuracy is not None and loop.stop_loss is not None, "expected one stop rule, got two"),
        (method.base != "sgd" and method.momentum > 0, f"{method.base} has no momentum of its own: leave it out"),
    ):
        if wrong:
            raise ValueError(words)
