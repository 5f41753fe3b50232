"""Numbers, times and verdicts in the words of the page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from spherometer.recipes.verdicts import ANSWERS, Verdict
from spherometer.records.schema import flat

SYMBOLS = {"holds": "✓", "fails": "✗", "undecided": "?"}
NAMES = {"holds": ("holds", "hold"), "fails": ("fails", "fail"), "undecided": ("is undecided", "are undecided")}


def number(value: float) -> str:
    """Three digits, a true minus, ∞ and – for what is no number.

    Example:
        >>> number(-0.012345)
        '−0.0123'
    """
    if math.isnan(value):
        return "–"
    words = "∞" if math.isinf(value) else f"{abs(value):.3g}"
    return f"−{words}" if value < 0 else words


def effect(verdict: Verdict) -> str:
    """`0.85 (0.61 … 1.1) ln of the factor`."""
    between = interval(verdict)
    return " ".join(part for part in (number(verdict.effect), f"({between})" if between else "", verdict.unit) if part)


def interval(verdict: Verdict) -> str:
    """`0.61 … 1.1`; nothing where there is none."""
    if math.isnan(verdict.low) or not verdict.low < verdict.high:
        return ""
    return f"{number(verdict.low)} … {number(verdict.high)}"


def chance(verdict: Verdict) -> str:
    """`p < 0.001`; nothing for what is no matter of chance."""
    if verdict.p is None:
        return ""
    return "p < 0.001" if verdict.p < 0.001 else f"p = {verdict.p:.2g}"


def basis(verdict: Verdict) -> str:
    """How many numbers it rests on, and how many would decide it."""
    rests_on = f"{verdict.num} number{'s' * (verdict.num != 1)}"
    if verdict.answer == "undecided" and verdict.needed is not None:
        return f"{rests_on}; about {verdict.needed:,} would decide it"
    return rests_on


def tally(verdicts: Sequence[Verdict]) -> dict[str, int]:
    """How often each answer was given."""
    return {answer: sum(verdict.answer == answer for verdict in verdicts) for answer in ANSWERS}


def told(counts: Mapping[str, int]) -> str:
    """`12 hold, 1 fails, 3 are undecided`."""
    return ", ".join(f"{num} {NAMES[answer][num != 1]}" for answer, num in counts.items() if num) or "no claims"


def cells(content: Mapping[str, Any]) -> dict[str, str]:
    """Nested data as dotted names and words."""
    return {name: _cell(value) for name, value in flat(content).items()}


def _cell(value: Any) -> str:
    if isinstance(value, list | tuple):
        return " ".join(str(entry) for entry in value)
    return "–" if value is None else str(value)
