"""What may be added to a loss: sizes of derivatives, each a callable `(model, inputs, targets, outputs) -> scalar`."""

from spherometer.training.penalties.input_jacobian import InputJacobianPenalty
from spherometer.training.penalties.norms import DecomposedNorms
from spherometer.training.penalties.penalty import Penalty, Term, differentiable
from spherometer.training.penalties.squared_gradients import FisherPenalty, GradientNormPenalty, MeanJacobianPenalty

__all__ = [
    "DecomposedNorms",
    "FisherPenalty",
    "GradientNormPenalty",
    "InputJacobianPenalty",
    "MeanJacobianPenalty",
    "Penalty",
    "Term",
    "differentiable",
]
