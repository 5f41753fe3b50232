"""Data -> Bound: what the papers prove about coverings, printed and corrected, evaluated."""

from spherometer.theory.activations import Activation, register_activation
from spherometer.theory.cover import Cover
from spherometer.theory.covering import CoveringRadius, covering_radius
from spherometer.theory.dimension import levina_bickel, two_nearest_neighbours
from spherometer.theory.gaussian import TruncatedGaussian
from spherometer.theory.kaniel_paige import LanczosErrors, kaniel_paige, lanczos_errors
from spherometer.theory.lipschitz import LipschitzBound, LipschitzBounds, lipschitz_bounds
from spherometer.theory.radius import Radii, Radius
from spherometer.theory.statement import Bound, Forms, Hypothesis
from spherometer.theory.supports import Cube, Manifold, Pushforward, Sphere, Support
from spherometer.theory.surveys import Survey, survey
from spherometer.theory.theorems import Steepness, Theorems
from spherometer.theory.toys import DeepLinear, TwoClusters, TwoWeights
from spherometer.theory.variation import Variation, jacobian_variation

__all__ = [
    "Activation",
    "Bound",
    "Cover",
    "CoveringRadius",
    "Cube",
    "DeepLinear",
    "Forms",
    "Hypothesis",
    "LanczosErrors",
    "LipschitzBound",
    "LipschitzBounds",
    "Manifold",
    "Pushforward",
    "Radii",
    "Radius",
    "Sphere",
    "Steepness",
    "Support",
    "Survey",
    "Theorems",
    "TruncatedGaussian",
    "TwoClusters",
    "TwoWeights",
    "Variation",
    "covering_radius",
    "jacobian_variation",
    "kaniel_paige",
    "lanczos_errors",
    "levina_bickel",
    "lipschitz_bounds",
    "register_activation",
    "survey",
    "two_nearest_neighbours",
]
