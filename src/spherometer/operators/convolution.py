"""Convolutions, and batch norm on batch statistics, with their second derivatives written out: less work per product.

PyTorch's double backward of a convolution always reads the weight part as a convolution with samples for channels and
images for kernels, its first backward never does: each is up to twice too slow where the other is right. Its double
backward of batch norm takes some thirty passes over the activations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function, forward_ad
from torch.nn import functional
from torch.overrides import TorchFunctionMode

_aten = torch.ops.aten


class FastConvolution(TorchFunctionMode):
    """Inside `with FastConvolution():` graphs are built of convolutions and batch norms that are quick to derive twice.

    Values and derivatives are those of PyTorch up to rounding. Only the forward pass has to run inside; backward passes
    may come later. Third derivatives are right too, also through batch norm on batch statistics, where PyTorch's own
    are wrong. What is not covered is left to PyTorch: asymmetric 'same' padding, inputs without a batch, complex
    numbers, tensor subclasses, autocast, forward mode and `torch.func`. A mode that is to see the calls has to be
    entered after this one.
    """

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, arguments: tuple[Any, ...] = (), options: Any = None
    ) -> Any:
        """The quick twin of the function if there is one and it can do this call, else the function."""
        options = options or {}
        twin = _TWINS.get(function)
        if twin is not None and _is_covered([*arguments, *options.values()]):
            result = twin(*arguments, **options)
            if result is not None:
                return result
        return function(*arguments, **options)


def _is_covered(arguments: Sequence[Any]) -> bool:
    """Whether real tensors of one type are to be differentiated in plain reverse mode."""
    tensors = [argument for argument in arguments if isinstance(argument, Tensor)]
    return (
        torch.is_grad_enabled()
        and any(tensor.requires_grad for tensor in tensors)
        and len({(tensor.dtype, tensor.device) for tensor in tensors}) == 1
        and tensors[0].is_floating_point()
        and all(type(tensor) in (Tensor, torch.nn.Parameter) for tensor in tensors)
        and not torch.is_autocast_enabled(tensors[0].device.type)
        and not torch._C._are_functorch_transforms_active()
        and forward_ad._current_level < 0
    )


def _wanted(context: Any, num_tensors: int) -> list[bool]:
    """Which of the first tensors given to a function have a gradient that somebody waits for in this backward pass.

    `needs_input_grad` only knows what could be differentiated: for Jv by two backward passes it would have us compute
    every weight gradient and throw it away.
    """
    nodes = [node for node, _ in context.next_functions] + [None] * num_tensors
    needed = context.needs_input_grad[:num_tensors]
    return [need and _will_run(node) for need, node in zip(needed, nodes, strict=False)]


def _will_run(node: Any) -> bool:
    try:
        return torch._C._will_engine_execute_node(node)
    except RuntimeError:  # a leaf that is asked for, or no engine at work: better too much than too little
        return True


class Geometry(NamedTuple):
    """What `aten.convolution` wants to know besides the tensors, in its order."""

    stride: list[int]
    padding: list[int]
    dilation: list[int]
    transposed: bool
    output_padding: list[int]
    groups: int


class _Convolution(Function):
    """y = x * w + b, linear in x and in w."""

    @staticmethod
    def forward(context: Any, x: Tensor, w: Tensor, b: Tensor | None, geometry: Geometry) -> Tensor:
        context.save_for_backward(x, w)
        context.geometry, context.num_biases = geometry, None if b is None else list(b.shape)
        return _aten.convolution(x, w, b, *geometry)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Any:
        x, w = context.saved_tensors
        rest = (context.geometry, context.num_biases, _wanted(context, 3))
        # The bare function also serves `torch.func.vmap` over `torch.autograd.grad`.
        pull = _ConvolutionGradient.apply if torch.is_grad_enabled() else _pull
        return *pull(gradients[0], x, w, *rest), None


def _pull(
    g: Tensor, x: Tensor, w: Tensor, geometry: Geometry, num_biases: list[int] | None, mask: list[bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients in x, w and b of <g, x * w + b>, where the mask has them."""
    if not any(mask):
        return None, None, None
    if not _is_small_image(g, w, geometry):
        return _aten.convolution_backward(g, x, w, num_biases, *geometry, mask)
    in_x, in_w, in_b = mask  # one by one: a bias gradient alone would cost a weight gradient in oneDNN
    return (
        _aten.convolution(g, w, None, *geometry._replace(transposed=True)) if in_x else None,
        _swapped_weight_gradient(g, x, geometry) if in_w else None,
        g.sum([0, *range(2, g.dim())]) if in_b else None,
    )


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
    def forward(context: Any, g: Tensor, x: Tensor, w: Tensor, *rest: Any) -> Any:
        context.set_materialize_grads(False)
        context.save_for_backward(g, x, w)
        context.geometry = rest[0]
        return _pull(g, x, w, *rest)

    @staticmethod
    def backward(context: Any, *vectors: Tensor | None) -> Any:
        vx, vw, vb = vectors
        g, x, w = context.saved_tensors
        in_g, in_x, in_w = _wanted(context, 3)
        geometry = context.geometry
        dg = _push(g, [(x, vw), (vx, w)], vb, geometry) if in_g else None
        dx = _pull(g, x, vw, geometry, None, [True, False, False])[0] if in_x and vw is not None else None
        dw = _pull(g, vx, w, geometry, None, [False, True, False])[1] if in_w and vx is not None else None
        return dg, dx, dw, None, None, None


