"""What a live optimiser can bear: thresholds, and the sharpness it sees over them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch.optim import SGD, Optimizer

from spherometer.estimators import Nearby, follow
from spherometer.metrics import preconditioner, stability_threshold_of
from spherometer.operators import Hessian, Preconditioned
from spherometer.problems import Problem
from spherometer.values import Estimate

PRECONDITIONED = "preconditioned_sharpness"


def bare(optimizer: Optimizer) -> Optimizer:
    """The optimiser inside the wrappers of Lightning and Accelerate, which only forward to it."""
    inner = getattr(optimizer, "optimizer", None)
    return bare(inner) if isinstance(inner, Optimizer) else optimizer


def learning_rate(optimizer: Optimizer) -> float:
    """That of the first parameter group."""
    return float(optimizer.param_groups[0]["lr"])


def known_threshold(optimizer: Optimizer) -> float | None:
    """The largest stable sharpness, None where no single one is known (SAM, several momenta, a learning rate of 0)."""
    try:
        return stability_threshold_of(optimizer)
    except ValueError:
        return None


class StabilityReading:
    """Reads an optimiser beside each measured sharpness: 2/lr, its own threshold, 2ρ_B/lr, and the ratio to them."""

    def __init__(self, problem: Problem, rtol: float) -> None:
        self.problem, self.rtol = problem, rtol
        self.starts: dict[str, Nearby] = {}

    def read(
        self, optimizer: Optimizer, found: Mapping[str, Estimate], batch_ratio: Estimate | None, seed: int
    ) -> dict[str, Estimate]:
        """The rows of one moment.

        `stability_ratio` is the sharpness over the optimiser's own threshold; for Adam, RMSprop and Adagrad it is the
        largest eigenvalue of D^(−½)HD^(−½) that is compared, and measured here (Cohen et al. 2022).
        """
        optimizer = bare(optimizer)
        rate = learning_rate(optimizer)
        rows = {"learning_rate": Estimate(rate)}
        if not rate > 0:
            return rows
        rows["gradient_descent_threshold"] = Estimate(2 / rate, note="2/lr")
        if batch_ratio is not None:
            rows["batch_threshold"] = replace(batch_ratio.scaled(2 / rate), note="2ρ_B/lr, C Prop 5.2", products=0)
        threshold = known_threshold(optimizer)
        if threshold is None:
            return rows
        rows["stability_threshold"] = Estimate(threshold, note=type(optimizer).__name__)
        seen = found.get("sharpness")
        if seen is not None and not isinstance(optimizer, SGD):
            seen = rows[PRECONDITIONED] = self._preconditioned(optimizer, seed)
        elif seen is not None and len({float(group["lr"]) for group in optimizer.param_groups}) > 1:
            seen = rows[PRECONDITIONED] = self._preconditioned(optimizer, seed)  # groups with rates of their own
        if seen is not None:
            rows["stability_ratio"] = replace(seen.scaled(1 / threshold), products=0, seconds=0.0)
        return rows

    def _preconditioned(self, optimizer: Optimizer, seed: int) -> Estimate:
        matrix = Preconditioned(Hessian(self.problem), preconditioner(self.problem, optimizer))
        known, memory = self.starts.get(PRECONDITIONED), self.problem.memory
        found, self.starts[PRECONDITIONED] = follow(matrix, known, rtol=self.rtol, memory=memory, seed=seed)
        return found.entry()
