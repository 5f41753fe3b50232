"""Data with known geometry: the δ-good families of A (Thm 4.2), clusters, and the 1-D points of A C.3."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import isfinite

import torch
from torch import Tensor

from spherometer.zoo.datasets.dataset import DataError, Dataset, add_remark

Map = Callable[[Tensor], Tensor]


def uniform_cube(
    num: int, dimension: int, *, seed: int = 0, target: Callable[[Tensor], Tensor] | None = None
) -> Dataset:
    """Points uniform in [0, 1]^d; `target` maps inputs (n, d) to values, by default the sum.  A Eq 6."""
    _check_sizes(num=num, dimension=dimension)
    return _regression(torch.rand(num, dimension, generator=_generator(seed)), target, f"cube-{dimension}", seed)


def uniform_sphere(num: int, dimension: int, *, seed: int = 0, target: Map | None = None) -> Dataset:
    """Points uniform on the unit sphere S^d of R^(d+1), so inputs have dimension + 1 columns.  A Eq 7."""
    _check_sizes(num=num, dimension=dimension)
    normal = torch.randn(num, dimension + 1, generator=_generator(seed), dtype=torch.float64)
    return _regression((normal / normal.norm(dim=1, keepdim=True)).float(), target, f"sphere-{dimension}", seed)


def pushforward(dataset: Dataset, transform: Map, *, lipschitz: float) -> Dataset:
    """The inputs sent through a map of known Lipschitz constant, which multiplies a covering radius.  A Thm 4.2.

    The constant is the caller's word; it is checked against neighbouring samples and refused when they disprove it.
    """
    if not (isfinite(lipschitz) and lipschitz >= 0):
        raise DataError(f"expected a finite Lipschitz constant, not negative, got {lipschitz}")
    inputs = transform(dataset.inputs)
    if len(inputs) != len(dataset) or not bool(torch.isfinite(inputs).all()):
        raise DataError(f"{dataset.name}: expected one finite output per input, got shape {tuple(inputs.shape)}")
    before = (dataset.inputs[1:] - dataset.inputs[:-1]).flatten(1).norm(dim=1)
    after = (inputs[1:] - inputs[:-1]).flatten(1).norm(dim=1)
    slack = lipschitz * before * (1 + 1e-4) + 1e-6
    if bool((after > slack).any()):
        seen = float((after / before.clamp(min=1e-30)).max())
        raise DataError(f"expected a map with Lipschitz constant {lipschitz:g}, got two samples with ratio {seen:.4g}")
    return replace(dataset, inputs=inputs, note=add_remark(dataset.note, f"pushed forward, Lipschitz {lipschitz:g}"))


def gaussian_clusters(
    num: int, dimension: int, num_classes: int, *, distance: float = 4.0, spread: float = 1.0, seed: int = 0
) -> Dataset:
    """`num_classes` normal clouds of standard deviation `spread`, their centres on a sphere of radius `distance`."""
    _check_sizes(num=num, dimension=dimension, num_classes=num_classes)
    generator = _generator(seed)
    centres = torch.randn(num_classes, dimension, generator=generator)
    centres = distance * centres / centres.norm(dim=1, keepdim=True)
    targets = torch.arange(num) % num_classes
    inputs = centres[targets] + spread * torch.randn(num, dimension, generator=generator)
    return Dataset(inputs, targets, num_classes, f"clusters-{dimension}", note=f"synthetic, seed {seed}")


def coordinate_points(num: int = 8, *, seed: int = 0) -> Dataset:
    """Equally spaced x in [-1, 1] with random y in [-1, 1], to be fitted by a coordinate network.  A C.3.

    The paper's eight points are only in its picture; these are ours.
    """
    _check_sizes(num=num)
    inputs = torch.linspace(-1, 1, num)[:, None]
    targets = 2 * torch.rand(num, 1, generator=_generator(seed)) - 1
    return Dataset(inputs, targets, 1, "coordinate-points", note=f"synthetic, seed {seed}")


def _regression(inputs: Tensor, target: Map | None, name: str, seed: int) -> Dataset:
    values = inputs.sum(dim=1) if target is None else target(inputs)
    values = values.reshape(len(inputs), -1).float()
    return Dataset(inputs, values, values.shape[1], name, note=f"synthetic, seed {seed}")


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _check_sizes(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise DataError(f"expected {name} of at least 1, got {size}")
