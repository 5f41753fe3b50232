"""Round numbers for logarithmic axes."""

from __future__ import annotations

import math
from collections.abc import Sequence


def log_ticks(values: Sequence[float]) -> list[float]:
    """1, 2, 5, 10, ... over the range of some positive values.

    Example:
        >>> log_ticks([0.03, 0.5])
        [0.05, 0.1, 0.2, 0.5]
    """
    low, high = min(values), max(values)
    if not 0 < low < high:
        return [high]
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = (round(digit * 10.0**power, 12) for power in decades for digit in (1, 2, 5))
    return [tick for tick in ticks if low <= tick <= high]
