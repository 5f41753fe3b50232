"""Model + loss + data -> Problem: what is differentiated, in which mode, on which samples."""

from spherometer.problems.losses import HalfSquaredError, Likelihood, likelihood_of
from spherometer.problems.pieces import Evaluation, NonFiniteError, Piece, State
from spherometer.problems.problem import Problem

__all__ = [
    "Evaluation",
    "HalfSquaredError",
    "Likelihood",
    "NonFiniteError",
    "Piece",
    "Problem",
    "State",
    "likelihood_of",
]
