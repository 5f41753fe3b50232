"""What one product costs in several forms of the same operator."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping

import torch

from spherometer.operators import Operator


def product_times(operators: Mapping[str, Operator], rounds: int) -> dict[str, float]:
    """Median seconds of a product with each; they take turns, after one that builds the graphs."""
    vector = torch.randn(next(iter(operators.values())).shape[1], generator=torch.Generator().manual_seed(0))
    spent: dict[str, list[float]] = {label: [] for label in operators}
    for turn in range(rounds + 1):
        for label, operator in operators.items():
            began = time.perf_counter()
            operator @ vector
            if turn:
                spent[label].append(time.perf_counter() - began)
    return {label: statistics.median(seconds) for label, seconds in spent.items()}
