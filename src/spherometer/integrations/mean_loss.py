"""The loss of an update whose gradient was accumulated over several batches."""

from __future__ import annotations

from numbers import Real
from typing import Any

from torch import Tensor


class MeanLoss:
    """The mean of the losses told since the last update; what is not one number is passed over."""

    def __init__(self) -> None:
        self._told: list[Any] = []

    def see(self, loss: Any) -> None:
        """The loss of one batch."""
        if isinstance(loss, Tensor) and loss.numel() == 1:
            self._told.append(loss.detach())
        elif isinstance(loss, Real):
            self._told.append(loss)

    def take(self) -> float | None:
        """The mean, None where nothing was told; then from the beginning."""
        told, self._told = self._told, []
        return float(sum(told)) / len(told) if told else None
