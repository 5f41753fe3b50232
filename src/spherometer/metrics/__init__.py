"""Problem -> Measurement: the named quantities of the papers, one registry."""

import sys
from types import ModuleType

from spherometer.metrics import (  # noqa: F401  each enters its quantities into the catalogue
    alignment,
    bounds,
    compression,
    curvature,
    curvature_bounds,
    decomposition,
    inputs,
    layers,
    logits,
    noise,
    normalised_sharpness,
    outputs,
    relative_flatness,
    scale,
    sharpening,
    stability,
    weight_jacobian,
    worst_case,
)
from spherometer.metrics.bench import Bench
from spherometer.metrics.measure import Measurement, Measurements, measure
from spherometer.metrics.optimizers import preconditioned_sharpness, preconditioner, stability_threshold_of
from spherometer.metrics.outputs import accuracy_gap, distance, generalisation_gap
from spherometer.metrics.registry import Metric, metric, metrics

__all__ = [
    "Bench",
    "Measurement",
    "Measurements",
    "Metric",
    "accuracy_gap",
    "distance",
    "generalisation_gap",
    "measure",
    "metric",
    "metrics",
    "preconditioned_sharpness",
    "preconditioner",
    "stability_threshold_of",
]


class _Catalogue(ModuleType):
    """This folder and the catalogue share a name: `spherometer.metrics()` is `spherometer.metrics.metrics()`."""

    def __call__(self) -> dict[str, Metric]:
        return metrics()


sys.modules[__name__].__class__ = _Catalogue
