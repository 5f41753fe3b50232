"""Where the samples of a batch lie in a tensor inside the network: along its first axis, or merged with tokens, or not.

Sequence-first models carry (tokens, samples, features), windows and heads are often merged with the samples into one
axis, and what a learnt prompt sends through a layer has no samples at all. Shapes alone do not tell these apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import Tensor

Order = Literal["first", "second", "inner"]  # (n, ...), also (n·t, ...); (t, n, ...); (t·n, ...)


def by_sample(tensor: Tensor, num: int, order: Order) -> Tensor:
    """A tensor with its samples along the first axis, (num, ...)."""
    if order == "second":
        return tensor.movedim(1, 0)
    if order == "inner":
        return tensor.unflatten(0, (-1, num)).transpose(0, 1)
    return tensor if len(tensor) == num else tensor.unflatten(0, (num, -1))


def order_of(gradients: Sequence[Tensor], *, mixed: bool = False) -> Order | None:
    """How samples lie in a tensor, from the gradient there of each sample's outputs: it vanishes at all other samples.

    None where no order does that: the tensor belongs to no sample, or to several. Samples that see each other (`mixed`)
    leave only the shape to go by.
    """
    num, tensor = len(gradients), gradients[0]
    exact = tensor.ndim > 0 and len(tensor) == num
    whole = tensor.ndim > 0 and len(tensor) % num == 0
    second = tensor.ndim > 1 and tensor.shape[1] == num
    candidates: list[tuple[Order, bool]] = [("first", exact), ("second", second), ("first", whole), ("inner", whole)]
    for order, possible in candidates:
        if possible and (
            mixed or all(_only(by_sample(gradient, num, order), i) for i, gradient in enumerate(gradients))
        ):
            return order
    return None


def _only(gradient: Tensor, sample: int) -> bool:
    return not any(bool(part.any()) for i, part in enumerate(gradient) if i != sample)
