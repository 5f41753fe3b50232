"""Spherometer measures the geometry of neural networks; every number carries its error bar and its cost."""

from spherometer.operators import EmpiricalFisher, Fisher, GaussNewton, Hessian, Operator, Preconditioned
from spherometer.problems import HalfSquaredError, Problem
from spherometer.values import Estimate, Status

__version__ = "0.1.0"

__all__ = [
    "EmpiricalFisher",
    "Estimate",
    "Fisher",
    "GaussNewton",
    "HalfSquaredError",
    "Hessian",
    "Operator",
    "Preconditioned",
    "Problem",
    "Status",
]
