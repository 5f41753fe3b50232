"""Convolutions with their second derivatives written out: less work per product.

PyTorch's double backward of a convolution always reads the weight part as a convolution with samples for channels and
images for kernels, its first backward never does: each is up to twice too slow where the other is right.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from spherometer.operators.minimal_filtering import Lifts, Tiling, tiling_for
from spherometer.operators.products import are_batched
from spherometer.operators.unrolled import convolved, input_gradient
from spherometer.operators.waiting import column, wanted

_aten = torch.ops.aten


class Geometry(NamedTuple):
    """What `aten.convolution` wants to know besides the tensors, in its order."""

    stride: list[int]
    padding: list[int]
    dilation: list[int]
    transposed: bool
    output_padding: list[int]
    groups: int


PLAIN = Geometry([1, 1], [1, 1], [1, 1], transposed=False, output_padding=[0, 0], groups=1)


class Image(NamedTuple):
    """Images, and the same lifted if that is at hand."""

    pixels: Tensor
    lifted: Tensor | None = None

    @property
    def tiled(self) -> Tensor:
        """What is least work for a tiling."""
        return self.pixels if self.lifted is None else self.lifted


class _Convolution(Function):
    """y = x * w + b, linear in x and in w."""

    @staticmethod
    def forward(context: Any, x: Tensor, w: Tensor, b: Tensor | None, geometry: Geometry, lifts: Lifts) -> Tensor:
        tiling = _tiling(x, x, w, geometry, lifts) if lifts.images else None
        lifted = None if tiling is None else tiling.whole(tiling.lift_input, x)
        context.save_for_backward(x, w, lifted)
        context.geometry, context.lifts, context.num_biases = geometry, lifts, None if b is None else list(b.shape)
        if tiling is None or lifted is None:
            return convolved(x, w, b, geometry)
        result = tiling.convolved([(lifted, lifts.of(w, tiling))])
        return result if b is None else result.add_(column(b, result))

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Any:
        x, w, lifted = context.saved_tensors
        rest = (context.geometry, context.lifts, context.num_biases, wanted(context, 3))
        if torch.is_grad_enabled():
            return *_ConvolutionGradient.apply(gradients[0], x, w, lifted, *rest), None, None
        # The bare function also serves `torch.func.vmap` over `torch.autograd.grad`.
        return *_pull(Image(gradients[0]), Image(x, lifted), w, *rest), None, None


def _pull(
    g: Image, x: Image, w: Tensor, geometry: Geometry, lifts: Lifts, num_biases: list[int] | None, mask: list[bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients in x, w and b of <g, x * w + b>, where the mask has them."""
    if not any(mask):
        return None, None, None
    in_x, in_w, in_b = mask
    if tiling := _tiling(g.pixels, x.pixels, w, geometry, lifts):
        weight = lifts.of(w, tiling) if in_x else None
        dx, dw = tiling.gradients(g.tiled, x.tiled if in_w else None, weight, lifts.workspace)
    elif _is_small_image(g.pixels, w, geometry):
        dx = _aten.convolution(g.pixels, w, None, *geometry._replace(transposed=True)) if in_x else None
        dw = _swapped_weight_gradient(g.pixels, x.pixels, geometry) if in_w else None
    elif in_x and (dx := input_gradient(g.pixels, x.pixels, w, geometry)) is not None:
        rest = (None, *geometry, [False, True, False])
        dw = _aten.convolution_backward(g.pixels, x.pixels, w, *rest)[1] if in_w else None
    else:
        return _aten.convolution_backward(g.pixels, x.pixels, w, num_biases, *geometry, mask)
    # By itself: a bias gradient alone would cost a weight gradient in oneDNN.
    return dx, dw, g.pixels.sum([0, *range(2, g.pixels.dim())]) if in_b else None


def _tiling(g: Tensor, x: Tensor, w: Tensor, geometry: Geometry, lifts: Lifts) -> Tiling | None:
    """How to spare multiplications, where that was measured quicker and nothing is to be differentiated any further."""
    final = not torch.is_grad_enabled() and not are_batched(g, x, w)
    return tiling_for(x, w, lifts) if final and geometry == PLAIN else None


def _is_small_image(g: Tensor, w: Tensor, geometry: Geometry) -> bool:
    """Whether oneDNN's forward kernels beat its backward kernels: many channels, small images (measured: 1.2 to 3)."""
    return (
        g.device.type == "cpu"
        and g.dtype == torch.float32
        and not geometry.transposed
        and geometry.groups == 1
        and max(geometry.stride) == 1
        and w.shape[2:].numel() > 1
        and min(w.shape[:2]) >= 4 * g.shape[2:].numel()
    )


def _swapped_weight_gradient(g: Tensor, x: Tensor, geometry: Geometry) -> Tensor:
    """Σ_n g_n x_n over the samples n, as the convolution of x with g that has samples for channels."""
    axes = len(geometry.stride)
    samples_last = [tensor.transpose(0, 1).contiguous() for tensor in (x, g)]
    rest = (geometry.dilation, geometry.padding, geometry.stride, False, [0] * axes, 1)
    return _aten.convolution(*samples_last, None, *rest).transpose(0, 1)


