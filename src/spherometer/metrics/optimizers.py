"""The stability threshold of a live optimiser, and the diagonal it divides its steps by."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop

from spherometer.estimators import eigenvalues
from spherometer.operators import Hessian, Preconditioned
from spherometer.problems import Problem
from spherometer.values import Estimate


def stability_threshold_of(optimizer: Optimizer) -> float:
    """The largest eigenvalue of D^(−½)HD^(−½), D = `preconditioner(problem, optimizer)`, that the optimiser survives.

    | optimiser                       | threshold                | D                                        |
    |---------------------------------|--------------------------|------------------------------------------|
    | SGD                             | 2/lr                     | 1                                        |
    | heavy ball β, dampening τ       | 2(1+β)/((1−τ) lr)        | 1                                        |
    | Nesterov β                      | 2(1+β)/((1+2β) lr)       | 1                                        |
    | Adam, AdamW                     | 2(1+β₁)/((1−β₁) lr)      | (1−β₁ᵗ)(√(v/(1−β₂ᵗ)) + eps)              |
    | RMSprop, momentum β             | 2(1+β)/lr                | √v + eps (centered: √(v−m²) + eps)       |
    | Adagrad                         | 2/lr                     | (1+(t−1)·lr_decay)(√sum + eps)           |

    `lr` is that of the first parameter group; other groups' are folded into D. Exact for a quadratic and a frozen D
    (C Q50; Cohen et al. 2021, 2022). Weight decay is no part of it: with coefficient γ inside the gradient (SGD, Adam,
    RMSprop, Adagrad) the optimiser sees H + γI, and AdamW shrinks weights by (1 − lr γ) beside its step.

    Example:
        >>> stability_threshold_of(torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9))
        7.6
    """
    group = _checked_groups(optimizer)[0]
    return _threshold(optimizer, group) / float(group["lr"])


def preconditioner(problem: Problem, optimizer: Optimizer) -> Tensor:
    """The positive diagonal D by which the optimiser's last step divided, for `Preconditioned(Hessian(problem), D)`.

    A parameter of another group counts with the ratio of the learning rates, so that one threshold serves them all.

    Example:
        >>> eigenvalues(Preconditioned(Hessian(problem), preconditioner(problem, optimizer)))
    """
    groups = _checked_groups(optimizer)
    first = float(groups[0]["lr"])
    owner = {id(parameter): group for group in groups for parameter in group["params"]}
    parts = []
    for name in problem.names:
        parameter = problem.model.get_parameter(name)
        if id(parameter) not in owner:
            raise ValueError(
                f"expected every chosen parameter in the optimizer, got none for {name!r}: "
                "choose its parameters with Problem(..., parameters=...)"
            )
        entry = _Entry(name, parameter, owner[id(parameter)], optimizer.state.get(parameter, {}))
        parts.append(_divisor(optimizer, entry).reshape(-1) * (first / float(entry.group["lr"])))
    return torch.cat(parts).detach().to(problem.device, problem.precision)


def moved_names(problem: Problem, optimizer: Optimizer) -> tuple[str, ...]:
    """Names of the chosen parameters that the optimiser moves: those it holds, and has stepped if it remembers steps.

    To all others it gives a learning rate of 0: `problem.select(moved_names(problem, optimizer))` is what it sees.
    """
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    parameters = {name: problem.model.get_parameter(name) for name in problem.names}
    return tuple(
        name
        for name, parameter in parameters.items()
        if id(parameter) in held and (isinstance(optimizer, SGD) or _has_stepped(optimizer.state.get(parameter, {})))
    )


def preconditioned_sharpness(
    problem: Problem, optimizer: Optimizer, *, rtol: float = 1e-3, start: Tensor | None = None, seed: int = 0
) -> Estimate:
    """The largest eigenvalue of D^(−½)HD^(−½), the sharpness this optimiser sees; unstable above its threshold.

    Example:
        >>> preconditioned_sharpness(problem, optimizer).value / stability_threshold_of(optimizer)
    """
    matrix = Preconditioned(Hessian(problem), preconditioner(problem, optimizer))
    found = eigenvalues(matrix, rtol=rtol, start=start, vectors=True, memory=problem.memory, seed=seed)
    threshold = stability_threshold_of(optimizer)
    decays = sorted({float(group.get("weight_decay", 0)) for group in optimizer.param_groups} - {0.0})
    note = f"threshold {threshold:.6g}" + (f"; weight decay {decays} is not part of H" if decays else "")
    return replace(found, value=float(found.value[0]), error=float(found.error[0]), note=note)  # type: ignore[index]


@dataclass(frozen=True)
class _Entry:
    """A chosen parameter as the optimiser knows it."""

    name: str
    parameter: Tensor
    group: dict[str, Any]
    state: dict[str, Any]

    def recall(self, key: str) -> Tensor:
        """An entry of the optimiser's memory, which begins with its first step."""
        if key not in self.state or not _has_stepped(self.state):
            raise ValueError(
                f"the optimizer has taken no step for {self.name!r}, so it has no preconditioner yet: "
                "take a step first, or leave the parameter out with Problem(..., parameters=...)"
            )
        return torch.as_tensor(self.state[key]).detach()


