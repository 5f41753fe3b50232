"""Random vectors whose covariance is a curvature matrix: one backward pass each."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from spherometer.operators.gauss_newton import EmpiricalFisher
from spherometer.problems.losses import terms_are_positions
from spherometer.problems.modes import differentiating
from spherometer.problems.problem import refuse_no_terms
from spherometer.problems.weights import flatten


def random_gradient(fisher: EmpiricalFisher, generator: Generator) -> Tensor:
    """s = N^(−1/2) Σ ε_i g_i with random signs ε over the loss terms, so that E[s s'] = ⟨g g'⟩."""
    problem, state = fisher.problem, fisher.state
    total, terms = torch.zeros(fisher.shape[0], dtype=fisher.dtype, device=fisher.device), 0.0
    for piece in problem.pieces(fisher.plan.piece_size):
        with differentiating():
            part = problem.evaluate(state, piece)
            root = fisher._roots(part, piece)[0]
            positions = terms_are_positions(problem.loss, part.outputs)
            shape = [1 if axis == 1 or (axis > 1 and not positions) else n for axis, n in enumerate(root.shape)]
            signs = torch.randint(0, 2, shape, generator=generator).to(root).mul_(2).sub_(1)
            total += flatten(torch.autograd.grad(part.outputs, state.weights, signs * root, materialize_grads=True))
        terms += part.count
    refuse_no_terms(terms)
    return total / terms**0.5
