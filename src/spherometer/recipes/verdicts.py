"""What a claim came to: an answer, an effect with its interval, and how much it is worth."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, Self, get_args

Answer = Literal["holds", "fails", "undecided"]
ANSWERS: tuple[Answer, ...] = get_args(Answer)


@dataclass(frozen=True)
class Verdict:
    """The answer to a sentence of a paper.

    Args:
        effect: mean margin, correlation or smallest margin, with its interval from `low` to `high`.
        p: corrected for the other claims of the recipe; None for a statement that is no matter of chance.
        num: how many numbers it rests on.
        needed: about how many would decide it; None when that cannot be said, or nothing is to be decided.
        least: the sentence says that the effect is above this, and below `most`; None is no border on that side.
    """

    sentence: str
    source: str
    answer: Answer
    effect: float
    low: float
    high: float
    unit: str
    p: float | None
    num: int
    needed: int | None = None
    remark: str = ""
    least: float | None = 0.0
    most: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; what it cannot hold (inf, nan) becomes a word."""
        return {
            name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in vars(self).items()
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """What `to_dict` wrote; anything else is a ValueError."""
        try:
            entries = {field.name: content[field.name] for field in fields(cls)}
            for name in ("effect", "low", "high"):
                entries[name] = float(entries[name])
            for name in ("p", "least", "most"):
                entries[name] = None if entries[name] is None else float(entries[name])
        except (KeyError, TypeError) as error:
            raise ValueError(f"expected a verdict, got something else: {error!r}") from None
        if entries["answer"] not in ANSWERS:
            raise ValueError(f"expected an answer of {', '.join(ANSWERS)}, got {entries['answer']!r}")
        return cls(**entries)
