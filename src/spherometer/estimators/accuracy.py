"""How exactly a number is wanted."""

from __future__ import annotations

from numbers import Real


def check_rtol(rtol: float) -> float:
    """A relative accuracy, if it lies between 0 and 1."""
    if not isinstance(rtol, Real) or not 0 < rtol < 1:
        raise ValueError(f"expected 0 < rtol < 1, got {rtol!r}")
    return rtol
