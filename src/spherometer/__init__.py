"""Spherometer measures the geometry of neural networks; every number carries its error bar and its cost."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spherometer.estimators import (
        SpectralDensity,
        diagonal,
        eigenvalues,
        frobenius,
        spectral_density,
        trace,
    )
    from spherometer.metrics import (
        Measurement,
        Measurements,
        Metric,
        accuracy_gap,
        distance,
        generalisation_gap,
        measure,
        metrics,
        preconditioned_sharpness,
        preconditioner,
        stability_threshold_of,
    )
    from spherometer.operators import EmpiricalFisher, Fisher, GaussNewton, Hessian, Operator, Preconditioned
    from spherometer.problems import HalfSquaredError, Problem
    from spherometer.records import export_runs, read_runs
    from spherometer.training import Probe, Tracker, optim
    from spherometer.values import Estimate, Status

__version__ = "0.1.0"

__all__ = [  # noqa: RUF022  grouped as a reader looks for them
    # what is measured
    "HalfSquaredError",
    "Problem",
    # matrices known by their action
    "EmpiricalFisher",
    "Fisher",
    "GaussNewton",
    "Hessian",
    "Operator",
    "Preconditioned",
    # numbers about a matrix
    "SpectralDensity",
    "diagonal",
    "eigenvalues",
    "frobenius",
    "spectral_density",
    "trace",
    # named quantities
    "Measurement",
    "Measurements",
    "Metric",
    "accuracy_gap",
    "distance",
    "generalisation_gap",
    "measure",
    "metrics",
    "preconditioned_sharpness",
    "preconditioner",
    "stability_threshold_of",
    # training methods
    "optim",
    # in a training loop
    "Probe",
    "Tracker",
    # runs on disk
    "export_runs",
    "read_runs",
    # a number and its state
    "Estimate",
    "Status",
]

# Public names are fetched when first used: `spherometer --help` needs no torch, which takes seconds to import.
_HOMES = ("values", "problems", "operators", "estimators", "metrics", "records", "training")


def __getattr__(name: str) -> Any:
    if name == "metrics":
        return import_module("spherometer.metrics")  # a folder that can be called: the catalogue
    if name == "optim":
        return import_module("spherometer.training.optim")
    if name in __all__:
        for home in _HOMES:
            found = getattr(import_module(f"spherometer.{home}"), name, None)
            if found is not None:
                globals()[name] = found
                return found
    raise AttributeError(f"module 'spherometer' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
