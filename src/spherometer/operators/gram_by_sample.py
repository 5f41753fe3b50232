"""Gram matrices of each sample's own Jacobian where no closed form is known: one sample after the other."""

from __future__ import annotations

import torch
from torch import Tensor

from spherometer.operators.output_jacobian import OutputJacobian
from spherometer.problems.modes import differentiating
from spherometer.problems.weights import flatten


def gram_by_sample(jacobian: OutputJacobian) -> Tensor:
    """K_ii = J_i J_i' (N, C, C) by C backward passes for every single sample: exact on any model, and slow.

    Where `forward` lays the tokens of sequences one below the other, each of them is a sample here.

    `sensitivity` has it from C backward passes over whole batches where every layer has a closed form.
    """
    problem, state = jacobian.problem, jacobian.state
    if not problem.splittable:
        raise ValueError(
            "a Jacobian of each sample needs samples that do not see each other: use batchnorm='eval' and dropout=None"
        )
    grams = []
    for piece in problem.pieces(1):
        with differentiating():
            for outputs in problem.outputs(state, piece)[0]:
                rows = [
                    flatten(torch.autograd.grad(entry, state.weights, retain_graph=True, materialize_grads=True))
                    for entry in outputs
                ]
                matrix = torch.stack(rows).double()
                grams.append(matrix @ matrix.T)
    return torch.stack(grams)
