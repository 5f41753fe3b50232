"""What may be added to a loss: sizes of derivatives, each a callable `(model, inputs, targets, outputs) -> scalar`."""

from spherometer.training.penalties.input_jacobian import InputJacobianPenalty
from spherometer.training.penalties.penalty import Penalty, Term, twice_differentiable
from spherometer.training.penalties.squared_gradients import FisherPenalty, GradientNormPenalty, MeanJacobianPenalty

__all__ = [
    "FisherPenalty",
    "GradientNormPenalty",
    "InputJacobianPenalty",
    "MeanJacobianPenalty",
    "Penalty",
    "Term",
    "twice_differentiable",
]
