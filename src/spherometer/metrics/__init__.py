"""Problem -> Measurement: the named quantities of the papers, one registry."""

from spherometer.metrics import curvature
from spherometer.metrics.bench import Bench
from spherometer.metrics.measure import Measurement, Measurements, measure
from spherometer.metrics.registry import Metric, metric, metrics

__all__ = ["Bench", "Measurement", "Measurements", "Metric", "measure", "metric", "metrics"]
