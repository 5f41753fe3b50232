"""From settings to a training: every part by its name."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Generator, nn
from torch.optim import Optimizer

from spherometer.estimators.randomness import child_stream
from spherometer.problems import HalfSquaredError
from spherometer.training.adversaries import PGD, AdversarialTraining, Trades
from spherometer.training.averaging import IterateAverage
from spherometer.training.loop import Training, Transform
from spherometer.training.losses import SmoothedCrossEntropy
from spherometer.training.objectives import Loss, Objective, Penalised, Plain
from spherometer.training.optim import ASAM, EJR, SAM, EJRv2
from spherometer.training.penalties import (
    FisherPenalty,
    GradientNormPenalty,
    InputJacobianPenalty,
    MeanJacobianPenalty,
    Penalty,
)
from spherometer.training.schedules import Schedule, constant, cosine, flat_then_linear, multi_step
from spherometer.training.settings import DataSettings, Settings
from spherometer.training.stopping import AccuracyReached, LossBelow, StopRule
from spherometer.training.transforms import CropAndFlip, Mixup
from spherometer.zoo import (
    Dataset,
    Linearised,
    Standardised,
    balanced,
    build_model,
    first,
    load_data,
    scale_inputs,
    select_classes,
)
from spherometer.zoo.datasets.standardisation import Standardisation, statistics_of


@dataclass(frozen=True, eq=False)
class Assembly:
    """A training ready to run, and what judges it."""

    settings: Settings
    training: Training
    loss: Loss
    train: Dataset
    test: Dataset
    num_steps: int


def assemble(settings: Settings) -> Assembly:
    """Read the data, build the model, put the parts together; everything random comes from the seed.

    Example:
        >>> settings = Settings(method=MethodSettings(method="sam"), loop=LoopSettings(epochs=5, batch_size=64))
        >>> for step in assemble(settings).training.run(100):
        ...     step.loss
    """
    settings.checked()
    train, test, model = _data_and_model(settings)
    loss, stream = _loss(settings, train), child_stream(settings.loop.seed, "objective")
    objective = _objective(settings, loss, stream)
    options = settings.loop
    average = settings.method.average_from
    training = Training(
        model,
        _optimizer(settings, model),
        train.tensors,
        objective,
        options.batch_size,
        options.ghost_size,
        _transforms(settings, train),
        average=None if average is None else IterateAverage(model, start=average),
        stop=_stop(settings, loss),
        generators=[stream],
        seed=options.seed,
    )
    num_steps = options.steps if options.epochs is None else options.epochs * training.steps_per_epoch
    assert num_steps is not None
    _refuse_empty_average(average, num_steps // training.steps_per_epoch)
    training.schedule = _schedule(settings, -(-num_steps // training.steps_per_epoch))
    return Assembly(settings, training, loss, train, test, num_steps)


def _refuse_empty_average(start: int | None, num_epochs: int) -> None:
    if start is not None and start >= num_epochs:
        raise ValueError(
            f"average_from: epoch {start} never ends in a run of {num_epochs} whole epochs, counted from 0: nothing "
            "would be averaged; begin earlier or train longer"
        )


def _data_and_model(settings: Settings) -> tuple[Dataset, Dataset, nn.Module]:
    wanted, shape = settings.data, settings.model
    load = partial(_load, wanted)
    train, test = load(train=True, num=wanted.num), load(train=False, num=wanted.num_test)
    model = build_model(
        shape.model,
        num_classes=train.num_classes,
        input_shape=train.input_shape,
        seed=settings.loop.seed,
        width=shape.width,
        depth=shape.depth,
        batchnorm=shape.batchnorm,
        activation=shape.activation,
    )
    if shape.linearised:
        model = Linearised(model)
    rule = None
    if wanted.standardise != "none":
        whole = train if wanted.num is None else load(train=True, num=None)
        rule = statistics_of(whole, wanted.standardise)
    if settings.objective.defence != "none":
        return train, test, _with_inputs_as_they_are(model, rule, wanted.input_scale)
    if rule is not None:
        train, test = rule(train), rule(test)
    if wanted.input_scale != 1:
        train, test = (scale_inputs(part, wanted.input_scale) for part in (train, test))
    return train, test, model


def _with_inputs_as_they_are(model: nn.Module, rule: Standardisation | None, scale: float) -> nn.Module:
    """Standardisation and scaling inside the model: an adversary's ball is one of inputs in [0, 1]."""
    if rule is None and scale == 1:
        return model
    rule = rule or Standardisation(torch.zeros(()), torch.ones(()))
    return Standardised(model, replace(rule, std=rule.std / scale))


