"""Problem -> Operator: matrices known by their action."""

from spherometer.operators.congruence import Rescaled, RowMixed
from spherometer.operators.curvature import CurvatureOperator
from spherometer.operators.draws import random_gradient
from spherometer.operators.gauss_newton import EmpiricalFisher, Fisher, GaussNewton
from spherometer.operators.hessian import Hessian
from spherometer.operators.hessian_variance import HessianVariance
from spherometer.operators.jacobian_gram import JacobianGram
from spherometer.operators.mean_jacobian import MeanJacobianGram
from spherometer.operators.operator import Operator, Preconditioned
from spherometer.operators.output_jacobian import OutputJacobian
from spherometer.operators.support import DerivativeError
from spherometer.operators.tangent_kernel import TangentKernel

__all__ = [
    "CurvatureOperator",
    "DerivativeError",
    "EmpiricalFisher",
    "Fisher",
    "GaussNewton",
    "Hessian",
    "HessianVariance",
    "JacobianGram",
    "MeanJacobianGram",
    "Operator",
    "OutputJacobian",
    "Preconditioned",
    "Rescaled",
    "RowMixed",
    "TangentKernel",
    "random_gradient",
]
