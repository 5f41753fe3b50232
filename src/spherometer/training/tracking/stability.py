"""What a live optimiser can bear: thresholds, and the sharpness it sees over them."""

from __future__ import annotations

from dataclasses import replace

from torch.optim import SGD, Optimizer

from spherometer.estimators import Nearby, follow
from spherometer.metrics import preconditioner, stability_threshold_of
from spherometer.metrics.optimizers import moved_names
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
        self.starts: dict[str, Nearby] = {}  # by the names of the parameters that moved
        self._moved = problem

    def read(
        self, optimizer: Optimizer, sharpness: Estimate, batch_ratio: Estimate | None, seed: int
    ) -> tuple[dict[str, Estimate], str]:
        """The rows of one moment, and why there is no ratio where a threshold has none.

        `stability_ratio` is the sharpness over the optimiser's own threshold. What is compared is the largest
        eigenvalue of D^(−½)HD^(−½) over the parameters that the optimiser moves (Cohen et al. 2022); where that is not
        the sharpness itself, it is measured here.
        """
        optimizer = bare(optimizer)
        rate = learning_rate(optimizer)
        rows = {"learning_rate": Estimate(rate)}
        if not rate > 0:
            return rows, ""
        rows["gradient_descent_threshold"] = Estimate(2 / rate, note="2/lr")
        if batch_ratio is not None:
            rows["batch_threshold"] = replace(batch_ratio.scaled(2 / rate), note="2ρ_B/lr, C Prop 5.2", products=0)
        threshold = known_threshold(optimizer)
        if threshold is None:
            return rows, ""
        rows["stability_threshold"] = Estimate(threshold, note=type(optimizer).__name__)
        moved = moved_names(self.problem, optimizer)
        if not moved:
            return rows, f"{type(optimizer).__name__} has not yet moved any parameter of the problem"
        rates = {float(group["lr"]) for group in optimizer.param_groups}
        if not isinstance(optimizer, SGD) or len(rates) > 1 or moved != self.problem.names:
            sharpness = rows[PRECONDITIONED] = self._preconditioned(optimizer, moved, seed)
        rows["stability_ratio"] = replace(sharpness.scaled(1 / threshold), products=0, seconds=0.0)
        return rows, ""

    def _preconditioned(self, optimizer: Optimizer, moved: tuple[str, ...], seed: int) -> Estimate:
        if self._moved.names != moved:
            self._moved = self.problem if moved == self.problem.names else self.problem.select(moved)
        matrix = Preconditioned(Hessian(self._moved), preconditioner(self._moved, optimizer))
        key = " ".join(moved)
        found, known = follow(matrix, self.starts.get(key), rtol=self.rtol, memory=self.problem.memory, seed=seed)
        self.starts = {key: known}
        part, whole = self._moved.num_parameters, self.problem.num_parameters
        note = f"over the {part:,} of {whole:,} weights that the optimizer moves" if part < whole else ""
        return replace(found.entry(), note=note) if note else found.entry()
