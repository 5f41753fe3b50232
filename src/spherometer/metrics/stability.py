"""How sharp the loss may be for a learning rate, and how large a step it allows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from spherometer.estimators.accuracy import check_rtol
from spherometer.metrics.bench import Bench
from spherometer.metrics.noise import gradient_ratio
from spherometer.metrics.options import check_momentum, check_positive
from spherometer.metrics.registry import metric
from spherometer.problems import NonFiniteError
from spherometer.values import Estimate, Status

MAX_TRIALS = 100  # forward passes of the search for the step at which the loss rises


@metric(
    symbol="2(1+β)ρ_B/η",
    formula="2 (1 + momentum) ρ_B / lr, ρ_B = 1 without batch_size",
    source="C Prop 5.2, A Sec 2; Q50, T27, C-e12, C-e15",
    cost="as gradient_ratio when batch_size is given, else nothing",
    unit="loss / weight²",
)
def stability_threshold(
    bench: Bench, *, lr: float = 0.1, momentum: float = 0.0, batch_size: int | None = None, rtol: float = 0.02
) -> Estimate:
    """The sharpness beyond which gradient descent with this learning rate is unstable on a quadratic.

    2/lr for gradient descent and 2(1+β)/lr for heavy-ball momentum are exact; 2ρ_B/lr is the level up to which a step
    of SGD surely lowers the expected loss (C-e15). `stability_threshold_of(optimizer)` reads it off an optimiser.
    """
    check_positive("lr", lr, "it is the learning rate")
    check_momentum(momentum)
    factor = 2 * (1 + momentum) / lr
    said = f"lr = {lr:g}, momentum = {momentum:g}"
    if batch_size is None:
        return Estimate(factor, note=said)
    ratio = gradient_ratio(bench, batch_size=batch_size, rtol=rtol)
    both = "; with momentum and batches together a rule of thumb" if momentum else ""
    note = f"{said}, ρ_B = {float(ratio.value):.4g} at B = {batch_size}{both}"
    return replace(ratio.scaled(factor), note=note)


@metric(
    symbol="2/η_c",
    formula="2 / min{η > 0: L(θ − η∇L) > L(θ)}",
    source="Kalra and Barkeshli (2024); T27",
    cost="1 gradient and about 10 forward passes",
    unit="loss / weight²",
)
def critical_sharpness(bench: Bench, *, rtol: float = 0.01) -> Estimate:
    """The sharpness along the gradient that makes the loss first rise, from a few forward passes.

    For a quadratic it is g'Hg/‖g‖² ≤ λ₁. The step is searched upwards by factors of two from a sixteenth of Polyak's
    step L/‖g‖², then bisected: a rise that is over within a factor of two, or before, goes unseen. A loss that
    overflows counts as risen. Zero where no step raises the loss.
    """
    check_rtol(rtol)
    gradient, weights = bench.gradient, bench.weights
    square = float(gradient.double().square().sum())
    if square == 0:
        return Estimate(0.0, status=Status(False, "the gradient is zero, no step changes the loss: measure sharpness"))

    def rises(step: float) -> bool:
        try:
            return bench.problem.loss_at(weights - step * gradient) > bench.loss
        except NonFiniteError:
            return True

    low, high, trials = _first_rise(rises, start=abs(bench.loss) / (16 * square) or 1.0, rtol=rtol)
    note = f"{trials} forward passes"
    if high == float("inf"):
        return Estimate(0.0, 2 / low, "bound", "solver", note=f"{note}; no rise of the loss up to step {low:.3g}")
    if low == 0:
        message = f"the loss rises at every step down to {high:.3g}: a minimum within the arithmetic, or a kink"
        return Estimate(2 / high, float("inf"), "bound", "solver", status=Status(False, message), note=note)
    # Where the loss crosses its old value it changes at about ‖g‖² per unit of step: rounding moves the crossing.
    rounding = torch.finfo(bench.problem.precision).eps * abs(bench.loss) / square * 2 / low**2
    return Estimate(1 / low + 1 / high, 1 / low - 1 / high + rounding, "bound", "solver", note=note)


def _first_rise(rises: Callable[[float], bool], start: float, rtol: float) -> tuple[float, float, int]:
    """Steps low < high = (1 + rtol) low with a rise at high and none at low; 0 or ∞ where there is no such step."""
    low, high, step, trials = 0.0, float("inf"), start, 0
    while not high <= (1 + rtol) * low and trials < MAX_TRIALS:
        if rises(step):
            high = step
        else:
            low = step
        trials += 1
        step = 2 * low if high == float("inf") else high / 2 if low == 0 else (low * high) ** 0.5
    return low, high, trials
