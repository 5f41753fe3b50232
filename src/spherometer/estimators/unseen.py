"""Could an eigenvalue have been missed?  What a Lanczos chain with a random start can, and cannot, say about it."""

from __future__ import annotations

import math

import numpy as np


def surely_seen(alphas: np.ndarray, betas: np.ndarray, at: float, *, mass: float) -> bool:
    """Whether an eigenvalue at or beyond `at`, of at least this share of the start vector, would show in the Lanczos
    chain.

    The chain's orthonormal polynomials p_j, β_j p_{j+1} = (x − α_j) p_j − β_{j−1} p_{j−1}, know 2m moments of the
    start vector's spectral measure, and no measure with these moments has at x more than the Christoffel mass 1 /
    Σ_{j≤m} p_j(x)². Beyond the Ritz values that mass falls monotonically, so one evaluation settles all that lies
    further out. Szegő (1939) §3.4; used in the same way by van Dorsselaer, Hochstenbach and van der Vorst (2000).

    Example:
        >>> surely_seen(np.array([0.0]), np.array([1.0]), at=10.0, mass=0.1)  # variance 1: at most 1/101 lives at 10
        True
    """
    before, current, total = 0.0, 1.0, 1.0
    for index, (alpha, beta) in enumerate(zip(alphas, betas, strict=True)):
        if beta == 0:
            return True  # an invariant subspace: everything of which the start vector has a share was seen
        coupling = betas[index - 1] if index else 0.0
        before, current = current, ((at - alpha) * current - coupling * before) / beta
        total += current * current
        if total * mass >= 1:
            return True
    return False


def least_mass(num_rows: int, *, share: float = 1.0, risk: float) -> float:
    """The squared component along a given direction that a random unit vector, scaled by `share`, exceeds with chance
    1 − risk.

    The component is about normal with variance 1/n, hence P(|z| < t) ≤ t √(2n/π); a fixed vector added to it can only
    lower that chance.
    """
    return min(1.0, math.pi / 2 * (share * risk) ** 2 / num_rows)
