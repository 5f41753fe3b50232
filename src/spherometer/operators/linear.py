"""Linear maps with their second derivatives written out, for products of matrices that have a quicker way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from spherometer.operators.products import is_quick, product
from spherometer.operators.waiting import wanted


class _Linear(Function):
    """y = xw' + b, for rows x (n, i) and a weight (o, i)."""

    @staticmethod
    def forward(context: Any, x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
        context.save_for_backward(x, w)
        y = product(x, w.T)
        return y if b is None else y.add_(b)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Any:
        x, w = context.saved_tensors
        pull = _LinearGradient.apply if torch.is_grad_enabled() else _pull
        return pull(gradients[0], x, w, wanted(context, 3))


def _pull(g: Tensor, x: Tensor, w: Tensor, mask: list[bool]) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients in x, w and b of <g, xw' + b>, where the mask has them."""
    in_x, in_w, in_b = mask
    return product(g, w) if in_x else None, product(g.T, x) if in_w else None, g.sum(0) if in_b else None


class _LinearGradient(Function):
    """(g, x, w) -> (gw, g'x, Σ g).

    With vx, vw, vb coming back, the derivatives of <gw, vx> + <g'x, vw> + <Σ g, vb> are
        in g:  vx w' + x vw' + vb,      in x:  g vw,      in w:  g'vx.
    """

    @staticmethod
    def forward(context: Any, g: Tensor, x: Tensor, w: Tensor, mask: list[bool]) -> Any:
        context.set_materialize_grads(False)
        context.save_for_backward(g, x, w)
        return _pull(g, x, w, mask)

    @staticmethod
    def backward(context: Any, *vectors: Tensor | None) -> Any:
        g, x, w = context.saved_tensors
        vx, vw, vb = vectors
        in_g, in_x, in_w = wanted(context, 3)
        dg = _push(g, [(vx, w), (x, vw)], vb) if in_g else None
        dx = product(g, vw) if in_x and vw is not None else None
        dw = product(g.T, vx) if in_w and vx is not None else None
        return dg, dx, dw, None


def _push(g: Tensor, pairs: Sequence[tuple[Tensor | None, Tensor | None]], vb: Tensor | None) -> Tensor | None:
    """The sum of xw' over the pairs that are there, plus the bias; shaped as g."""
    terms = [product(x, w.T) for x, w in pairs if x is not None and w is not None]
    terms += [] if vb is None else [vb.expand_as(g)]
    return sum(terms[1:], terms[0]) if terms else None


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:  # noqa: A002
    """The twin of `torch.nn.functional.linear`; None for a call that it leaves to that."""
    if weight.dim() != 2 or input.dim() < 2 or not is_quick(input, len(weight)):
        return None
    rows = _Linear.apply(input.flatten(end_dim=-2), weight, bias)
    return rows.view(*input.shape[:-1], len(weight))
