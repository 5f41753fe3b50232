"""Problem -> Measurement: the named quantities of the papers, one registry."""

from spherometer.metrics import (  # noqa: F401  each enters its quantities into the catalogue
    alignment,
    curvature,
    decomposition,
    layers,
    logits,
    noise,
    relative_flatness,
    scale,
    stability,
    weight_jacobian,
    worst_case,
)
from spherometer.metrics.bench import Bench
from spherometer.metrics.measure import Measurement, Measurements, measure
from spherometer.metrics.optimizers import preconditioned_sharpness, preconditioner, stability_threshold_of
from spherometer.metrics.registry import Metric, metric, metrics

__all__ = [
    "Bench",
    "Measurement",
    "Measurements",
    "Metric",
    "measure",
    "metric",
    "metrics",
    "preconditioned_sharpness",
    "preconditioner",
    "stability_threshold_of",
]
