"""Squared per-sample gradients without per-sample gradients: from the input and output gradient of each layer.

For a linear layer the gradient of sample i is the outer product g_i a_i', whose squared norm is ‖g_i‖²‖a_i‖² ("ghost
norm", Goodfellow 2015) and whose entrywise square is g_i² a_i²'. A convolution is a linear layer on windows.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from spherometer.operators.convolution import per_axis
from spherometer.operators.recorder import CONVOLUTIONS, NORMALISATIONS, Recorder, Use

NUM_ENTRIES = 2**25  # of a temporary tensor
Signs = Callable[[Sequence[int]], Tensor]  # independent ±1 of a shape


class Layer(ABC):
    """A use of parameters whose per-sample gradients have a closed form in the gradient of its output."""

    def __init__(self, use: Use, weight: int | None, bias: int | None) -> None:
        assert use.edge is not None, "a chosen parameter was used without gradients"
        self.output, self.weight, self.bias = use.edge, weight, bias

    @abstractmethod
    def _weight_norms(self, gradient: Tensor) -> Tensor:
        """Squared norm (n,) of each sample's weight gradient."""

    @abstractmethod
    def _weight_squares(self, gradient: Tensor) -> Tensor:
        """Entrywise square of the weight gradient, summed over samples, flat."""

    @abstractmethod
    def _weight_gram(self, gradients: Tensor) -> Tensor:
        """Gram matrix (n, C, C) of each sample's weight gradients for C gradients (C, n, ...) of the output."""

    @abstractmethod
    def _bias_gradients(self, gradient: Tensor) -> Tensor:
        """Gradient (n, size) of the bias for each sample."""

    def nudge(self, signs: Signs) -> Tensor | None:  # noqa: ARG002
        """What the output changes by when every sample changes the parameters by signs of its own.

        It has E[uu'] = Σ_j (∂y/∂θ_j)(∂y/∂θ_j)' for each sample, so that E[u'(∂²l/∂y²)u] is the trace over these θ. None
        where there is no such form.
        """
        return None

    def norms(self, gradient: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Squared norm (n,) of each sample's gradient, by parameter."""
        if self.weight is not None:
            yield self.weight, self._weight_norms(gradient)
        if self.bias is not None:
            yield self.bias, self._bias_gradients(gradient).square().sum(1)

    def squares(self, gradient: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Entrywise square of the gradient summed over samples, flat, by parameter."""
        if self.weight is not None:
            yield self.weight, self._weight_squares(gradient)
        if self.bias is not None:
            yield self.bias, self._bias_gradients(gradient).square().sum(0)

    def gram(self, gradients: Tensor) -> Tensor:
        """Gram matrix (n, C, C) of each sample's gradients for C gradients (C, n, ...) of the output."""
        total = gradients.new_zeros(gradients.shape[1], len(gradients), len(gradients), dtype=torch.float64)
        if self.weight is not None:
            total += self._weight_gram(gradients)
        if self.bias is not None:
            total += row_gram(torch.stack([self._bias_gradients(gradient) for gradient in gradients], 1))
        return total


class MatrixLayer(Layer):
    """A linear layer or convolution: the weight gradient of a sample is Σ_t left_t right_t' in each group."""

    def __init__(
        self, use: Use, weight: int | None, bias: int | None, sides: Callable[[Tensor, slice], tuple[Tensor, Tensor]]
    ) -> None:
        super().__init__(use, weight, bias)
        self._sides = sides  # (output gradient, samples) -> left (n, G, T, o), right (n, G, T, i)
        self._channel = -1 if use.function is functional.linear else 1
        self._transposed = CONVOLUTIONS.get(use.function, (0, False))[1]
        self._result = use.output.detach()

    def nudge(self, signs: Signs) -> Tensor | None:
        """(Σ_i z_i a_ti) ε_o for signs z, ε of the sample: for a single place t the length of a is exact, without z."""
        if self._transposed:
            return None
        parts = [self._nudged(left, right, signs) for left, right in self._chunks(self._result)]
        moved = torch.cat(parts).transpose(2, 3)  # (n, G, o, T)
        if self._channel == -1:
            return moved.flatten(1, 2).transpose(1, 2).reshape(self._result.shape)
        return moved.reshape(self._result.shape)

    def _nudged(self, left: Tensor, right: Tensor, signs: Signs) -> Tensor:
        num, groups, places, height = left.shape
        steps = signs((num, groups, 1, height))
        if places == 1:
            lengths = right.square().sum(3, keepdim=True) * (self.weight is not None) + (self.bias is not None)
            return lengths.sqrt() * steps
        moved = left.new_zeros(left.shape)
        if self.weight is not None:
            moved = moved + (right @ signs((num, groups, right.shape[3], 1))) * steps
        return moved + signs((num, groups, 1, height)) if self.bias is not None else moved

    def _weight_norms(self, gradient: Tensor) -> Tensor:
        return torch.cat([_outer_norms(left, right) for left, right in self._chunks(gradient)])

    def _weight_squares(self, gradient: Tensor) -> Tensor:
        parts = [_outer_squares(left, right) for left, right in self._chunks(gradient)]
        return torch.stack(parts).sum(0).reshape(-1)

    def _weight_gram(self, gradients: Tensor) -> Tensor:
        chunks = zip(*(self._chunks(gradient, copies=len(gradients)) for gradient in gradients), strict=True)
        return torch.cat([_outer_gram(sides) for sides in chunks])

    def _bias_gradients(self, gradient: Tensor) -> Tensor:
        return gradient.movedim(self._channel, 1).flatten(2).sum(2) if gradient.ndim > 2 else gradient

    def _chunks(self, gradient: Tensor, copies: int = 1) -> Iterator[tuple[Tensor, Tensor]]:
        one_left, one_right = self._sides(gradient, slice(0, 1))
        outer = one_left.shape[1] * one_left.shape[3] * one_right.shape[3] if one_left.shape[2] > 1 else 0
        step = max(1, NUM_ENTRIES // (copies * max(one_left.numel(), one_right.numel(), outer)))
        for start, stop in pairwise([*range(0, len(gradient), step), len(gradient)]):
            yield self._sides(gradient, slice(start, stop))


class ScaleLayer(Layer):
    """The affine part of a normalisation, γ x̂ + β."""

    def __init__(self, use: Use, weight: int | None, bias: int | None, normalised: Tensor, size: int) -> None:
        super().__init__(use, weight, bias)
        self._normalised, self._size = normalised, size  # the trailing `size` axes are scaled; 0: the channel axis

    def nudge(self, signs: Signs) -> Tensor | None:
        """ε x̂ for the scale and ε' for the shift, the same at every place of a sample."""
        moved = torch.zeros_like(self._normalised)
        if self.weight is not None:
            moved = moved + self._normalised * self._spread(signs)
        return moved + self._spread(signs) if self.bias is not None else moved

    def _spread(self, signs: Signs) -> Tensor:
        """One sign for each sample and each entry of a parameter, over all places."""
        shape = self._normalised.shape
        if self._size == 0:
            return signs((shape[0], shape[1], *(1 for _ in shape[2:])))
        return signs((shape[0], *(1 for _ in shape[1 : -self._size]), *shape[-self._size :]))

    def _weight_norms(self, gradient: Tensor) -> Tensor:
        return self._summed(gradient * self._normalised).square().sum(1)

    def _weight_squares(self, gradient: Tensor) -> Tensor:
        return self._summed(gradient * self._normalised).square().sum(0)

    def _weight_gram(self, gradients: Tensor) -> Tensor:
        return row_gram(torch.stack([self._summed(gradient * self._normalised) for gradient in gradients], 1))

    def _bias_gradients(self, gradient: Tensor) -> Tensor:
        return self._summed(gradient)

    def _summed(self, tensor: Tensor) -> Tensor:
        if self._size == 0:
            return tensor.flatten(2).sum(2) if tensor.ndim > 2 else tensor
        trailing = tensor.flatten(-self._size)
        return trailing.reshape(len(tensor), -1, trailing.shape[-1]).sum(1)


class TableLayer(Layer):
    """An embedding: the gradient of row r is the sum over the places where r was looked up."""

    def __init__(self, use: Use, weight: int, rows: Tensor, num_rows: int, padding: int) -> None:
        super().__init__(use, weight, None)
        self._rows, self._num_rows = rows.flatten(1), num_rows
        self._learns = self._rows != padding  # the padding row has no gradient

    def _weight_norms(self, gradient: Tensor) -> Tensor:
        places = self._places(gradient)
        same = self._rows[:, :, None] == self._rows[:, None, :]
        return (torch.einsum("ntd,nsd->nts", places, places) * same).sum((1, 2))

    def _weight_squares(self, gradient: Tensor) -> Tensor:
        """Each place brings its share of the square of its row's sum: no table for each sample."""
        places = self._places(gradient)
        same = (self._rows[:, :, None] == self._rows[:, None, :]).to(places)
        shares = (same @ places).square() / same.sum(2, keepdim=True)
        total = places.new_zeros(self._num_rows, places.shape[-1])
        return total.index_add_(0, self._rows.flatten(), shares.flatten(0, 1)).reshape(-1)

    def _weight_gram(self, gradients: Tensor) -> Tensor:
        places = torch.stack([self._places(gradient) for gradient in gradients], 1).double()
        same = (self._rows[:, :, None] == self._rows[:, None, :]).double()
        return torch.einsum("nctd,nts,nksd->nck", places, same, places)

    def _places(self, gradient: Tensor) -> Tensor:  # (n, T, d)
        return gradient.reshape(*self._rows.shape, -1) * self._learns[:, :, None]

    def _bias_gradients(self, gradient: Tensor) -> Tensor:
        raise AssertionError(f"an embedding has no bias, got a gradient of shape {tuple(gradient.shape)}")


def layers_of(recorder: Recorder) -> list[Layer] | None:
    """The recorded uses as layers, or None when a parameter is shared or used in a way without a closed form.

    Every layer must see the samples along its first axis, and no parameter may reach the outputs by another way.
    """
    used = [k for use in recorder.uses for k in use.parameters]
    outputs = recorder.results[0]
    if len(used) != len(set(used)) or not all(_sees_samples_first(use, outputs) for use in recorder.uses):
        return None
    layers = [as_layer(use, recorder) for use in recorder.uses]
    if any(
        layer is None or {layer.weight, layer.bias} - {None} != set(use.parameters)
        for layer, use in zip(layers, recorder.uses, strict=True)
    ):
        return None
    return None if _depends(outputs, recorder.weights, without=set(used)) else layers  # type: ignore[return-value]


def _sees_samples_first(use: Use, outputs: Tensor) -> bool:
    """Whether the first axis of a use's output is that of the samples: where the second is as long, slopes tell."""
    shape, num = use.output.shape, len(outputs)
    if len(shape) == 0 or shape[0] != num:
        return False
    if len(shape) < 3 or shape[1] != num or num == 1 or use.edge is None or not outputs.requires_grad:
        return True
    rows = outputs.flatten(1)
    totals = rows @ torch.linspace(1, 2, rows.shape[1], dtype=rows.dtype, device=rows.device)
    slopes = {
        k: torch.autograd.grad(totals[k], [use.edge], retain_graph=True, materialize_grads=True)[0]
        for k in (0, num - 1)
    }
    return not any(bool(slope[:k].any() or slope[k + 1 :].any()) for k, slope in slopes.items())


def _depends(outputs: Tensor, weights: Sequence[Tensor], *, without: set[int]) -> bool:
    """Whether the outputs depend on any other of the weights."""
    others = [weight for k, weight in enumerate(weights) if k not in without]
    if not others or not outputs.requires_grad:
        return False
    gradients = torch.autograd.grad(outputs.sum(), others, retain_graph=True, allow_unused=True)
    return any(gradient is not None for gradient in gradients)


def as_layer(use: Use, recorder: Recorder, arrange: Callable[[Tensor], Tensor] = lambda x: x) -> Layer | None:
    """One recorded use as a layer, or None when its per-sample gradients have no closed form.

    Args:
        arrange: takes what enters a linear layer to (samples, ...); output gradients have to come so arranged.
    """
    if use.function is functional.linear:
        return _linear(use, recorder, arrange)
    if use.function in CONVOLUTIONS:
        return _convolution(use, recorder)
    if use.function in NORMALISATIONS:
        return _normalisation(use, recorder)
    if use.function is functional.embedding:
        return _embedding(use, recorder)
    return None


def _linear(use: Use, recorder: Recorder, arrange: Callable[[Tensor], Tensor]) -> Layer | None:
    bound = _bound(use, "input weight bias")
    if bound["input"].ndim < 2:
        return None
    inputs = arrange(bound["input"].detach())

    def sides(gradient: Tensor, samples: slice) -> tuple[Tensor, Tensor]:
        left, right = gradient[samples], inputs[samples]
        return tuple(side.reshape(len(side), 1, -1, side.shape[-1]) for side in (left, right))  # type: ignore[return-value]

    return MatrixLayer(use, recorder.index(bound["weight"]), recorder.index(bound["bias"]), sides)


def _convolution(use: Use, recorder: Recorder) -> Layer | None:
    axes, transposed = CONVOLUTIONS[use.function]
    order = "stride padding output_padding groups dilation" if transposed else "stride padding dilation groups"
    bound = _bound(use, f"input weight bias {order}")
    inputs = bound["input"].detach()
    if inputs.ndim != axes + 2:
        return None
    kernel = bound["weight"].shape[2:]
    stride, dilation = (per_axis(bound[key] or 1, axes) for key in ("stride", "dilation"))
    padding = _padding(bound["padding"] or 0, kernel, dilation)
    groups = bound["groups"] or 1

    def sides(gradient: Tensor, samples: slice) -> tuple[Tensor, Tensor]:
        left, right = (inputs, gradient) if transposed else (gradient, inputs)
        places = left.shape[2:]
        windows = _windows(right[samples], kernel, stride, padding, dilation, places)
        return _grouped(left[samples].flatten(2), groups), _grouped_windows(windows, groups, axes)

    return MatrixLayer(use, recorder.index(bound["weight"]), recorder.index(bound["bias"]), sides)


def _normalisation(use: Use, recorder: Recorder) -> Layer | None:
    bound = dict(inspect.signature(use.function).bind(*use.arguments, **use.options).arguments)
    inputs, size = bound["input"].detach(), len(bound.get("normalized_shape", ()))
    if use.function is functional.batch_norm and bound.get("training", False):
        return None  # the samples of a batch see each other: a sample has no gradient of its own
    if use.function is functional.instance_norm and not bound.get("use_input_stats", True):
        return None
    bare = {key: value for key, value in bound.items() if key not in ("input", "weight", "bias")}
    with torch.no_grad():
        normalised = use.function(inputs, **bare)
    return ScaleLayer(use, recorder.index(bound.get("weight")), recorder.index(bound.get("bias")), normalised, size)


def _embedding(use: Use, recorder: Recorder) -> Layer | None:
    bound = inspect.signature(functional.embedding).bind(*use.arguments, **use.options).arguments
    rows, table, padding = bound["input"], bound["weight"], bound.get("padding_idx")
    index = recorder.index(table)
    if index is None or rows.ndim < 2 or bound.get("max_norm") is not None or bound.get("scale_grad_by_freq"):
        return None
    return TableLayer(use, index, rows, len(table), -1 if padding is None else padding % len(table))


def _bound(use: Use, names: str) -> dict[str, Any]:
    """Arguments by name, for functions of torch that have no Python signature; None where nothing was given."""
    bound = dict.fromkeys(names.split())
    bound.update(zip(bound, use.arguments, strict=False))
    return bound | use.options


def _padding(padding: Any, kernel: Any, dilation: Sequence[int]) -> list[tuple[int, int]]:
    if padding == "valid":
        padding = 0
    if padding == "same":
        totals = [step * (size - 1) for size, step in zip(kernel, dilation, strict=True)]
        return [(total // 2, total - total // 2) for total in totals]
    return [(size, size) for size in per_axis(padding, len(kernel))]


def _windows(
    images: Tensor, kernel: Any, stride: Any, padding: list[tuple[int, int]], dilation: Any, places: Any
) -> Tensor:
    """Every window a kernel sees: (n, c, *places, *kernel)."""
    windows = functional.pad(images, [end for pair in reversed(padding) for end in pair])
    for axis, (size, step, spread, place) in enumerate(zip(kernel, stride, dilation, places, strict=True), start=2):
        windows = windows.unfold(axis, (size - 1) * spread + 1, step)[..., ::spread].narrow(axis, 0, place)
    return windows


def _grouped(tensor: Tensor, groups: int) -> Tensor:  # (n, c, T) -> (n, G, T, c/G)
    return tensor.unflatten(1, (groups, -1)).transpose(2, 3)


def _grouped_windows(windows: Tensor, groups: int, axes: int) -> Tensor:  # (n, c, *S, *K) -> (n, G, T, c/G * |K|)
    places = windows.shape[2 : 2 + axes]
    split = windows.unflatten(1, (groups, -1)).movedim(2, 2 + axes)  # (n, G, *S, c/G, *K)
    return split.reshape(len(windows), groups, prod(places), -1)


def _outer_norms(left: Tensor, right: Tensor) -> Tensor:
    """Σ_t left_t right_t', its squared norm for each sample, by the cheaper of two ways."""
    num_places, height, width = left.shape[2], left.shape[3], right.shape[3]
    if num_places == 1:
        return (left.square().sum((2, 3)) * right.square().sum((2, 3))).sum(1)
    if num_places * (height + width) < height * width:
        return ((left @ left.mT) * (right @ right.mT)).sum((1, 2, 3))
    return (left.mT @ right).square().sum((1, 2, 3))


def _outer_squares(left: Tensor, right: Tensor) -> Tensor:
    """Entrywise square of Σ_t left_t right_t' summed over samples: (G, o, i)."""
    if left.shape[2] == 1:
        return torch.einsum("ngto,ngti->goi", left.square(), right.square())
    return (left.mT @ right).square().sum(0)


def _outer_gram(sides: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Gram matrix over outputs of the matrices Σ_t left_t right_t', for each sample: (n, C, C)."""
    lefts, rights = zip(*sides, strict=True)
    if lefts[0].shape[2] == 1:
        left, right = (torch.stack(side, 1)[:, :, :, 0].double() for side in (lefts, rights))  # (n, C, G, ·)
        return (torch.einsum("ncgo,nkgo->nckg", left, left) * torch.einsum("ncgi,nkgi->nckg", right, right)).sum(-1)
    return row_gram(torch.stack([(left.mT @ right).flatten(1) for left, right in sides], 1))


def row_gram(rows: Tensor) -> Tensor:
    """R R' in double precision for rows (n, C, ...): float32 rows, squared, would lose the small singular values."""
    flat = rows.flatten(2).double()
    return flat @ flat.mT
