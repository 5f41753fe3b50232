"""The ends of a spectrum, each eigenvalue with a bound on its error."""

from __future__ import annotations

import time
from functools import partial
from typing import get_args

import numpy as np
import torch
from torch import Tensor

from spherometer.estimators.accuracy import check_rtol
from spherometer.estimators.krylov import Krylov
from spherometer.estimators.matrices import MatrixLike, SymmetricMatrix, smallest_form
from spherometer.estimators.randomness import child_stream, unit_vector
from spherometer.estimators.search import Answer, Search, Which
from spherometer.values import Estimate, Status

CHANCE = 1.0  # length of the random vector mixed into a given unit vector; a Krylov space sorts them out in one step
# The operator's own suggestion is made this much longer than what chance puts on any one direction. It then still leads
# the chain, and the more of the chain is left to chance, the sooner that shows what was missed. With still more of it
# left to chance large networks end a product sooner, but the bound is then broken more often where the top is a pair.
ABOVE_CHANCE = 64


def eigenvalues(
    operator: MatrixLike,
    *,
    num: int = 1,
    which: Which = "largest",
    rtol: float = 1e-3,
    start: Tensor | None = None,
    vectors: bool | int = False,
    max_products: int | None = None,
    memory: float = 4e9,
    seed: int = 0,
) -> Estimate:
    """Eigenvalues λ of a symmetric matrix at the ends of its spectrum, by Lanczos with full reorthogonalisation.

    `value` holds `num` eigenvalues in descending order for "largest" and "smallest", the `num` largest and then the
    `num` smallest, in descending order, for "both", and by descending size for "magnitude". `error` bounds each:
    min(r, max(r²/gap, r/2)), but never below a tenth of the target, plus the rounding of the arithmetic, where
    r = ‖Av − θv‖ is the residual (what the bound takes for granted stands in `search.py`). It stops as soon as each
    error is below rtol of its value; an eigenvalue that is zero within the arithmetic counts as one of that size.

    With several eigenvalues a fresh random vector is sent through the complement of those found, so copies of a
    multiple eigenvalue come up too. `start` is a vector (n,) or a block (n, k) near the wanted eigenvectors, such as
    the `vectors` of the last estimate: True gives one for each value, a number above that adds the Ritz vectors that
    come next, which lets a tracker see two eigenvalues cross. The basis keeps to `memory` bytes (but never below
    2·num + 4 vectors) by thick restarts.

    Sources: Paige (1971); Wu and Simon (2000); residual bounds: Parlett, The Symmetric Eigenvalue Problem (1998),
    §4.5, §11.7.

    Example:
        >>> eigenvalues(torch.diag(torch.tensor([3.0, 2.0, 1.0], dtype=torch.float64)), num=2).value.round(decimals=9)
        tensor([3., 2.], dtype=torch.float64)
    """
    began = time.perf_counter()
    matrix = smallest_form(operator, least=2 * num)
    run = partial(searched, num=num, which=which, rtol=rtol, limit=max_products, memory=memory, seed=seed)
    answer, search = run(matrix, start=None if start is None else _checked_block(start, matrix))
    if matrix.num_zeros and not _beyond_zero(answer.values, num, which):
        spent, matrix = matrix.products, SymmetricMatrix(operator)
        answer, search = run(matrix, start=None)
        matrix.products += spent
    wanted = matrix.lift(search.vectors(search.count if vectors is True else vectors)) if vectors else None
    return estimate_of(answer, matrix, began, wanted)


def _beyond_zero(values: np.ndarray, num: int, which: Which) -> bool:
    """Whether eigenvalues at zero that were left out belong further in than these."""
    high, low = which in ("largest", "both"), which in ("smallest", "both")
    return not (high and values[num - 1] <= 0) and not (low and values[-num] >= 0)


