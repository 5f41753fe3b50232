"""How much of the time tracking takes, and whether the next measurement still fits into the budget."""

from __future__ import annotations

import time
from numbers import Real


class Clock:
    """Seconds inside and outside of the tracker since its first step; a budget is a share of those outside."""

    def __init__(self, budget: float | None) -> None:
        if budget is not None and not (isinstance(budget, Real) and budget > 0):
            raise ValueError(f"expected a budget above 0, such as 0.1 for 10 % of the training time, got {budget!r}")
        self.budget, self.spent = budget, 0.0
        self._origin: float | None = None

    def affords(self, seconds: float, began: float) -> bool:
        """Whether so many more fit; `began` is when the tracker was entered."""
        if self.budget is None:
            return True
        inside = self.spent + time.perf_counter() - began
        return inside + seconds <= self.budget * self.outside(began)

    def outside(self, began: float) -> float:
        """Seconds of training so far."""
        return 0.0 if self._origin is None else began - self._origin - self.spent

    def overhead(self, began: float) -> float:
        """Seconds of tracking over seconds of training; 0 before there was any."""
        outside = self.outside(began)
        return (self.spent + time.perf_counter() - began) / outside if outside > 0 else 0.0

    def leave(self, began: float) -> None:
        """The tracker gives the time back to training."""
        if self._origin is None:
            self._origin = began
        self.spent += time.perf_counter() - began
