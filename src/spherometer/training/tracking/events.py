"""What the curves say: progressive sharpening, the edge of stability, catapults, the end of active regularisation."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from spherometer.records import Event
from spherometer.training.tracking.change_points import change_point
from spherometer.values import Estimate

WINDOW = 8  # values over which a rise is judged
SIGNIFICANT = 2.33  # one-sided 1 % of Mann and Kendall's trend statistic
RISE = 0.1  # relative rise within the window that counts as sharpening
REARM = 0.8  # a ratio below this leaves the edge behind
SPIKE = 2.0  # loss over its level before: a catapult has begun
CALMER = 0.95  # and ends when the loss is back, and the sharpness below this share of what it was
IMPURE = 0.25  # C Fig 4: active regularisation ends when the mean impurity falls below
GAIN = 10.0  # BIC: decisive evidence of a kink
DECLINE = 0.2  # share that the impurity must have lost since the kink


@dataclass
class Sharpening:
    """The sharpness rises: Mann-Kendall trend over eight values, and a rise beyond the error bars (A, Cohen et al.)."""

    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    told: bool = False

    def see(self, step: int, sharpness: Estimate) -> Iterator[Event]:
        """Told once for each rise; a fall by the same share arms it again."""
        self.steps, self.values = [*self.steps, step][-WINDOW:], [*self.values, float(sharpness)][-WINDOW:]
        first, last = self.values[0], self.values[-1]
        if self.told and last < (1 - RISE) * max(self.values):
            self.told = False
        rise = last - first
        if self.told or len(self.values) < WINDOW or rise <= max(RISE * abs(first), 2 * float(sharpness.error)):
            return
        if trend(self.values) > SIGNIFICANT:
            self.told = True
            yield Event(
                step,
                "progressive sharpening",
                f"the sharpness rose from {first:.4g} at step {self.steps[0]} to {last:.4g}",
                {"from": first, "to": last, "since": self.steps[0]},
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
class Catapult:
    """The loss shoots up, comes back, and leaves the weights in a flatter place (Lewkowycz et al. 2020)."""

    level: float | None = None  # usual loss, outside of a spike
    sharpness: float | None = None  # last seen, outside of a spike
    began: int | None = None
    peak: float = 0.0
    latest: float | None = None  # sharpness since the spike began

    def see_loss(self, step: int, loss: float) -> Iterator[Event]:
        """Every step's training loss."""
        if self.level is None or not math.isfinite(loss):
            self.level = loss if math.isfinite(loss) else self.level
            return
        if self.began is None:
            if loss > SPIKE * self.level and self.level > 0:
                self.began, self.peak, self.latest = step, loss, None
            else:
                self.level += 0.1 * (loss - self.level)
            return
        self.peak = max(self.peak, loss)
        if loss <= self.level:
            yield from self._landed(step, loss)

    def see_sharpness(self, sharpness: float) -> None:
        """Each measured sharpness."""
        if self.began is None:
            self.sharpness = sharpness
        else:
            self.latest = sharpness

    def _landed(self, step: int, loss: float) -> Iterator[Event]:
        if self.latest is None:
            return  # not measured since: wait for it
        before, after = self.sharpness, self.latest
        if before is not None and after < CALMER * before:
            yield Event(
                step,
                "catapult",
                f"the loss rose to {self.peak:.4g} in steps {self.began}-{step} and came back; "
                f"the sharpness fell from {before:.4g} to {after:.4g}",
                {"began": self.began, "peak": self.peak, "sharpness_before": before, "sharpness_after": after},
            )
        self.began, self.level, self.sharpness, self.peak = None, loss, after, 0.0


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


def trend(values: list[float]) -> float:
    """Mann and Kendall's statistic: pairs in rising order less pairs in falling order, in standard deviations."""
    number = len(values)
    pairs = [(a, b) for k, a in enumerate(values) for b in values[k + 1 :]]
    score = sum((b > a) - (b < a) for a, b in pairs)
    return score / math.sqrt(number * (number - 1) * (2 * number + 5) / 18)
