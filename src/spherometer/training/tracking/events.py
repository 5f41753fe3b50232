"""What the curves say: progressive sharpening, the edge of stability, catapults, the end of active regularisation."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median

from spherometer.records import Event
from spherometer.training.tracking.change_points import change_point
from spherometer.values import Estimate

WINDOW = 64  # last values of the sharpness, from which its noise is told
RECENT = 32  # last losses, from which level and noise are told
FEW = 5  # values whose median is a level that one odd value does not move
LEAST = 8  # values before a rise is believed
UNSURE = 4.0  # of n values the noise is taken 1 + 4/n times as large
RISE = 1.25  # factor by which the sharpness rises, or falls
BEYOND = 6.0  # standard deviations of the noise that a rise must exceed
REARM = 0.8  # a ratio below this leaves the edge behind
SPIKE = 2.0  # loss over its level: a catapult may have begun
STANDS_OUT = 3.0  # standard deviations of the noise of the loss that a spike must exceed
CALMER = 0.95  # share of the sharpness before that is left after a catapult, or less
CLEARLY = 4.0  # standard deviations of the noise of the sharpness that its fall must exceed
SETTLED = 3  # values of the sharpness after a spike that decide
REST = 50  # losses in a row that vary little: a new level
FLIGHT = 200  # losses after which a spike that has not come back is none
IMPURE = 0.25  # C Fig 4: active regularisation ends when the mean impurity falls below
GAIN = 10.0  # BIC: decisive evidence of a kink
DECLINE = 0.2  # share that the impurity must have lost since the kink


@dataclass
class Sharpening:
    """The sharpness rises by a quarter above its lowest value, with no such fall between (A, Cohen et al.).

    The number of values on the way does not matter. A rise must also exceed the error bars and six standard deviations
    of the noise from one value to the next.
    """

    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)  # logarithms
    low: float = math.inf
    high: float = math.inf
    since: int = 0
    told: bool = False

    def see(self, step: int, sharpness: Estimate) -> Iterator[Event]:
        """Told once for each rise; a fall by as much arms it again."""
        value = float(sharpness)
        if not 0 < value < math.inf:
            return
        self.steps, self.values = [*self.steps, step][-FEW:], [*self.values, math.log(value)][-WINDOW:]
        level = median(self.values[-FEW:])
        share = max(math.log(RISE), BEYOND * noise(self.values), 2 * float(sharpness.error) / value)
        if level < max(self.low, self.high - share):
            self.low, self.high, self.told, self.since = level, level, False, self.steps[len(self.steps) // 2]
        self.high = max(self.high, level)
        if self.told or len(self.values) < LEAST or level - self.low < share:
            return
        self.told = True
        first, last = math.exp(self.low), math.exp(level)
        yield Event(
            step,
            "progressive sharpening",
            f"the sharpness rose from {first:.4g} at step {self.since} to {last:.4g}",
            {"from": first, "to": last, "since": self.since},
        )


@dataclass
class Edge:
    """The sharpness the optimiser sees reaches its threshold (C Prop 5.2, Q50); left again below 0.8 of it."""

    at_edge: bool = False

    def see(self, step: int, ratio: Estimate) -> Iterator[Event]:
        """Told at each arrival."""
        if self.at_edge and float(ratio) < REARM:
            self.at_edge = False
        elif not self.at_edge and float(ratio) >= 1:
            self.at_edge = True
            yield Event(
                step,
                "edge of stability",
                f"the sharpness is {float(ratio):.4g} ± {float(ratio.error):.1g} of the largest stable one",
                {"ratio": float(ratio), "error": float(ratio.error)},
            )


@dataclass
class Flight:
    """A spike of the loss, from its first step on."""

    began: int
    level: float  # logarithm of the loss before
    height: float  # above the level at which it began
    before: float | None  # logarithm of the sharpness before
    peak: float
    losses: list[float] = field(default_factory=list)  # logarithms since it began
    landed: int | None = None
    after: list[float] = field(default_factory=list)  # logarithms of the sharpness since it landed

    def see_loss(self, step: int, loss: float) -> None:
        """It has landed when half of the height is left, and flies again when the loss is up again."""
        self.peak = max(self.peak, loss)
        self.losses = [*self.losses, loss][-FLIGHT:]
        if loss > self.level + self.height:
            self.landed, self.after = None, []
        elif self.landed is None and loss < self.level + self.height / 2:
            self.landed = step

    @property
    def lasting(self) -> bool:
        """Whether the loss has come to rest above where it was, or takes too long."""
        if self.landed is not None or len(self.losses) < REST:
            return False
        ordered = sorted(self.losses[-REST:])
        return len(self.losses) == FLIGHT or ordered[3 * REST // 4] - ordered[REST // 4] < self.height / 2


@dataclass
class Catapult:
    """The loss shoots up, soon comes back, and leaves the weights in a flatter place (Lewkowycz et al. 2020)."""

    losses: list[float] = field(default_factory=list)  # logarithms, outside of a flight
    sharpness: list[float] = field(default_factory=list)  # logarithms
    calm: list[float] = field(default_factory=list)  # of them the last outside of a flight
    flight: Flight | None = None

    def __post_init__(self) -> None:
        if isinstance(self.flight, dict):  # from plain data
            self.flight = Flight(**self.flight)

    def see_loss(self, step: int, loss: float) -> None:
        """Every step's training loss."""
        if not 0 < loss < math.inf:
            return
        value = math.log(loss)
        if self.flight is None:
            self.flight = self._took_off(step, value)
        if self.flight is not None:
            self.flight.see_loss(step, value)
        if self.flight is None or self.flight.landed is not None:
            self.losses = [*self.losses, value][-RECENT:]
        elif self.flight.lasting:
            self.losses, self.flight, self.calm = self.flight.losses[-RECENT:], None, []

    def see_sharpness(self, step: int, sharpness: float) -> Iterator[Event]:
        """Each measured sharpness; the third after the landing decides."""
        if not 0 < sharpness < math.inf:
            return
        value = math.log(sharpness)
        self.sharpness = [*self.sharpness, value][-WINDOW:]
        if self.flight is None:
            self.calm = [*self.calm, value][-FEW:]
        elif self.flight.landed is not None:
            self.flight.after.append(value)
            if len(self.flight.after) == SETTLED:
                yield from self._verdict(step, self.flight)
                self.calm, self.flight = self.flight.after, None

    def _took_off(self, step: int, loss: float) -> Flight | None:
        """A flight, where this loss stands out from the last ones."""
        if len(self.losses) < FEW:
            return None
        level = median(self.losses)
        if loss - level <= math.log(SPIKE):
            return None
        height = max(math.log(SPIKE), STANDS_OUT * noise(self.losses))
        before = median(self.calm) if self.calm else None
        return Flight(step, level, height, before, loss) if loss - level > height else None

    def _verdict(self, step: int, flight: Flight) -> Iterator[Event]:
        after = median(flight.after)
        least = max(-math.log(CALMER), CLEARLY * noise(self.sharpness))
        if flight.before is None or flight.before - after < least:
            return
        before, after, peak = math.exp(flight.before), math.exp(after), math.exp(flight.peak)
        yield Event(
            step,
            "catapult",
            f"the loss rose to {peak:.4g} in steps {flight.began}-{flight.landed} and came back; "
            f"the sharpness fell from {before:.4g} to {after:.4g}",
            {
                "began": flight.began,
                "landed": flight.landed,
                "peak": peak,
                "sharpness_before": before,
                "sharpness_after": after,
            },
        )


