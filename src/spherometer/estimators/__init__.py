"""Numbers about a matrix known by its action, each with its error bar; nothing here knows of networks."""

from spherometer.estimators.density import SpectralDensity, spectral_density
from spherometer.estimators.diagonals import diagonal
from spherometer.estimators.extremes import eigenvalues
from spherometer.estimators.following import follow
from spherometer.estimators.nearby import Nearby
from spherometer.estimators.quadratic import frobenius, trace

__all__ = [
    "Nearby",
    "SpectralDensity",
    "diagonal",
    "eigenvalues",
    "follow",
    "frobenius",
    "spectral_density",
    "trace",
]
