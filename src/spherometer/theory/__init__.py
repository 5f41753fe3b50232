"""Data -> Bound: what the papers prove about coverings, printed and corrected, evaluated."""

from spherometer.theory.covering import CoveringRadius, covering_radius
from spherometer.theory.dimension import levina_bickel, two_nearest_neighbours
from spherometer.theory.radius import Radii, Radius
from spherometer.theory.supports import Cube, Manifold, Pushforward, Sphere, Support

__all__ = [
    "CoveringRadius",
    "Cube",
    "Manifold",
    "Pushforward",
    "Radii",
    "Radius",
    "Sphere",
    "Support",
    "covering_radius",
    "levina_bickel",
    "two_nearest_neighbours",
]