def _push(
    g: Tensor, pairs: Sequence[tuple[Tensor | None, Tensor | None]], vb: Tensor | None, geometry: Geometry
) -> Tensor | None:
    """The sum of x * w over the pairs that are there, plus the bias; shaped as g.

    One convolution of the concatenated channels was measured to be slower than two.
    """
    total: Tensor | None = None
    bias = vb
    for x, w in pairs:
        if x is not None and w is not None:
            part = _aten.convolution(x, w, bias, *geometry)
            total, bias = part if total is None else total.add_(part), None
    if total is None and vb is not None:
        return _column(vb, g).expand_as(g)
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
    strides, dilations = _each(stride, num_axes), _each(dilation, num_axes)
    paddings = _paddings(padding, strides, dilations, weight.shape[2:])
    whole = None if paddings is None else Geometry(strides, paddings, dilations, False, [0] * num_axes, groups)
    return input, weight, bias, whole


def _convolution(*arguments: Any, **options: Any) -> Tensor | None:
    return _convolve(*as_called(*arguments, **options))


def _transposed_convolution(
    input: Tensor,  # noqa: A002
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Tensor | None:
    strides, paddings, output_paddings, dilations = (
        _each(value, weight.dim() - 2) for value in (stride, padding, output_padding, dilation)
    )
    return _convolve(input, weight, bias, Geometry(strides, paddings, dilations, True, output_paddings, groups))


def _convolve(x: Tensor, w: Tensor, b: Tensor | None, geometry: Geometry | None) -> Tensor | None:
    if geometry is None or x.dim() != w.dim():
        return None
    return _Convolution.apply(x, w, b, geometry)


def _each(value: int | Sequence[int], num_axes: int) -> list[int]:
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
        return _each(padding, len(kernel))
    totals = [dilation * (size - 1) for dilation, size in zip(dilations, kernel, strict=True)]
    if any(total % 2 for total in totals) or any(stride != 1 for stride in strides):
        return None
    return [total // 2 for total in totals]


class _BatchNorm(Function):
    """y = γ x̂ + β with x̂ = (x - μ) r and r = (variance + ε)^(-1/2), statistics over all but the channels."""

    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor, bias: Tensor, running: Any, epsilon: float) -> Tensor:
        y, mean, scale = _aten.native_batch_norm(x, weight, bias, *running[:2], True, running[2], epsilon)
        context.save_for_backward(x, weight, mean, scale)
        context.epsilon = epsilon
        return y

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Any:
        x, weight, mean, scale = context.saved_tensors
        mask = [_wanted(context, 1)[0], True, True]
        pull = _BatchNormGradient.apply if torch.is_grad_enabled() else _pull_norm
        return *pull(gradients[0], x, weight, mean, scale, context.epsilon, mask), None, None


def _pull_norm(
    g: Tensor, x: Tensor, weight: Tensor, mean: Tensor, scale: Tensor, epsilon: float, mask: list[bool]
) -> Any:
    """γ r Pg, Σ g x̂ and Σ g, where P takes away the mean and the component along x̂."""
    return _aten.native_batch_norm_backward(g, x, weight, None, None, mean, scale, True, epsilon, mask)


class _BatchNormGradient(Function):
    """(g, x, γ) -> (γ r Pg, Σ g x̂, Σ g) with Pg = g - Σ g / n - x̂ Σ g x̂ / n, sums over the n numbers of a channel.

    With v, a, b coming back, the derivatives of γ r <v, Pg> + a Σ g x̂ + b Σ g are
        in g:  γ r Pv + a x̂ + b,      in γ:  r <v, Pg>,
        in x:  r P(p v + q g) - γ r² <v, Pg> x̂ / n,   p = -γ r Σ g x̂ / n,   q = a - γ r Σ v x̂ / n,
    the last because ∂r/∂x = -r² x̂ / n and P is what the derivative of x̂ does. All are sums of v, g, x and 1 with one
    factor per channel, so that a few passes over the activations do.
    """

    @staticmethod
    def forward(
        context: Any, g: Tensor, x: Tensor, weight: Tensor, mean: Tensor, scale: Tensor, epsilon: float, mask: Any
    ) -> Any:
        context.set_materialize_grads(False)
        gradients = _pull_norm(g, x, weight, mean, scale, epsilon, mask)
        context.save_for_backward(g, x, weight, mean, scale, *gradients[1:])
        context.epsilon = epsilon
        return gradients

    @staticmethod
    def backward(context: Any, *vectors: Tensor | None) -> Any:
        g, x, weight, mean, r, sum_gx, sum_g = context.saved_tensors
        v, a, b = (
            torch.zeros_like(like) if vector is None else vector
            for vector, like in zip(vectors, (x, weight, weight), strict=True)
        )
        in_g, in_x, in_weight = wanted = _wanted(context, 3)
        if torch.is_grad_enabled():  # a third derivative is to come
            return *_differentiable_push(g, x, weight, context.epsilon, (v, a, b), wanted), *[None] * 4
        dg, sum_vx, sum_v = _pull_norm(v, x, weight, mean, r, context.epsilon, [in_g, True, True])
        if in_g:
            dg.add_(_affine(x, a * r, b - a * r * mean))
        if not (in_x or in_weight):
            return dg, *[None] * 6
        n = x.numel() // x.shape[1]
        product = _sum_of_products(v, g) - (sum_v * sum_g + sum_vx * sum_gx) / n  # <v, Pg>
        p, q = -weight * r * sum_gx / n, a - weight * r * sum_vx / n
        slope = -(r * (p * sum_vx + q * sum_gx) + weight * r**2 * product) * r / n
        shift = -r * (p * sum_v + q * sum_g) / n - slope * mean
        dx = _affine(x, slope, shift).addcmul_(v, _column(r * p, x)).addcmul_(g, _column(r * q, x)) if in_x else None
        return dg, dx, r * product, *[None] * 4


def _differentiable_push(
    g: Tensor, x: Tensor, weight: Tensor, epsilon: float, vectors: tuple[Tensor, Tensor, Tensor], wanted: Sequence[bool]
) -> list[Tensor | None]:
    """The same derivatives by plain arithmetic with a graph of its own, slow and right at every order."""
    v, a, b = vectors
    g, x, weight = (tensor.view_as(tensor) for tensor in (g, x, weight))  # partial derivatives: g and v depend on x too
    axes = [0, *range(2, x.dim())]
    centred = x - x.mean(axes, keepdim=True)
    r = (centred.square().mean(axes, keepdim=True) + epsilon).rsqrt()
    normal = centred * r
    projected = g - g.mean(axes, keepdim=True) - normal * (g * normal).mean(axes, keepdim=True)
    value = (v * _column(weight, x) * r * projected + g * (_column(a, x) * normal + _column(b, x))).sum()
    inputs = [tensor for tensor, want in zip((g, x, weight), wanted, strict=True) if want]
    derivatives = iter(torch.autograd.grad(value, inputs, create_graph=True) if inputs else ())
    return [next(derivatives) if want else None for want in wanted]


def _affine(x: Tensor, slope: Tensor, shift: Tensor) -> Tensor:
    """slope x + shift per channel; batch norm with given statistics is PyTorch's fastest kernel for it."""
    return _aten.native_batch_norm(x, slope, shift, torch.zeros_like(slope), torch.ones_like(slope), False, 0.0, 0.0)[0]


def _sum_of_products(v: Tensor, g: Tensor) -> Tensor:
    """Σ v g per channel in one pass: the weight gradient of a batch norm that is the identity."""
    zeros, ones = v.new_zeros(v.shape[1]), v.new_ones(v.shape[1])
    mask = [False, True, False]
    return _aten.native_batch_norm_backward(v, g, ones, zeros, ones, zeros, ones, False, 0.0, mask)[1]


def _column(vector: Tensor, like: Tensor) -> Tensor:
    """One number per channel, shaped to spread over samples and space."""
    return vector.view(1, -1, *[1] * (like.dim() - 2))


def _batch_norm(
    input: Tensor,  # noqa: A002
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor | None:
    has_spread = input.dim() >= 2 and input.numel() > input.shape[1]
    if not training or weight is None or bias is None or not has_spread:
        return None
    running = (running_mean, running_var, momentum)
    return _BatchNorm.apply(input, weight, bias, running, eps)


_TWINS: dict[Callable[..., Any], Callable[..., Tensor | None]] = {
    torch.conv1d: _convolution,
    torch.conv2d: _convolution,
    torch.conv3d: _convolution,
    torch.conv_transpose1d: _transposed_convolution,
    torch.conv_transpose2d: _transposed_convolution,
    torch.conv_transpose3d: _transposed_convolution,
    functional.batch_norm: _batch_norm,
}