class _ConvolutionGradient(Function):
    """(g, x, w) -> the gradients of T(g, x, w) = <g, x * w> in x and w, and the sum of g for the bias.

    T is linear in each of its three places. With vx, vw, vb coming back, the derivatives of
    T(g, vx, w) + T(g, x, vw) + <g, vb> are
        in g:  vx * w + x * vw + vb,      in x:  the input gradient of T(g, x, vw),
        in w:  the weight gradient of T(g, vx, w).
    """

    @staticmethod
    def forward(context: Any, g: Tensor, x: Tensor, w: Tensor, lifted: Tensor | None, *rest: Any) -> Any:
        context.set_materialize_grads(False)
        context.geometry, context.lifts = rest[:2]
        tiling = None if lifted is None else _tiling(g, x, w, *rest[:2])
        slope = None if tiling is None else tiling.whole(tiling.lift_output, g)
        context.save_for_backward(g, x, w, slope, lifted)
        return _pull(Image(g, slope), Image(x, lifted), w, *rest)

    @staticmethod
    def backward(context: Any, *vectors: Tensor | None) -> Any:
        vx, vw, vb = vectors
        g, x, w, slope, lifted = context.saved_tensors
        in_g, in_x, in_w = wanted(context, 3)
        rest = (context.geometry, context.lifts)
        slopes, images = Image(g, slope), Image(x, lifted)
        if in_g and in_x and in_w and vx is not None and vw is not None and (tiling := _tiling(g, vx, w, *rest)):
            lifts = context.lifts
            with lifts.passing(vw, tiling) as change:
                weights = lifts.of(w, tiling), change
                total, *others = tiling.second(slopes.tiled, images.tiled, vx, *weights, lifts.workspace)
            return total if vb is None else total.add_(column(vb, g)), *others, *[None] * 5
        changes = None if vx is None else Image(vx)
        dg = _push(slopes, [(images, vw), (changes, w)], vb, *rest) if in_g else None
        mask = [in_x and vw is not None, in_w and vx is not None, False]
        dx, dw, _ = _pull(slopes, changes or images, w if vw is None else vw, *rest, None, mask)
        return dg, dx, dw, *[None] * 5


def _push(
    g: Image,
    pairs: Sequence[tuple[Image | None, Tensor | None]],
    vb: Tensor | None,
    geometry: Geometry,
    lifts: Lifts,
) -> Tensor | None:
    """The sum of x * w over the pairs that are there, plus the bias; shaped as g.

    One convolution of the concatenated channels was measured to be slower than two.
    """
    present = [(x, w) for x, w in pairs if x is not None and w is not None]
    if not present:
        return None if vb is None else column(vb, g.pixels).expand_as(g.pixels)
    (x, w), *others = present
    if tiling := _tiling(g.pixels, x.pixels, w, geometry, lifts):
        total = tiling.convolved([(x.tiled, lifts.of(w, tiling)) for x, w in present])
        return total if vb is None else total.add_(column(vb, g.pixels))
    total = convolved(x.pixels, w, vb, geometry)
    for x, w in others:
        total = total.add_(convolved(x.pixels, w, None, geometry))
    return total


def as_called(
    input: Tensor,  # noqa: A002 (the names are those of torch.conv2d)
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> tuple[Tensor, Tensor, Tensor | None, Geometry | None]:
    """The tensors and the geometry of a call of `torch.conv2d` or its siblings; None for one that has no such form."""
    num_axes = weight.dim() - 2
    strides, dilations = per_axis(stride, num_axes), per_axis(dilation, num_axes)
    paddings = _paddings(padding, strides, dilations, weight.shape[2:])
    whole = None if paddings is None else Geometry(strides, paddings, dilations, False, [0] * num_axes, groups)
    return input, weight, bias, whole


def convolution(lifts: Lifts, *arguments: Any, **options: Any) -> Tensor | None:
    """The twin of `torch.conv2d` and its siblings; None for a call that it leaves to them."""
    return _convolve(lifts, *as_called(*arguments, **options))


def transposed_convolution(
    lifts: Lifts,
    input: Tensor,  # noqa: A002
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Tensor | None:
    """The twin of `torch.conv_transpose2d` and its siblings; None for a call that it leaves to them."""
    strides, paddings, output_paddings, dilations = (
        per_axis(value, weight.dim() - 2) for value in (stride, padding, output_padding, dilation)
    )
    return _convolve(lifts, input, weight, bias, Geometry(strides, paddings, dilations, True, output_paddings, groups))


def _convolve(lifts: Lifts, x: Tensor, w: Tensor, b: Tensor | None, geometry: Geometry | None) -> Tensor | None:
    if geometry is None or x.dim() != w.dim():
        return None
    return _Convolution.apply(x, w, b, geometry, lifts)


def per_axis(value: int | Sequence[int], num_axes: int) -> list[int]:
    """One number per axis."""
    numbers = [value] if isinstance(value, int) else list(value)
    return numbers * num_axes if len(numbers) == 1 else numbers


def _paddings(
    padding: Any, strides: Sequence[int], dilations: Sequence[int], kernel: Sequence[int]
) -> list[int] | None:
    """One number per axis, or None where 'same' needs more on one side than on the other (or must be refused)."""
    if padding == "valid":
        return [0] * len(kernel)
    if padding != "same":
        return per_axis(padding, len(kernel))
    totals = [dilation * (size - 1) for dilation, size in zip(dilations, kernel, strict=True)]
    if any(total % 2 for total in totals) or any(stride != 1 for stride in strides):
        return None
    return [total // 2 for total in totals]