@dataclass
class ActiveRegularisation:
    """The end of the active regularisation period (C Sec 5.2, Fig 4), by threshold and by change point (G16)."""

    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    above: bool = False
    told: bool = False

    def see(self, step: int, impurity: float) -> Iterator[Event]:
        """Each measured mean impurity."""
        self.steps.append(step)
        self.values.append(impurity)
        if self.above and impurity < IMPURE:
            self.above = False
            yield Event(
                step,
                "end of active regularisation",
                f"the mean impurity fell to {impurity:.4g}, below {IMPURE}",
                {"impurity": impurity, "threshold": IMPURE},
            )
        self.above = self.above or impurity >= IMPURE
        if not self.told:
            yield from self._bend(step, impurity)

    def _bend(self, step: int, impurity: float) -> Iterator[Event]:
        """Looked for only after a fall, from the top of the curve on."""
        top = max(self.values)
        if impurity > (1 - DECLINE) * top:
            return
        kink = change_point(self.steps, self.values)
        if kink is None or kink.gain < GAIN or kink.after >= min(0.0, kink.before):
            return
        self.told = True
        yield Event(
            step,
            "end of active regularisation (change point)",
            f"the mean impurity bends down at step {kink.step:g} (between {kink.low:g} and {kink.high:g})",
            {"step": kink.step, "low": kink.low, "high": kink.high, "gain": kink.gain},
        )


def noise(values: Sequence[float]) -> float:
    """Standard deviation around a smooth curve, where a − 2b + c has the variance 6σ²; its median shuns jumps."""
    bends = [abs(a - 2 * b + c) for a, b, c in zip(values, values[1:], values[2:], strict=False)]
    return (1 + UNSURE / len(values)) * median(bends) / (0.6745 * math.sqrt(6)) if bends else 0.0
