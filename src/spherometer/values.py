"""The plain frozen data that every folder may import: a number, its error bar, its cost and its state."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

Source = Literal["exact", "solver", "random vectors", "data sample", "training seeds"]
Kind = Literal["bound", "standard error"]


@dataclass(frozen=True)
class Status:
    """Whether a numerical method got where it was asked to go, and if not, by how much it missed and what to do."""

    converged: bool = True
    message: str = ""

    def __bool__(self) -> bool:
        return self.converged


@dataclass(frozen=True, eq=False)
class Estimate:
    """A number (or a vector of numbers) that never travels without its error bar and its cost.

    Example:
        >>> Estimate(2.0, 0.1, "standard error", "random vectors", products=30)
        2 ± 0.1 (standard error, random vectors; 30 products)
    """

    value: float | Tensor
    error: float | Tensor = 0.0
    kind: Kind = "bound"
    source: Source = "exact"
    products: int = 0
    seconds: float = 0.0
    status: Status = Status()
    vectors: Tensor | None = None
    interval: tuple[float, float] | None = None  # 95 % over data samples, when asked for
    labels: tuple[str, ...] = ()  # what the entries of a vector belong to
    note: str = ""  # what was left out, or how the number was come by

    def __float__(self) -> float:
        return float(self.value)

    def __repr__(self) -> str:
        cost = f"{self.products} product{'' if self.products == 1 else 's'}"
        origin = "exact" if self.source == "exact" else f"{self.kind}, {self.source}"
        warning = "" if self.status else f"; NOT CONVERGED: {self.status.message}"
        return f"{format_with_error(self.value, self.error)} ({origin}; {cost}{warning})"

    def entry(self, index: int = 0) -> Estimate:
        """One entry of a vector of numbers as a plain number, without the eigenvectors."""
        value, error = self._entries
        return replace(
            self, value=float(value.flatten()[index]), error=float(error.flatten()[index]), vectors=None, labels=()
        )

    def first(self, num: int) -> Estimate:
        """The first `num` entries of a vector of numbers, without the eigenvectors."""
        value, error = self._entries
        return replace(self, value=value[:num], error=error[:num], vectors=None, labels=self.labels[:num])

    @property
    def _entries(self) -> tuple[Tensor, Tensor]:
        """Values, and an error for each."""
        value = torch.as_tensor(self.value)
        return value, torch.as_tensor(self.error).expand_as(value)

    def scaled(self, factor: float) -> Estimate:
        """The same estimate of `factor` times the quantity."""
        interval = None if self.interval is None else tuple(sorted(factor * end for end in self.interval))
        return replace(self, value=factor * self.value, error=abs(factor) * self.error, interval=interval)  # type: ignore[arg-type]

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and strings, ready for JSON; eigenvectors are left out."""
        return {
            "value": as_plain(self.value),
            "error": as_plain(self.error),
            "kind": self.kind,
            "source": self.source,
            "products": self.products,
            "seconds": self.seconds,
            "converged": self.status.converged,
            "message": self.status.message,
            "interval": None if self.interval is None else [as_plain(end) for end in self.interval],
            "labels": list(self.labels),
            "note": self.note,
        }


def as_plain(value: float | Tensor) -> Any:
    """A float or nested list of floats; what JSON cannot hold (inf, nan) becomes a string."""
    if isinstance(value, Tensor):
        return as_plain(value.item()) if value.ndim == 0 else [as_plain(entry) for entry in value]
    return value if math.isfinite(value) else str(value)


def format_with_error(value: float | Tensor, error: float | Tensor) -> str:
    """`12.26 ± 0.02`: the error to two digits, the value to the same place."""
    if isinstance(value, Tensor) and value.ndim > 0:
        errors = error.flatten().tolist() if isinstance(error, Tensor) else [error] * value.numel()
        pairs = list(zip(value.flatten().tolist(), errors, strict=True))
        shown = ", ".join(format_with_error(one, bar) for one, bar in pairs[:10])
        return f"[{shown}{', ...' if len(pairs) > 10 else ''}]"
    value, error = float(value), float(error)
    if not (math.isfinite(value) and math.isfinite(error)) or error == 0:
        return f"{value:.6g}" if error == 0 else f"{value:.6g} ± {error:.2g}"
    digits = max(1, math.floor(math.log10(abs(value))) - math.floor(math.log10(error)) + 2) if value else 2
    return f"{value:.{min(digits, 12)}g} ± {error:.2g}"
