"""What options of metrics may be; each refusal says what was expected, what came, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any


def check_positive(name: str, value: Any, why: str) -> None:
    """Refuse a number that is not positive and finite."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not (isfinite(value) and value > 0):
        raise ValueError(f"expected {name} > 0 and finite, got {value!r}: {why}")


def check_count(name: str, value: Any, least: int, why: str) -> None:
    """Refuse what is not a whole number of at least `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"expected {name} as a whole number of at least {least}, got {value!r}: {why}")


def check_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    """Refuse a word that is not one of the choices."""
    if value not in choices:
        raise ValueError(f"expected {name} to be one of {', '.join(map(repr, choices))}, got {value!r}")


def check_batch_size(value: Any, num_samples: int) -> None:
    """Refuse a batch that the data cannot fill."""
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= num_samples:
        raise ValueError(
            f"expected batch_size from 1 to the {num_samples} samples of the problem, got {value!r}: "
            "take smaller batches or more data"
        )


def check_momentum(value: Any) -> None:
    """Refuse a momentum that gradient descent does not survive."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1:
        raise ValueError(f"expected 0 <= momentum < 1, got {value!r}: 0 is plain gradient descent")
