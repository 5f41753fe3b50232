"""From the options of `measure` to the Problem that is measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from spherometer.commands.errors import describe
from spherometer.commands.output import note
from spherometer.metrics.registry import parse
from spherometer.operators import DerivativeError
from spherometer.problems import HalfSquaredError, Problem
from spherometer.zoo import Dataset, build_model, load_data, load_weights

if TYPE_CHECKING:
    from spherometer.commands.measure import Measure

LOSSES: dict[str, Callable[[], nn.Module]] = {
    "cross-entropy": nn.CrossEntropyLoss,
    "half-squared-error": HalfSquaredError,
    "mse": nn.MSELoss,
}
MANY = 20_000  # samples, from where on a measurement takes minutes


def checked_metrics(text: str) -> list[str]:
    """The names of a comma-separated list, refused before anything is computed."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise ValueError("--metrics: expected at least one name, got none: `spherometer metrics` lists them")
    for name in names:
        parse(name)
    return names


def make_problem(options: Measure) -> tuple[Problem, dict[str, Any]]:
    """The problem, and where its parts came from in words."""
    rule = None if options.standardise == "none" else options.standardise
    dataset = load_data(
        options.data, root=options.data_root, train=options.split == "train", num=options.num, standardise=rule
    )
    model = build_model(
        options.model, num_classes=dataset.num_classes, input_shape=dataset.input_shape, seed=options.seed
    )
    if options.weights is not None:
        load_weights(model, options.weights)
    if len(dataset) > MANY and options.num is None:
        note(f"{len(dataset):,} samples: this may take minutes; --num 1000 measures on the first 1,000")
    problem = _tried(options, model, dataset)
    weights = None if options.weights is None else options.weights.name
    return problem, {"model": options.model, "weights": weights, "data": repr(dataset)[len("Dataset(") : -1]}


def _tried(options: Measure, model: nn.Module, dataset: Dataset) -> Problem:
    """A Problem tries the model on a few samples; whatever goes wrong there is said in one line."""
    name = options.loss
    if name == "auto":
        name = "half-squared-error" if dataset.is_regression else "cross-entropy"
    try:
        return Problem(
            model,
            LOSSES[name](),
            _batches(dataset.inputs, _targets(dataset, name), options.batch_size),
            batchnorm=options.batchnorm,  # type: ignore[arg-type]
            parameters=options.parameters,
            dtype=getattr(torch, options.dtype),
            memory=options.memory,
        )
    except (ValueError, FloatingPointError, DerivativeError):
        raise
    except Exception as error:  # the model may be anybody's
        raise ValueError(
            f"{options.model} cannot be used with {name} on {dataset.name}, inputs of shape {dataset.input_shape}: "
            f"{describe(error)}"
        ) from error


def _targets(dataset: Dataset, loss: str) -> Tensor:
    """Classes as one-hot vectors where the loss compares vectors."""
    if loss == "mse" and not dataset.is_regression:
        return one_hot(dataset.targets, dataset.num_classes).float()
    if loss == "cross-entropy" and dataset.is_regression:
        raise ValueError(f"{dataset.name}: cross-entropy needs classes, got values: use --loss half-squared-error")
    return dataset.targets


def _batches(inputs: Tensor, targets: Tensor, size: int | None) -> Any:
    if size is None:
        return inputs, targets
    return list(zip(inputs.split(size), targets.split(size), strict=True))
