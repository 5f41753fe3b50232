"""The detectors of a tracker together: what they are shown, and their memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from spherometer.records import Event
from spherometer.training.tracking.events import ActiveRegularisation, Catapult, Edge, Sharpening
from spherometer.values import Estimate

TURNED = 0.5  # |v'v_old|² below which the top eigenvector is another one
SMOOTHING = 0.1  # of the running mean that is the usual loss


class Watch:
    """Is shown every loss and every measurement, and tells what happened."""

    def __init__(self) -> None:
        self.sharpening, self.edge = Sharpening(), Edge()
        self.catapult, self.regularisation = Catapult(), ActiveRegularisation()
        self.usual_loss: float | None = None

    def see_loss(self, step: int, loss: float) -> None:
        """Each step's training loss."""
        if loss - loss == 0:  # finite
            usual = loss if self.usual_loss is None else self.usual_loss
            self.usual_loss = usual + SMOOTHING * (loss - usual)
        self.catapult.see_loss(step, loss)

    def see(self, step: int, by_metric: Mapping[str, Estimate]) -> Iterator[Event]:
        """What one moment's measurements say, by the metrics' own names."""
        if "sharpness" in by_metric:
            yield from self.sharpening.see(step, by_metric["sharpness"])
            yield from self.catapult.see_sharpness(step, float(by_metric["sharpness"]))
        if "impurity" in by_metric:
            yield from self.regularisation.see(step, float(by_metric["impurity"]))

    def see_overlap(self, step: int, which: str, overlap: float) -> Iterator[Event]:
        """How far a top eigenvector is still the old one."""
        if overlap**2 < TURNED:
            yield Event(
                step,
                f"new top eigenvector: {which}",
                f"the top eigenvector has only {overlap:.2g} in common with the last one measured",
                {"overlap": overlap},
            )

    def state_dict(self) -> dict[str, Any]:
        """Plain data."""
        detectors = {name: asdict(getattr(self, name)) for name in _DETECTORS}
        return detectors | {"usual_loss": self.usual_loss}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        for name, kind in _DETECTORS.items():
            setattr(self, name, kind(**state[name]))
        self.usual_loss = state["usual_loss"]


_DETECTORS: dict[str, type[Any]] = {
    "sharpening": Sharpening,
    "edge": Edge,
    "catapult": Catapult,
    "regularisation": ActiveRegularisation,
}
