"""Inputs with zero mean and unit spread, in the two ways the papers mix up (L35), and input scaling (L31)."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

import torch
from torch import Tensor

from spherometer.zoo.datasets.dataset import DataError, Dataset
from spherometer.zoo.names import suggest

LARGEST_COPY = 2**24  # entries; above this the moments are summed in pieces
PRESETS = {
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "cifar": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
}


@dataclass(frozen=True, eq=False)
class Standardisation:
    """x -> (x - mean) / std, `mean` and `std` broadcast over samples: made once, applied to training and test alike."""

    mean: Tensor
    std: Tensor
    name: str = "given mean and std"

    def __post_init__(self) -> None:
        if not bool(torch.isfinite(self.mean).all() and torch.isfinite(self.std).all() and (self.std > 0).all()):
            raise DataError(f"{self.name}: expected finite means and positive standard deviations")

    def __call__(self, dataset: Dataset) -> Dataset:
        """The data set with standardised inputs."""
        try:
            inputs = (dataset.inputs - self.mean) / self.std
        except RuntimeError:
            inputs = None
        if inputs is None or inputs.shape != dataset.inputs.shape:
            shapes = f"{tuple(self.mean.shape)} do not fit inputs of shape {dataset.input_shape}"
            raise DataError(f"{self.name}: statistics of shape {shapes}")
        return dataset.with_inputs(inputs, f"standardised: {self.name}")


def componentwise(dataset: Dataset) -> Standardisation:
    """Each pixel on its own: mean and spread over samples (A B.1, C.2).  A constant pixel is only centred."""
    return _measured(dataset, (0,), "componentwise")


def channelwise(dataset: Dataset) -> Standardisation:
    """Each channel on its own: mean and spread over samples and pixels (A B.2, C.1)."""
    if dataset.inputs.ndim < 3:
        raise DataError(f"{dataset.name}: channelwise needs (channels, height, width), got {dataset.input_shape}")
    return _measured(dataset, (0, *range(2, dataset.inputs.ndim)), "channelwise")


def given(mean: tuple[float, ...], std: tuple[float, ...], *, name: str = "given mean and std") -> Standardisation:
    """Means and standard deviations of the channels, as other code bases print them."""
    if len(mean) != len(std) or not mean:
        raise DataError(f"{name}: expected one mean and one std per channel, got {len(mean)} and {len(std)}")
    return Standardisation(torch.tensor(mean).view(-1, 1, 1), torch.tensor(std).view(-1, 1, 1), name)


def statistics_of(dataset: Dataset, rule: str) -> Standardisation:
    """The standardisation called `rule`; the data-dependent two take their statistics from `dataset`."""
    if rule == "componentwise":
        return componentwise(dataset)
    if rule == "channelwise":
        return channelwise(dataset)
    if rule not in PRESETS:
        raise DataError(
            f"no standardisation called {rule!r}; {suggest(rule, ['componentwise', 'channelwise', *PRESETS])}"
        )
    return given(*PRESETS[rule], name=rule)


def scale_inputs(dataset: Dataset, factor: float) -> Dataset:
    """Inputs times `factor`, e.g. 0.5, 1, 1.5 (L31)."""
    if not isfinite(factor):
        raise DataError(f"expected a finite factor, got {factor}")
    return dataset.with_inputs(dataset.inputs * factor, f"inputs times {factor:g}")


def rescale_inputs(dataset: Dataset, low: float, high: float) -> Dataset:
    """Inputs of [0, 1] moved to [low, high]."""
    if not (isfinite(low) and isfinite(high) and low < high):
        raise DataError(f"expected finite low < high, got {low} and {high}")
    return dataset.with_inputs(low + (high - low) * dataset.inputs, f"inputs in [{low:g}, {high:g}]")


def _measured(dataset: Dataset, dimensions: tuple[int, ...], name: str) -> Standardisation:
    # In float64: a float32 sum over 50,000 images of 1,024 pixels loses digits.
    exact = dataset.inputs.double() if dataset.inputs.numel() < LARGEST_COPY else None
    if exact is not None:
        mean, variance = exact.mean(dimensions), exact.var(dimensions, correction=0)
    else:
        mean, variance = _streamed_moments(dataset.inputs, dimensions)
    spread = variance.sqrt()
    spread = torch.where(spread > 1e-7, spread, torch.ones_like(spread))
    view = (-1, *[1] * (dataset.inputs.ndim - 2)) if len(dimensions) > 1 else tuple(dataset.inputs.shape[1:])
    return Standardisation(mean.float().view(view), spread.float().view(view), name)


def _streamed_moments(inputs: Tensor, dimensions: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Mean and variance in float64 without a float64 copy of everything."""
    count = inputs.numel() / (inputs.shape[1] if len(dimensions) > 1 else inputs[0].numel())
    chunks = inputs.split(1000)
    mean = sum((chunk.double().sum(dimensions) for chunk in chunks), torch.zeros(())) / count
    view = mean.view(-1, *[1] * (inputs.ndim - 2)) if len(dimensions) > 1 else mean
    squares = sum(((chunk.double() - view).square().sum(dimensions) for chunk in chunks), torch.zeros(()))
    return mean, squares / count