def searched(
    matrix: SymmetricMatrix,
    num: int = 1,
    which: Which = "largest",
    *,
    rtol: float,
    start: Tensor | None,
    limit: int | None = None,
    memory: float,
    seed: int,
) -> tuple[Answer, Search]:
    """A search that has come to its end, and what it found; it starts from a block (n, k) of the matrix' vectors."""
    count = 2 * num if which == "both" else num
    limit = max(200, 30 * count) if limit is None else limit
    _check_options(matrix.num_rows, num, which, rtol, limit, count)
    search = Search(matrix, Krylov(matrix, child_stream(seed, "eigenvalues")), num, which, rtol, limit, memory)
    _begin(search, start)
    return search.run(), search


def estimate_of(answer: Answer, matrix: SymmetricMatrix, began: float, vectors: Tensor | None) -> Estimate:
    """An answer with its cost."""
    return Estimate(
        value=torch.as_tensor(answer.values),
        error=torch.as_tensor(answer.errors),
        kind="bound",
        source="solver",
        products=matrix.products,
        seconds=time.perf_counter() - began,
        status=Status(not answer.complaint, answer.complaint),
        vectors=vectors,
    )


def _check_options(num_rows: int, num: int, which: str, rtol: float, limit: int, count: int) -> None:
    if which not in get_args(Which):
        raise ValueError(f"expected which to be one of {', '.join(get_args(Which))}, got {which!r}")
    if num != int(num) or num < 1 or count > num_rows:
        ends = " at each end" if which == "both" else ""
        raise ValueError(
            f"expected 1 <= num{ends}, and no more eigenvalues than the {num_rows} there are, got num={num}"
        )
    check_rtol(rtol)
    if limit < count:
        raise ValueError(f"expected max_products >= {count}, one for each eigenvalue, got {limit}")


def _begin(search: Search, start: Tensor | None) -> None:
    """Fill the subspace with what is known; everything that is only believed gets a random part, so that no direction
    is excluded.
    """
    krylov, matrix = search.krylov, search.matrix
    if start is not None:
        mixed = (
            search.num == 1 or start.shape[1] == 1
        )  # with more of both, the check of the complement brings the randomness
        for index, column in enumerate(start.to(dtype=matrix.dtype, device=matrix.device).T):
            krylov.add(_mixed(column, krylov, CHANCE) if mixed and index == 0 else column)
        search.share_of_chance = None
    elif (
        (hint := matrix.start()) is not None
        and bool(torch.isfinite(hint).all())
        and float(torch.linalg.vector_norm(hint)) > 0
    ):
        chance = max(CHANCE, matrix.num_rows**0.5 / ABOVE_CHANCE)
        krylov.add(_mixed(hint, krylov, chance))
        search.share_of_chance = chance / (1 + chance**2) ** 0.5
    if krylov.size == 0:
        krylov.add_random()
    search.num_given = krylov.size


def _checked_block(start: Tensor, matrix: SymmetricMatrix) -> Tensor:
    block, num_rows = torch.as_tensor(start).detach(), matrix.num_rows + matrix.num_zeros
    block = block[:, None] if block.ndim == 1 else block
    if block.ndim != 2 or block.shape[0] != num_rows or not 1 <= block.shape[1] <= matrix.num_rows:
        raise ValueError(
            f"expected start of shape ({num_rows},) or ({num_rows}, k), got {tuple(torch.as_tensor(start).shape)}"
        )
    if not bool(torch.isfinite(block).all()):
        raise ValueError("expected a finite start, got inf or nan in it: leave start out")
    return matrix.drop(block)


def _mixed(vector: Tensor, krylov: Krylov, chance: float) -> Tensor:
    drawn = unit_vector(krylov.matrix.num_rows, dtype=krylov.matrix.dtype, stream=krylov.stream).to(vector.device)
    length = float(torch.linalg.vector_norm(vector))
    return drawn.mul_(chance).add_(vector, alpha=1 / length) if length > 0 else drawn
