"""When a probe is due."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass


@dataclass(frozen=True)
class Moment:
    """What a schedule may look at: the step, the end of an epoch, and the loss beside its usual size."""

    step: int
    first: bool = False
    epoch_ended: bool = False
    loss: float | None = None
    usual_loss: float | None = None


class Schedule(ABC):
    """Says whether it is time; `a | b` is due when one of them is."""

    @abstractmethod
    def due(self, moment: Moment) -> bool:
        """Whether to measure now."""

    def __or__(self, other: Schedule) -> Schedule:
        return _Either(self, other)


@dataclass(frozen=True)
class Every(Schedule):
    """Once in so many steps, and at the first of all."""

    steps: int

    def __post_init__(self) -> None:
        if not isinstance(self.steps, int) or isinstance(self.steps, bool) or self.steps < 1:
            raise ValueError(f"expected a whole number of steps of at least 1, got {self.steps!r}")

    def due(self, moment: Moment) -> bool:
        """At multiples of `steps`."""
        return not moment.epoch_ended and (moment.first or moment.step % self.steps == 0)


@dataclass(frozen=True)
class Within(Schedule):
    """Another schedule, but only between pairs of steps, both ends included; and at the first of all."""

    schedule: Schedule
    ends: tuple[int, ...]

    def due(self, moment: Moment) -> bool:
        """Inside a window, when the schedule says so."""
        inside = any(low <= moment.step <= high for low, high in zip(self.ends[::2], self.ends[1::2], strict=True))
        return self.schedule.due(moment) and (inside or moment.first)


@dataclass(frozen=True)
class LogSpaced(Schedule):
    """Evenly on a logarithmic axis: steps round(10^(k/per_decade)), and the first."""

    per_decade: int = 10

    def __post_init__(self) -> None:
        if not isinstance(self.per_decade, int) or self.per_decade < 1:
            raise ValueError(f"expected per_decade as a whole number of at least 1, got {self.per_decade!r}")

    def due(self, moment: Moment) -> bool:
        """At the steps nearest to powers of 10^(1/per_decade)."""
        if moment.epoch_ended:
            return False
        if moment.first or moment.step < 1:
            return moment.first
        place = round(self.per_decade * math.log10(moment.step))
        return any(round(10 ** (k / self.per_decade)) == moment.step for k in (place - 1, place, place + 1))


@dataclass(frozen=True)
class EpochEnds(Schedule):
    """When `tracker.end_epoch()` is called."""

    def due(self, moment: Moment) -> bool:
        """At the end of an epoch."""
        return moment.epoch_ended


@dataclass(frozen=True)
class LossJumps(Schedule):
    """When the training loss is `factor` times its usual size, or not finite; needs `tracker.step(..., loss=...)`."""

    factor: float = 2.0

    def __post_init__(self) -> None:
        if not self.factor > 1:
            raise ValueError(f"expected a factor above 1, got {self.factor!r}")

    def due(self, moment: Moment) -> bool:
        """When the loss stands out from its running mean."""
        if moment.loss is None or moment.usual_loss is None or moment.epoch_ended:
            return False
        return not math.isfinite(moment.loss) or moment.loss > self.factor * moment.usual_loss


@dataclass(frozen=True)
class _Either(Schedule):
    first: Schedule
    second: Schedule

    def due(self, moment: Moment) -> bool:
        return self.first.due(moment) or self.second.due(moment)


def as_schedule(wanted: Schedule | int | str) -> Schedule:
    """A schedule from a number of steps or a word."""
    if isinstance(wanted, Schedule):
        return wanted
    words: dict[str, Schedule] = {"log": LogSpaced(), "epoch": EpochEnds(), "jump": LossJumps()}
    if isinstance(wanted, str):
        if wanted not in words:
            raise ValueError(f"expected a number of steps, a Schedule, or one of {', '.join(words)}, got {wanted!r}")
        return words[wanted]
    return Every(wanted)
