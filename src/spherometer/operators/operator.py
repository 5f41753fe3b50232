"""Matrices known only by their action, and the algebra of such matrices."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor


class Operator(ABC):
    """A matrix known only by its action; a subclass writes `_apply`, callers write `A @ v`.

    The optional answers (`start`, `rounding`, `core`, `exact_trace`, `exact_diagonal`) let an estimator use what an
    operator happens to know; None means that it knows nothing.
    """

    symmetric: bool = True
    positive: bool = False
    terms_norm: float = 0.0  # of a sum: the largest ‖Av‖/‖v‖ of its terms so far, whose rounding is its own

    def __init__(self, shape: tuple[int, int], dtype: torch.dtype, device: torch.device) -> None:
        self.shape, self.dtype, self.device = shape, dtype, device

    @abstractmethod
    def _apply(self, columns: Tensor) -> Tensor:  # (num_columns, k) -> (num_rows, k)
        ...

    def __matmul__(self, other: Any) -> Any:
        vector = torch.as_tensor(other)
        if vector.ndim not in (1, 2) or len(vector) != self.shape[1]:
            raise ValueError(
                f"expected a vector ({self.shape[1]},) or a block of columns ({self.shape[1]}, k), "
                f"got shape {tuple(vector.shape)}"
            )
        columns = vector.to(self.device, self.dtype).reshape(len(vector), -1)
        with torch.autocast(self.device.type, enabled=False):
            result = self._apply(columns.detach())
        result = result.reshape(self.shape[0]) if vector.ndim == 1 else result
        return result if isinstance(other, Tensor) else result.cpu().numpy()

    def start(self) -> Tensor | None:
        """A vector that is likely to lean towards the top eigenvectors, when one is at hand."""
        return None

    def rounding(self, columns: Tensor) -> Tensor | None:  # noqa: ARG002
        """Absolute error (k,) of v'Av that the arithmetic of this dtype makes, for unit columns v of a block (n, k),
        when it is known.
        """
        return None

    def core(self) -> Operator | None:
        """A smaller matrix C with A = UCU' and U'U = I, which has `lift(c)` = Uc, `drop(v)` = U'v and a number `frame`
        that stands for U; when there is one.
        """
        return None

    def exact_trace(self) -> float | None:
        """The trace, when there is a way to it that is exact and cheap."""
        return None

    def exact_diagonal(self) -> Tensor | None:
        """The diagonal, when there is a way to it that is exact and cheap."""
        return None

    def __add__(self, other: Operator) -> Operator:
        return Sum(self, other) if isinstance(other, Operator) else NotImplemented

    def __sub__(self, other: Operator) -> Operator:
        return Sum(self, Scaled(other, -1.0)) if isinstance(other, Operator) else NotImplemented

    def __mul__(self, factor: float) -> Operator:
        return Scaled(self, float(factor)) if isinstance(factor, int | float) else NotImplemented

    __rmul__ = __mul__

    def __truediv__(self, divisor: float) -> Operator:
        return Scaled(self, 1 / divisor) if isinstance(divisor, int | float) else NotImplemented

    def __neg__(self) -> Operator:
        return Scaled(self, -1.0)

    def shifted(self, by: float) -> Operator:
        """A + by·I; the Hessian with weight decay γ is `Hessian(problem).shifted(γ)` (T15)."""
        return Shifted(self, by)

    def dense(self) -> Tensor:
        """The whole matrix, by one product per column; for small operators."""
        return self @ torch.eye(self.shape[1], dtype=self.dtype, device=self.device)

    def to_scipy(self) -> Any:
        """The same matrix for SciPy's solvers."""
        from scipy.sparse.linalg import LinearOperator

        name = str(self.dtype).removeprefix("torch.")
        forward = self.__matmul__
        back = forward if self.symmetric else None
        return LinearOperator(self.shape, matvec=forward, matmat=forward, rmatvec=back, rmatmat=back, dtype=name)


class Sum(Operator):
    """A + B."""

    def __init__(self, first: Operator, second: Operator) -> None:
        if first.shape != second.shape:
            raise ValueError(f"expected operators of one shape, got {first.shape} and {second.shape}")
        super().__init__(first.shape, first.dtype, first.device)
        self.first, self.second = first, second
        self.symmetric = first.symmetric and second.symmetric
        self.positive = first.positive and second.positive

    def _apply(self, columns: Tensor) -> Tensor:
        terms = self.first @ columns, (self.second @ columns).to(self.device, self.dtype)
        lengths = [torch.linalg.vector_norm(part, dim=0) for part in (*terms, columns)]
        ratios = (lengths[0] + lengths[1]) / lengths[2].clamp_min(torch.finfo(self.dtype).tiny)
        self.terms_norm = max(self.terms_norm, float(ratios.max()) if ratios.numel() else 0.0)
        return terms[0] + terms[1]

    def start(self) -> Tensor | None:
        """The first operand's leaning vector, or the second's."""
        start = self.first.start()
        return self.second.start() if start is None else start

    def rounding(self, columns: Tensor) -> Tensor | None:
        """The sum of the operands' own."""
        parts = [part for part in (self.first.rounding(columns), self.second.rounding(columns)) if part is not None]
        return torch.stack(parts).sum(0) if parts else None

    def exact_trace(self) -> float | None:
        """tr A + tr B."""
        parts = (self.first.exact_trace(), self.second.exact_trace())
        return None if None in parts else sum(parts)  # type: ignore[arg-type]

    def exact_diagonal(self) -> Tensor | None:
        """diag A + diag B."""
        first, second = self.first.exact_diagonal(), self.second.exact_diagonal()
        return None if first is None or second is None else first + second


