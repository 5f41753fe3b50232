"""What users give, refused in plain words where it cannot be."""

from __future__ import annotations

from numbers import Real

from torch import Tensor


def not_negative(name: str, number: float) -> float:
    """The number, if it is finite and at least 0; `name` is how the refusal calls it."""
    if not isinstance(number, Real):
        raise TypeError(f"expected {name} of at least 0, got {number!r}")
    if not 0 <= number < float("inf"):
        raise ValueError(f"expected {name} of at least 0, got {number}")
    return number


def num_logits(outputs: Tensor) -> int:
    """How many logits a sample has, on the last axis; without an axis of samples in front of it nobody can tell."""
    if outputs.ndim < 2:
        raise ValueError(
            f"expected outputs of shape (samples, ..., logits), got {tuple(outputs.shape)}: "
            "give one number per sample an axis of its own, such as outputs.unsqueeze(-1)"
        )
    return outputs.shape[-1]