def _load(wanted: DataSettings, *, train: bool, num: int | None) -> Dataset:
    if not wanted.classes and not wanted.balanced:
        return load_data(wanted.data, root=wanted.data_root, train=train, num=num)
    chosen = load_data(wanted.data, root=wanted.data_root, train=train)
    if wanted.classes:
        chosen = select_classes(chosen, wanted.classes)
    if num is None:
        return chosen
    return balanced(chosen, num) if wanted.balanced else first(chosen, num)


def _loss(settings: Settings, train: Dataset) -> Loss:
    name, smoothing = settings.objective.loss, settings.objective.label_smoothing
    if name == "auto":
        name = "half-squared-error" if train.is_regression else "cross-entropy"
    if name == "half-squared-error":
        return HalfSquaredError()
    if train.is_regression:
        raise ValueError(f"{train.name}: cross-entropy needs classes, got values: use loss half-squared-error")
    return SmoothedCrossEntropy(smoothing) if smoothing else nn.CrossEntropyLoss()


def _objective(settings: Settings, loss: Loss, stream: Generator) -> Objective:
    wanted = settings.objective
    if wanted.defence != "none":
        inner = PGD(
            settings.usual("radius"),
            wanted.norm,  # type: ignore[arg-type]
            num_steps=wanted.attack_steps,
            step_size=wanted.attack_step_size,
        )
        mode: Any = wanted.attack_batchnorm
        if wanted.defence == "at":
            return AdversarialTraining(inner, stream, loss, mode or "train")
        marked: Any = wanted.marked or "adversarial"
        return Trades(inner, stream, settings.usual("beta"), loss, mode or "eval", marked)
    strength = settings.usual("coefficient")
    makers: dict[str, Any] = {
        "mean-jacobian": lambda: MeanJacobianPenalty(strength, generator=stream),
        "input-jacobian": lambda: InputJacobianPenalty(
            strength,
            generator=stream,
            squared=bool(settings.usual("squared")),
            scaled=bool(settings.usual("scaled")),
        ),
        "gradient-norm": lambda: GradientNormPenalty(strength, loss=loss),
        "fisher": lambda: FisherPenalty(strength, generator=stream),
    }
    penalties: list[Penalty] = [] if wanted.penalty == "none" else [makers[wanted.penalty]()]
    return Penalised(loss, penalties) if penalties else Plain(loss)


def _optimizer(settings: Settings, model: nn.Module) -> Optimizer:
    wanted = settings.method
    options: dict[str, Any] = {"lr": wanted.learning_rate, "weight_decay": wanted.weight_decay}
    if wanted.base in ("sgd", "rmsprop"):
        options["momentum"] = wanted.momentum
    bases: dict[str, Any] = {
        "sgd": torch.optim.SGD,
        "adam": torch.optim.Adam,
        "adamw": torch.optim.AdamW,
        "rmsprop": torch.optim.RMSprop,
    }
    base = bases[wanted.base]
    if wanted.method == "plain":
        plain: Optimizer = base(model.parameters(), **options)
        return plain
    kinds: dict[str, Any] = {
        "sam": SAM,
        "asam": partial(ASAM, eta=settings.usual("eta")),
        "ejr": partial(EJR, seed=settings.loop.seed),
        "ejr-v2": partial(EJRv2, seed=settings.loop.seed, mu=settings.usual("mu")),
    }
    made: Optimizer = kinds[wanted.method](model.parameters(), base, rho=settings.rho, model=model, **options)
    return made


def _schedule(settings: Settings, num_epochs: int) -> Schedule:
    wanted = settings.method
    if wanted.schedule == "cosine":
        return cosine(num_epochs)
    if wanted.schedule == "flat-then-linear":
        if wanted.average_from is not None:
            return flat_then_linear(max(1, wanted.average_from), final=0.5)
        return flat_then_linear(num_epochs)
    return multi_step(wanted.milestones, settings.usual("factor")) if wanted.schedule == "steps" else constant()


def _transforms(settings: Settings, train: Dataset) -> list[Transform]:
    wanted = settings.loop
    made: list[Transform] = [CropAndFlip(wanted.augment, wanted.padding)] if wanted.augment else []
    if wanted.mixup is not None:
        per: Any = wanted.mixup_per or "batch"
        made.append(Mixup(wanted.mixup, None if train.is_regression else train.num_classes, per))
    return made


def _stop(settings: Settings, loss: Loss) -> StopRule | None:
    wanted = settings.loop
    if wanted.stop_accuracy is not None:
        return AccuracyReached(wanted.stop_accuracy, wanted.stop_every)
    return None if wanted.stop_loss is None else LossBelow(wanted.stop_loss, loss, wanted.stop_every)
