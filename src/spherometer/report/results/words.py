"""Numbers, times and verdicts in the words of the page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from spherometer.recipes.verdicts import ANSWERS, Verdict

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
    if verdict.answer == "undecided" and verdict.needed is not None:
        return f"{verdict.num} numbers; about {verdict.needed:,} would decide it"
    return f"{verdict.num} number{'s' * (verdict.num != 1)}"


def tally(verdicts: Sequence[Verdict]) -> dict[str, int]:
    """How often each answer was given."""
    return {answer: sum(verdict.answer == answer for verdict in verdicts) for answer in ANSWERS}


def told(counts: Mapping[str, int]) -> str:
    """`12 hold, 1 fails, 3 are undecided`."""
    return ", ".join(f"{num} {NAMES[answer][num != 1]}" for answer, num in counts.items() if num) or "no claims"


def duration(seconds: float) -> str:
    """`45 s`, `3 min 20 s`, `2 h 05 min`."""
    if seconds < 10:
        return f"{seconds:.2g} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"


def flat(content: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested data as dotted names and words."""
    found: dict[str, str] = {}
    for name, value in content.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{name}.")
        elif isinstance(value, list | tuple):
            found[f"{prefix}{name}"] = " ".join(str(entry) for entry in value)
        else:
            found[f"{prefix}{name}"] = "–" if value is None else str(value)
    return found
