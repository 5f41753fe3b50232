"""Spherometer measures the geometry of neural networks; every number carries its error bar and its cost."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spherometer.operators import EmpiricalFisher, Fisher, GaussNewton, Hessian, Operator, Preconditioned
    from spherometer.problems import HalfSquaredError, Problem
    from spherometer.values import Estimate, Status

__version__ = "0.1.0"

__all__ = [
    "EmpiricalFisher",
    "Estimate",
    "Fisher",
    "GaussNewton",
    "HalfSquaredError",
    "Hessian",
    "Operator",
    "Preconditioned",
    "Problem",
    "Status",
]

# Public names are fetched when first used: `spherometer --help` needs no torch, which takes seconds to import.
_HOMES = ("values", "problems", "operators")


def __getattr__(name: str) -> Any:
    if name in __all__:
        for home in _HOMES:
            found = getattr(import_module(f"spherometer.{home}"), name, None)
            if found is not None:
                globals()[name] = found
                return found
    raise AttributeError(f"module 'spherometer' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
