"""What settings of a training may not say, each refused in one line."""

from __future__ import annotations

from itertools import chain
from math import isfinite

from spherometer.estimators.accuracy import check_rtol
from spherometer.metrics.registry import parse
from spherometer.training.settings import BASES, DEFENCES, LARGEST, LOSSES, METHODS, PENALTIES, SCHEDULES, Settings
from spherometer.zoo.names import suggest


def check(settings: Settings) -> None:
    """Raise a ValueError about the first thing that cannot be."""
    for look in (_check_names, _check_counts, _check_numbers, _check_company, _check_measurement):
        look(settings)


def _check_names(settings: Settings) -> None:
    objective, method = settings.objective, settings.method
    for name, given, known in (
        ("loss", objective.loss, LOSSES),
        ("penalty", objective.penalty, PENALTIES),
        ("defence", objective.defence, DEFENCES),
        ("norm", objective.norm, ("linf", "l2")),
        ("attack_batchnorm", objective.attack_batchnorm, ("train", "eval")),
        ("marked", objective.marked, ("clean", "adversarial")),
        ("mixup_per", settings.loop.mixup_per, ("batch", "sample")),
        ("method", method.method, METHODS),
        ("base", method.base, BASES),
        ("schedule", method.schedule, SCHEDULES),
        ("standardise", settings.data.standardise, ("none", "componentwise", "channelwise", "imagenet", "cifar")),
    ):
        if given is not None and given not in known:
            raise ValueError(f"no {name} is called {given!r}; {suggest(given, known)}")


def _check_counts(settings: Settings) -> None:
    measurement = settings.measurement
    least_one = {
        **{name: getattr(settings.data, name) for name in ("num", "num_test")},
        **{name: getattr(measurement, name) for name in ("track_every", "track_num", "measure_num", "trajectory")},
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
    for name, count in (
        ("seed", settings.loop.seed),
        ("padding", settings.loop.padding),
        ("spectrum", measurement.spectrum),
        ("batch_spectrum", measurement.batch_spectrum),
        ("autoattack", measurement.autoattack),
    ):
        if count < 0:
            raise ValueError(f"{name}: expected a whole number of at least 0, got {count}")
    if settings.loop.seed > LARGEST:
        raise ValueError(f"seed: expected a whole number of at most {LARGEST}, got {settings.loop.seed}")


def _check_numbers(settings: Settings) -> None:
    objective, method, loop = settings.objective, settings.method, settings.loop
    positive = {
        "input_scale": settings.data.input_scale,
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
        "eta": method.eta,
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
    for name, value in (positive | least_zero | shares).items():
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
    data, objective, method, loop = settings.data, settings.objective, settings.method, settings.loop
    defended = objective.defence != "none"
    one_jacobian = objective.squared is not None or objective.scaled is not None
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
        (objective.penalty == "none" and objective.coefficient is not None, "a coefficient needs a penalty"),
        (not defended and objective.radius is not None, "a radius needs a defence: at or trades"),
        (objective.penalty != "input-jacobian" and one_jacobian, "squared and scaled are for penalty input-jacobian"),
        (not defended and objective.attack_batchnorm is not None, "attack_batchnorm needs a defence: at or trades"),
        (objective.defence != "trades" and objective.beta is not None, "beta is for defence trades"),
        (
            objective.marked is not None and (objective.defence != "trades" or method.method not in ("ejr", "ejr-v2")),
            "marked is for defence trades with method ejr or ejr-v2",
        ),
        (loop.mixup is None and loop.mixup_per is not None, "mixup_per needs mixup"),
        (data.balanced and data.num is None and data.num_test is None, "balanced needs num or num_test"),
        (method.method != "asam" and method.eta is not None, "eta is for method asam"),
        (method.method != "ejr-v2" and method.mu is not None, "mu is for method ejr-v2"),
        (method.schedule != "steps" and method.factor is not None, "a factor is for schedule steps"),
        (
            settings.measurement.autoattack > 0 and not defended,
            "autoattack judges a defended model: choose a defence or leave it out",
        ),
        (loop.stop_accuracy is not None and loop.stop_loss is not None, "expected one stop rule, got two"),
        (
            method.base in ("adam", "adamw") and method.momentum > 0,
            f"{method.base} has no momentum of its own: leave it out",
        ),
    ):
        if wrong:
            raise ValueError(words)


def _check_measurement(settings: Settings) -> None:
    wanted = settings.measurement
    asked = (wanted.track, wanted.track_batch_statistics, wanted.track_example, wanted.measure)
    for name in (*chain(*asked), *wanted.measure_batch_statistics):
        _, options = parse(name)
        if "rtol" in options:
            check_rtol(options["rtol"])
    ends = wanted.track_within
    if len(ends) % 2 or list(ends) != sorted(ends):
        raise ValueError(f"track_within: expected pairs of rising steps, got {' '.join(map(str, ends))}")
