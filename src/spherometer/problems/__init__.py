"""Model + loss + data -> Problem: what is differentiated, in which mode, on which samples."""

from spherometer.problems.losses import HalfSquaredError, Likelihood, likelihood_of
from spherometer.problems.problem import Evaluation, NonFiniteError, Piece, Problem, State

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
