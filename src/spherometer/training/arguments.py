"""Numbers that users give, refused in plain words."""

from __future__ import annotations

from numbers import Real


def not_negative(name: str, number: float) -> float:
    """The number, if it is finite and at least 0; `name` is how the refusal calls it."""
    if not isinstance(number, Real):
        raise TypeError(f"expected {name} of at least 0, got {number!r}")
    if not 0 <= number < float("inf"):
        raise ValueError(f"expected {name} of at least 0, got {number}")
    return number
