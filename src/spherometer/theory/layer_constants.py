"""The Lipschitz constant (operator norm) of a single layer, from above."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from spherometer.problems.modes import differentiating

Shape = tuple[int, ...]
Map = Callable[[Tensor], Tensor]
DENSE = 2**21  # entries up to which a layer is unrolled into its matrix


def spectral_norm(matrices: Tensor) -> Tensor:
    """‖A‖₂ of a batch of matrices, by the smaller of A'A and AA'."""
    tall = matrices.shape[-2] > matrices.shape[-1]
    gram = matrices.mH @ matrices if tall else matrices @ matrices.mH
    return torch.linalg.eigvalsh(gram)[..., -1].clamp_min(0).sqrt()


def matrix_and_offset(apply: Map, shape: Shape) -> tuple[Tensor, Tensor]:
    """An affine map of one sample as A x + b, found from its derivatives along the unit vectors and the image of 0."""
    size = math.prod(shape)
    images, columns = _along(apply, torch.eye(size, dtype=torch.float64).reshape(-1, *shape))
    return columns.reshape(size, -1).T.contiguous(), images[0].flatten()


def affine_norm(apply: Map, module: nn.Module | None, shape: Shape, num_outputs: int, *, picking: bool) -> float:
    """‖A‖₂ of an affine layer: exact where it picks entries, is a matrix, or is small enough to be unrolled.

    Larger convolutions by their frequency response; other larger maps average and have no negative entry: Schur's test.
    """
    if picking:
        return picking_norm(apply, shape)
    if isinstance(module, nn.Linear):
        return float(spectral_norm(module.weight.detach()))
    if math.prod(shape) * num_outputs <= DENSE:
        return float(spectral_norm(matrix_and_offset(apply, shape)[0]))
    if isinstance(module, _ConvNd):
        return convolution_norm(module, shape)
    return schur_norm(apply, shape)


def convolution_norm(module: _ConvNd, shape: Shape) -> float:
    """At least the norm of a convolution on inputs of this shape: that on a torus which holds the padded image.

    The convolution's rows are some of the rows there. On the torus it is diagonal in the frequencies, max_ω ‖K̂(ω)‖₂
    (Sedghi et al. 2019), a stride s turns s pixels into s channels, and a transposed convolution has the norm of the
    convolution that it transposes.
    """
    kernel = _dilated(module.weight.detach().double(), module.dilation).unflatten(0, (module.groups, -1))
    sides, stretch = list(shape[1:]), 1.0
    if isinstance(module, _ConvTransposeNd):
        sides = [
            (side - 1) * step + length
            for side, step, length in zip(sides, module.stride, kernel.shape[3:], strict=True)
        ]
    else:
        pads = list(module._reversed_padding_repeated_twice)
        if module.padding_mode != "zeros":
            mode = module.padding_mode
            stretch = schur_norm(lambda x: functional.pad(x, pads, mode=mode), (1, *sides))
        sides = [side + sum(pads[-2 * axis - 2 :][:2]) for axis, side in enumerate(sides)]
    for axis, step in enumerate(module.stride):
        kernel = _phases(kernel, 3 + axis, step)
    tori = [math.ceil(side / step) for side, step in zip(sides, module.stride, strict=True)]
    axes = tuple(range(3, 3 + len(tori)))
    tori = [max(side, length) for side, length in zip(tori, kernel.shape[3:], strict=True)]
    response = torch.fft.rfftn(kernel, s=tori, dim=axes).flatten(3).permute(0, 3, 1, 2)
    return stretch * float(spectral_norm(response).max())


def picking_norm(apply: Map, shape: Shape) -> float:
    """‖A‖₂ where every row of A has at most one entry c: A'A is diagonal, and A'c, c = A 1, is its diagonal."""
    entries = _row_sums(apply, shape)
    return math.sqrt(float(_pulled_back(apply, shape, entries).amax()))


def schur_norm(apply: Map, shape: Shape) -> float:
    """√(‖A‖₁ ‖A‖_∞) ≥ ‖A‖₂ for an affine map whose matrix has no negative entry."""
    rows = _row_sums(apply, shape)
    return math.sqrt(float(_pulled_back(apply, shape, torch.ones_like(rows)).amax()) * float(rows.amax()))


def _along(apply: Map, directions: Tensor) -> tuple[Tensor, Tensor]:
    """The image of 0, and A d for every direction d: the derivative of r -> d'A'r.

    Differences of images would lose digits to a large offset.
    """
    with differentiating():
        zeros = torch.zeros_like(directions, requires_grad=True)
        image = apply(zeros)
        rows = torch.zeros_like(image, requires_grad=True)
        (pulled,) = torch.autograd.grad(image, zeros, rows, create_graph=True)
        (slopes,) = torch.autograd.grad(pulled, rows, directions)
    return image.detach(), slopes


def _row_sums(apply: Map, shape: Shape) -> Tensor:
    return _along(apply, torch.ones(1, *shape, dtype=torch.float64))[1]


def _pulled_back(apply: Map, shape: Shape, rows: Tensor) -> Tensor:
    """A'r."""
    with differentiating():
        zeros = torch.zeros(1, *shape, dtype=torch.float64, requires_grad=True)
        return torch.autograd.grad(apply(zeros), zeros, rows)[0]


def pooling_constant(module: nn.Module) -> float:
    """√m for a maximum over windows of which at most m share an entry."""
    kernel, stride, dilation = (
        _per_axis(getattr(module, key), module) for key in ("kernel_size", "stride", "dilation")
    )
    shared = [
        math.ceil(size * math.gcd(step, apart) / step)
        for size, step, apart in zip(kernel, stride, dilation, strict=True)
    ]
    return math.sqrt(math.prod(shared))


def normalisation_constant(module: nn.LayerNorm | nn.GroupNorm) -> float:
    """max|γ|/√ε: (x − mean)/√(variance + ε) has slopes of at most 1/√ε."""
    weight = 1.0 if module.weight is None else float(module.weight.detach().abs().max())
    return weight / math.sqrt(module.eps)


def _per_axis(value: int | tuple[int, ...], module: nn.Module) -> tuple[int, ...]:
    num = int(type(module).__name__.removeprefix("MaxPool")[0])
    return (value,) * num if isinstance(value, int) else tuple(value)


def _dilated(kernel: Tensor, dilation: tuple[int, ...]) -> Tensor:
    """With zeros between the taps."""
    for axis, apart in enumerate(dilation, start=2):
        length = (kernel.shape[axis] - 1) * apart + 1
        places = torch.arange(0, length, apart)
        kernel = kernel.new_zeros(*kernel.shape[:axis], length, *kernel.shape[axis + 1 :]).index_copy(
            axis, places, kernel
        )
    return kernel


def _phases(kernel: Tensor, axis: int, step: int) -> Tensor:
    """Taps k = q·step + phase of one axis: the phase becomes part of the channels, q stays."""
    missing = -kernel.shape[axis] % step
    padding = [0, 0] * (kernel.ndim - axis - 1) + [0, missing]
    parts = functional.pad(kernel, padding).unflatten(axis, (-1, step))
    return parts.movedim(axis + 1, 3).flatten(2, 3)
