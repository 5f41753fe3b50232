"""Batch norm with its second derivatives written out: PyTorch's take some thirty passes over the activations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from spherometer.operators.waiting import column, wanted

_aten = torch.ops.aten


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
        mask = [wanted(context, 1)[0], True, True]
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
        in_g, in_x, in_weight = mask = wanted(context, 3)
        if torch.is_grad_enabled():  # a third derivative is to come
            return *_differentiable_push(g, x, weight, context.epsilon, (v, a, b), mask), *[None] * 4
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
        dx = _affine(x, slope, shift).addcmul_(v, column(r * p, x)).addcmul_(g, column(r * q, x)) if in_x else None
        return dg, dx, r * product, *[None] * 4


def _differentiable_push(
    g: Tensor, x: Tensor, weight: Tensor, epsilon: float, vectors: tuple[Tensor, Tensor, Tensor], mask: Sequence[bool]
) -> list[Tensor | None]:
    """The same derivatives by plain arithmetic with a graph of its own, slow and right at every order."""
    v, a, b = vectors
    g, x, weight = (tensor.view_as(tensor) for tensor in (g, x, weight))  # partial derivatives: g and v depend on x too
    axes = [0, *range(2, x.dim())]
    centred = x - x.mean(axes, keepdim=True)
    r = (centred.square().mean(axes, keepdim=True) + epsilon).rsqrt()
    normal = centred * r
    projected = g - g.mean(axes, keepdim=True) - normal * (g * normal).mean(axes, keepdim=True)
    value = (v * column(weight, x) * r * projected + g * (column(a, x) * normal + column(b, x))).sum()
    inputs = [tensor for tensor, want in zip((g, x, weight), mask, strict=True) if want]
    derivatives = iter(torch.autograd.grad(value, inputs, create_graph=True) if inputs else ())
    return [next(derivatives) if want else None for want in mask]


class _FixedNorm(Function):
    """y = γ r (x - μ) + β with statistics that are given, linear in x and in (γ, β)."""

    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
        context.save_for_backward(x, weight, mean, scale)
        return _affine(x, weight * scale, bias - weight * scale * mean)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Any:
        x, weight, mean, scale = context.saved_tensors
        pull = _FixedNormGradient.apply if torch.is_grad_enabled() else _pull_fixed
        return *pull(gradients[0], x, weight, mean, scale, wanted(context, 1)[0]), None, None


def _pull_fixed(g: Tensor, x: Tensor, weight: Tensor, mean: Tensor, scale: Tensor, in_x: bool) -> Any:
    """γ r g, r Σ g (x - μ) and Σ g."""
    sum_g = g.sum([0, *range(2, g.dim())])
    return g * column(weight * scale, g) if in_x else None, scale * (_sum_of_products(g, x) - mean * sum_g), sum_g


class _FixedNormGradient(Function):
    """(g, x, γ) -> (γ r g, r Σ g (x - μ), Σ g).

    With v, a, b coming back, the derivatives of γ r <v, g> + a r Σ g (x - μ) + b Σ g are
        in g:  γ r v + a r (x - μ) + b,      in x:  a r g,      in γ:  r Σ v g.
    """

    @staticmethod
    def forward(context: Any, g: Tensor, x: Tensor, weight: Tensor, mean: Tensor, scale: Tensor, in_x: bool) -> Any:
        context.set_materialize_grads(False)
        context.save_for_backward(g, x, weight, mean, scale)
        return _pull_fixed(g, x, weight, mean, scale, in_x)

    @staticmethod
    def backward(context: Any, *vectors: Tensor | None) -> Any:
        g, x, weight, mean, r = context.saved_tensors
        v, *pair = vectors
        a, b = (torch.zeros_like(weight) if vector is None else vector for vector in pair)
        in_g, in_x, in_weight = wanted(context, 3)
        dg = _affine(x, a * r, b - a * r * mean) if in_g else None
        if dg is not None and v is not None:
            dg.addcmul_(v, column(weight * r, v))
        dx = g * column(a * r, g) if in_x else None
        return dg, dx, r * _sum_of_products(v, g) if in_weight and v is not None else None, None, None, None


def _affine(x: Tensor, slope: Tensor, shift: Tensor) -> Tensor:
    """slope x + shift per channel; batch norm with given statistics is PyTorch's fastest kernel for it."""
    return _aten.native_batch_norm(x, slope, shift, torch.zeros_like(slope), torch.ones_like(slope), False, 0.0, 0.0)[0]


def _sum_of_products(v: Tensor, g: Tensor) -> Tensor:
    """Σ v g per channel in one pass: the weight gradient of a batch norm that is the identity."""
    zeros, ones = v.new_zeros(v.shape[1]), v.new_ones(v.shape[1])
    mask = [False, True, False]
    return _aten.native_batch_norm_backward(v, g, ones, zeros, ones, zeros, ones, False, 0.0, mask)[1]


def batch_norm(
    input: Tensor,  # noqa: A002
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor | None:
    """The twin of `torch.nn.functional.batch_norm`; None for a call that it leaves to that."""
    has_spread = input.dim() >= 2 and input.numel() > input.shape[1]
    if weight is None or bias is None or not has_spread:
        return None
    if training:
        return _BatchNorm.apply(input, weight, bias, (running_mean, running_var, momentum), eps)
    if running_mean is None or running_var is None:
        return None
    return _FixedNorm.apply(input, weight, bias, running_mean, (running_var + eps).rsqrt())
