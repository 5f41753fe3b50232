"""Learning rates over time, each a function from epoch or step t to a factor: `LambdaLR(optimizer, cosine(90))`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

Schedule = Callable[[int], float]


def constant() -> Schedule:
    """1 for ever."""
    return lambda t: 1.0  # noqa: ARG005


def flat_then_linear(total: int, *, final: float = 0.01) -> Schedule:
    """1 until t/T = ½, then linearly down to `final` at t/T = 0.9, then `final`: D A.2, L27 (final is r = 0.01).

    For iterate averaging, `total` is T_avg, where averaging begins, and `final` is α_avg/α₀: the rate is constant from
    then on (erratum D-e18).

    Example:
        >>> schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, flat_then_linear(300))
    """
    _check_positive(total=total)
    _check_share(final=final)

    def factor(t: int) -> float:
        return 1 - (1 - final) * min(max((t / total - 0.5) / 0.4, 0.0), 1.0)

    return factor


def multi_step(milestones: Sequence[float], factor: float) -> Schedule:
    """factor^(number of milestones that t has reached); L28.

    A B.3: `multi_step([50, 80], 0.1)` of 90 epochs. C Setting 4: `multi_step([100, 105], 0.1)` of 110 or
    `multi_step([100, 110], 0.1)` of 120.
    """
    _check_positive(factor=factor)
    if list(milestones) != sorted(milestones):
        raise ValueError(f"expected milestones in ascending order, got {list(milestones)}")
    return lambda t: factor ** sum(t >= milestone for milestone in milestones)


def multi_step_by_share(total: int, shares: Sequence[float], factor: float) -> Schedule:
    """`multi_step` at shares of the total; C Setting 2 is `multi_step_by_share(400, [0.3, 0.6, 0.8], 0.2)`; L28."""
    _check_positive(total=total)
    return multi_step([round(share * total, 9) for share in shares], factor)


def step_every(period: int, factor: float) -> Schedule:
    """factor^⌊t/period⌋; A Fig 33's reference is `step_every(30, 0.1)`; L28."""
    _check_positive(period=period, factor=factor)
    return lambda t: factor ** (t // period)


def cosine(total: int) -> Schedule:
    """½(1 + cos(πt/T)), 0 from T on; C Setting 3, L29."""
    _check_positive(total=total)
    return lambda t: 0.5 * (1 + math.cos(math.pi * min(t / total, 1.0)))


def _check_positive(**numbers: float) -> None:
    for name, number in numbers.items():
        if not number > 0:
            raise ValueError(f"expected a positive {name}, got {number}")


def _check_share(**numbers: float) -> None:
    for name, number in numbers.items():
        if not 0 <= number <= 1:
            raise ValueError(f"expected {name} between 0 and 1, got {number}")
