"""Problem -> Operator: matrices known by their action."""

from spherometer.operators.curvature import CurvatureOperator
from spherometer.operators.gauss_newton import EmpiricalFisher, Fisher, GaussNewton
from spherometer.operators.hessian import Hessian
from spherometer.operators.operator import Operator, Preconditioned
from spherometer.operators.support import DerivativeError

__all__ = [
    "CurvatureOperator",
    "DerivativeError",
    "EmpiricalFisher",
    "Fisher",
    "GaussNewton",
    "Hessian",
    "Operator",
    "Preconditioned",
]