class Scaled(Operator):
    """c·A."""

    def __init__(self, operator: Operator, factor: float) -> None:
        super().__init__(operator.shape, operator.dtype, operator.device)
        self.operator, self.factor = operator, factor
        self.symmetric, self.positive = operator.symmetric, operator.positive and factor >= 0

    def _apply(self, columns: Tensor) -> Tensor:
        return self.factor * (self.operator @ columns)

    def start(self) -> Tensor | None:
        """The same leaning vector."""
        return self.operator.start()

    def rounding(self, columns: Tensor) -> Tensor | None:
        """|c| times the operator's own."""
        rounding = self.operator.rounding(columns)
        return None if rounding is None else abs(self.factor) * rounding

    def exact_trace(self) -> float | None:
        """c·tr A."""
        trace = self.operator.exact_trace()
        return None if trace is None else self.factor * trace

    def exact_diagonal(self) -> Tensor | None:
        """c·diag A."""
        diagonal = self.operator.exact_diagonal()
        return None if diagonal is None else self.factor * diagonal


class Shifted(Operator):
    """A + c·I."""

    def __init__(self, operator: Operator, by: float) -> None:
        if operator.shape[0] != operator.shape[1]:
            raise ValueError(f"expected a square operator to shift, got shape {operator.shape}")
        super().__init__(operator.shape, operator.dtype, operator.device)
        self.operator, self.by = operator, by
        self.symmetric, self.positive = operator.symmetric, operator.positive and by >= 0

    def _apply(self, columns: Tensor) -> Tensor:
        return self.operator @ columns + self.by * columns

    def start(self) -> Tensor | None:
        """The same leaning vector."""
        return self.operator.start()

    def rounding(self, columns: Tensor) -> Tensor | None:
        """The operator's own."""
        return self.operator.rounding(columns)

    def exact_trace(self) -> float | None:
        """tr A + c·n."""
        trace = self.operator.exact_trace()
        return None if trace is None else trace + self.by * self.shape[0]

    def exact_diagonal(self) -> Tensor | None:
        """diag A + c."""
        diagonal = self.operator.exact_diagonal()
        return None if diagonal is None else diagonal + self.by


class Preconditioned(Operator):
    """D^(−1/2) A D^(−1/2) for a positive diagonal D: the curvature an adaptive optimiser sees.

    Its largest eigenvalue, not the plain sharpness, decides whether Adam or RMSprop is stable (Cohen et al. 2022).

    Example:
        >>> sm.eigenvalues(Preconditioned(sm.Hessian(problem), preconditioner(problem, optimizer)))
    """

    def __init__(self, operator: Operator, diagonal: Tensor) -> None:
        if tuple(diagonal.shape) != operator.shape[:1]:
            raise ValueError(f"expected a diagonal of length {operator.shape[0]}, got shape {tuple(diagonal.shape)}")
        if not bool((diagonal > 0).all()):
            raise ValueError(f"expected a positive diagonal, got a smallest entry of {float(diagonal.min()):g}")
        super().__init__(operator.shape, operator.dtype, operator.device)
        self.operator = operator
        self.scale = diagonal.detach().to(operator.device, operator.dtype).rsqrt()[:, None]
        self.symmetric, self.positive = operator.symmetric, operator.positive

    def _apply(self, columns: Tensor) -> Tensor:
        return self.scale * (self.operator @ (self.scale * columns))

    def start(self) -> Tensor | None:
        """The operator's own, seen in the scaled coordinates."""
        start = self.operator.start()
        return None if start is None else self.scale[:, 0] * start

    def exact_diagonal(self) -> Tensor | None:
        """diag(A) / D."""
        diagonal = self.operator.exact_diagonal()
        return None if diagonal is None else self.scale[:, 0].square() * diagonal

    def exact_trace(self) -> float | None:
        """Sum of the exact diagonal."""
        diagonal = self.exact_diagonal()
        return None if diagonal is None else float(diagonal.sum())
