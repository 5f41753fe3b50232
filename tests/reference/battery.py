"""One of every operator, for the laws that hold for all of them."""

from __future__ import annotations

import torch
from torch import Tensor

from spherometer.operators import (
    EmpiricalFisher,
    Fisher,
    GaussNewton,
    Hessian,
    HessianVariance,
    JacobianGram,
    MeanJacobianGram,
    Operator,
    OutputJacobian,
    Preconditioned,
    Rescaled,
    RowMixed,
    TangentKernel,
)
from spherometer.problems import Problem


def every_operator(problem: Problem) -> list[Operator]:
    """All that the package has; those that need samples which do not see each other, where they do not."""
    H, G = Hessian(problem), GaussNewton(problem)
    scale = torch.linspace(0.5, 2, problem.num_parameters, dtype=torch.float64)
    found = [
        H,
        G,
        Fisher(problem),
        Fisher(problem, samples=2),
        EmpiricalFisher(problem),
        JacobianGram(problem),
        H + G,
        H - G,
        2.0 * H,
        G.shifted(0.1),
        Preconditioned(G, scale),
        Rescaled(G, scale),
        _row_mixed(problem),
        H.block(problem.names[0]),
    ]
    if problem.splittable:
        batch = next(iter(problem.batches))
        halves = [tuple(part[:2] for part in batch), tuple(part[2:] for part in batch)]
        found += [OutputJacobian(problem), TangentKernel(problem), MeanJacobianGram(OutputJacobian(problem))]
        found += [HessianVariance(problem, halves)]
    return found


def _row_mixed(problem: Problem) -> Operator:
    name = next(name for name, shape in problem.shapes.items() if len(shape) == 2)
    return RowMixed(GaussNewton(problem.select(name)), problem.model.get_parameter(name))


def block_for(operator: Operator, num: int = 2) -> Tensor:
    """A block of columns that fits."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(operator.shape[1], num, generator=generator, dtype=torch.float64).to(operator.dtype)