def _has_stepped(state: dict[str, Any]) -> bool:
    """Adagrad's memory is there before its first step, others' is not."""
    return bool(state) and float(state.get("step", 1)) > 0


def _checked_groups(optimizer: Optimizer) -> list[dict[str, Any]]:
    """The parameter groups, refused where they have no common threshold."""
    groups = optimizer.param_groups
    if any(group.get("maximize", False) for group in groups):
        raise ValueError("expected an optimizer that descends, got maximize=True: measure the negative loss instead")
    if any(not float(group["lr"]) > 0 for group in groups):
        raise ValueError("expected a learning rate > 0 in every parameter group, got 0: leave frozen parameters out")
    thresholds = {round(_threshold(optimizer, group), 12) for group in groups}
    if len(thresholds) > 1:
        raise ValueError("expected the same momentum in every parameter group, got several: no single threshold exists")
    return groups


def _threshold(optimizer: Optimizer, group: dict[str, Any]) -> float:
    """lr times the largest stable eigenvalue."""
    if isinstance(optimizer, Adam | AdamW):
        beta = float(group["betas"][0])
        return 2 * (1 + beta) / (1 - beta)
    if isinstance(optimizer, SGD):
        beta = float(group["momentum"])
        if group["nesterov"]:
            return 2 * (1 + beta) / (1 + 2 * beta)
        share = 1 - (float(group["dampening"]) if beta else 0.0)  # of a gradient that enters the momentum
        if share <= 0:
            raise ValueError(f"expected dampening below 1, got {1 - share:g}: no gradient enters the momentum")
        return 2 * (1 + beta) / share
    if isinstance(optimizer, RMSprop):
        return 2 * (1 + float(group["momentum"]))
    if isinstance(optimizer, Adagrad):
        return 2.0
    raise ValueError(
        f"expected SGD, Adam, AdamW, RMSprop or Adagrad of torch.optim, got {type(optimizer).__name__}: "
        "build the diagonal yourself and measure Preconditioned(Hessian(problem), diagonal)"
    )


def _divisor(optimizer: Optimizer, entry: _Entry) -> Tensor:
    """What the optimiser divides the gradient of one parameter by, entry by entry."""
    group = entry.group
    if isinstance(optimizer, Adam | AdamW):
        step, (first, second) = float(entry.recall("step")), (float(beta) for beta in group["betas"])
        square = entry.recall("max_exp_avg_sq" if group["amsgrad"] else "exp_avg_sq")
        return (1 - first**step) * ((square / (1 - second**step)).sqrt() + group["eps"])
    if isinstance(optimizer, RMSprop):
        square = entry.recall("square_avg")
        centred = square - entry.recall("grad_avg").square() if group["centered"] else square
        return centred.clamp(min=0).sqrt() + group["eps"]
    if isinstance(optimizer, Adagrad):
        slowed = 1 + (float(entry.recall("step")) - 1) * group["lr_decay"]
        return slowed * (entry.recall("sum").sqrt() + group["eps"])
    return torch.ones_like(entry.parameter)
