"""The trace of each diagonal block of a matrix, all blocks from the same products."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Generator, Tensor

from spherometer.estimators.accuracy import check_rtol
from spherometer.estimators.randomness import rademacher
from spherometer.operators import Operator
from spherometer.values import Estimate, Kind, Source, Status

NUM_AT_ONCE = 16  # probes between two looks at the standard error
MAX_PROBES = 256


@dataclass(frozen=True)
class BlockTraces:
    """Traces of blocks: one row per independent random vector, or a single row that is exact."""

    labels: tuple[str, ...]
    rows: Tensor  # (num_probes, num_blocks), float64
    products: int = 0
    status: Status = Status()  # noqa: RUF009  frozen

    @property
    def values(self) -> Tensor:
        """The trace of each block."""
        return self.rows.mean(0)

    def error_of(self, weights: Tensor) -> Tensor:
        """One standard error of linear combinations of the traces, weights (num_blocks, ...)."""
        if len(self.rows) == 1:
            return torch.zeros(weights.shape[1:], dtype=torch.float64)
        return (self.rows @ weights).std(0) / len(self.rows) ** 0.5

    @property
    def errors(self) -> Tensor:
        """One standard error of each trace."""
        return self.error_of(torch.eye(self.rows.shape[1], dtype=torch.float64))

    def estimate(self, value: float | Tensor, error: float | Tensor, note: str = "") -> Estimate:
        """A quantity made from these traces, with where it came from."""
        exact = len(self.rows) == 1
        source, kind = ("exact", "bound") if exact else ("random vectors", "standard error")
        labels = self.labels if isinstance(value, Tensor) and value.ndim else ()
        return Estimate(
            value,
            error,
            cast(Kind, kind),
            cast(Source, source),
            products=self.products,
            status=self.status,
            labels=labels,
            note=note,
        )


def block_traces(operator: Operator, sizes: dict[str, int], *, rtol: float, generator: Generator) -> BlockTraces:
    """tr A_bb = E[Σ_{j∈b} v_j (Av)_j] for every block b at once; column by column where the matrix is small.

    Stops when every standard error is below rtol times the sum of the absolute block traces.
    """
    check_rtol(rtol)
    lengths, labels = list(sizes.values()), tuple(sizes)
    if operator.shape[0] <= MAX_PROBES:
        diagonal = operator.dense().diagonal()
        row = torch.stack([part.double().sum() for part in diagonal.split(lengths)])[None].cpu()
        return BlockTraces(labels, row, operator.shape[0])
    rows = torch.empty(0, len(lengths), dtype=torch.float64)
    found = BlockTraces(labels, rows)
    while len(rows) < MAX_PROBES:
        for _ in range(NUM_AT_ONCE):
            probe = rademacher(operator.shape[0], 1, dtype=operator.dtype, stream=generator)[:, 0].to(operator.device)
            forms = probe * (operator @ probe)
            row = torch.stack([part.double().sum() for part in forms.split(lengths)])
            rows = torch.cat([rows, row[None].cpu()])
        found = BlockTraces(labels, rows, len(rows))
        if bool((found.errors <= rtol * found.values.abs().sum()).all()):
            return found
    missed = float(found.errors.max() / found.values.abs().sum())
    message = f"error {missed:.2g} of the whole after {MAX_PROBES} random vectors, asked for {rtol:.2g}: raise rtol"
    return BlockTraces(labels, rows, len(rows), Status(False, message))
