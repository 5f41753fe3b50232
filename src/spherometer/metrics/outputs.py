"""The size of outputs, features and weights; accuracy; distances between two points and gaps between two data sets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from spherometer.metrics.bench import Bench
from spherometer.metrics.bound_terms import layer_weight_norm
from spherometer.metrics.registry import metric
from spherometer.metrics.representations import spectral_norm
from spherometer.metrics.sample_norms import layer_note, layer_trial
from spherometer.operators.features import features
from spherometer.operators.layer_norms import is_convolution
from spherometer.problems import Problem
from spherometer.problems.losses import ignored_class
from spherometer.values import Estimate, Status


@metric(symbol="‖F_X‖_F", formula="√(Σ_i ‖f(x_i)‖²)", source="A Figs 28-29; Q9", cost="1 forward pass", unit="output")
def output_frobenius(bench: Bench) -> Estimate:
    """The Frobenius norm of all outputs of the data; it grows with the root of the number of samples."""
    return Estimate(float(bench.shared(_answers).outputs.double().norm()))


@metric(symbol="⟨‖z‖⟩", formula="n⁻¹ Σ_i ‖f(x_i)‖", source="C Figs 12-13; Q10", cost="1 forward pass", unit="output")
def logit_norm(bench: Bench) -> Estimate:
    """The mean length of the outputs."""
    return Estimate(float(bench.shared(_answers).rows.norm(dim=1).mean()))


@metric(
    symbol="⟨|1̂'z|⟩",
    formula="n⁻¹ Σ_i |Σ_c f_c(x_i)| / √C",
    source="C Figs 12-13; Q10",
    cost="1 forward pass",
    unit="output",
)
def logit_sum(bench: Bench) -> Estimate:
    """The mean size of the outputs along the unit ones vector, which softmax cross-entropy does not see (T19)."""
    rows = bench.shared(_answers).rows
    return Estimate(float((rows.sum(1).abs() / rows.shape[1] ** 0.5).mean()))


@metric(
    symbol="accuracy",
    formula="share of i with argmax f(x_i) = y_i",
    source="D Sec 4; Q6, Q8",
    cost="1 forward pass",
    unit="1",
)
def accuracy(bench: Bench) -> Estimate:
    """The share of samples (or tokens that are not ignored) whose largest output is the target's."""
    answers = bench.shared(_answers)
    labels, rows = answers.labels, answers.rows
    if labels is None:
        raise ValueError("accuracy needs class numbers, or one row of class weights per sample, as targets")
    counted = labels != answers.ignored
    left_out = int((~counted).sum())
    right = rows[counted].argmax(1) == labels[counted]
    return Estimate(float(right.double().mean()), note=f"{left_out} ignored targets left out" if left_out else "")


@metric(
    symbol="‖θ‖",
    formula="‖θ‖₂ of the chosen parameters",
    source="C Figs 12-14, D Figs 6-7; Q11",
    cost="none",
    unit="weight",
)
def weight_norm(bench: Bench) -> Estimate:
    """The length of the vector of weights."""
    return Estimate(float(bench.weights.double().norm()))


@metric(symbol="‖W_l‖_F", formula="‖W_l‖_F, by parameter tensor", source="C Fig 14; Q11", cost="none", unit="weight")
def parameter_norms(bench: Bench) -> Estimate:
    """The Frobenius norm of each parameter tensor."""
    tensors = bench.problem.split(bench.weights)
    values = torch.stack([tensor.double().norm() for tensor in tensors.values()]).cpu()
    return Estimate(values, labels=tuple(tensors))


@metric(
    symbol="‖W_l‖",
    formula="spectral norm of each layer's weight as a matrix and of its whole linear map, and Frobenius norm",
    source="A Tables 1-2, B Props 3.4-3.10; Q11, Q12, B-e8",
    cost="1 forward pass; 10-30 convolutions for each unrolled norm",
    unit="weight",
)
def layer_norms(bench: Bench) -> Estimate:
    """Norms of every linear layer; for a convolution the kernel as a matrix, and what it does to a whole input.

    "reshaped" is ‖K‖₂ of the kernel as the matrix (first axis, all the rest), "unrolled" the norm of the convolution
    on inputs of the size it gets here, with its stride, padding and groups: the one that bounds ‖Kx‖/‖x‖.
    """
    parts: dict[str, Estimate] = {}
    for call in bench.shared(layer_trial).calls:
        if "#" in call.name:
            continue
        for kernel in ("reshaped", "unrolled") if is_convolution(call.module) else ("reshaped",):
            label = f"{call.name} {kernel}" if is_convolution(call.module) else f"{call.name} spectral"
            parts[label] = layer_weight_norm(call.module, call.weight, call.inputs.shape[1:], kernel)
        parts[f"{call.name} Frobenius"] = Estimate(float(call.weight.detach().double().norm()))
    return _collected(parts, layer_note(bench, parts))


@metric(
    symbol="‖f_{l−1}(X)‖",
    formula="spectral norm of the matrix of all samples' inputs to layer l, and of the outputs",
    source="A App C.2; Q13",
    cost="1 forward pass",
    unit="activation",
)
def feature_norms(bench: Bench) -> Estimate:
    """The spectral norm of each layer's feature matrix, which sets the size of that layer's parameter derivative."""
    parts = {}
    for name, matrix in features(bench.problem, bench.shared(layer_trial), at=bench.weights):
        value, error = spectral_norm(matrix)
        parts[name] = Estimate(value, error, "bound", "solver" if error else "exact")
    return _collected(parts, layer_note(bench, parts))


def distance(problem: Problem, start: Tensor | nn.Module | Mapping[str, Tensor]) -> Estimate:
    """‖θ − θ_0‖ over the chosen parameters (C Fig 12; Q11).

    Args:
        start: θ_0 as a flat vector, a model, or a mapping of names to tensors such as `model.state_dict()`.

    Example:
        >>> start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        >>> distance(problem, start)  # after training
    """
    if isinstance(start, nn.Module):
        start = dict(start.named_parameters())
    if isinstance(start, Mapping):
        missing = [name for name in problem.names if name not in start]
        if missing:
            raise ValueError(f"expected a start for every chosen parameter, got none for {missing[0]!r}")
        start = torch.cat([start[name].detach().reshape(-1) for name in problem.names])
    weights = problem.state().vector
    if start.shape != weights.shape:
        raise ValueError(f"expected a start of {len(weights)} weights, got shape {tuple(start.shape)}")
    return Estimate(float((weights.double() - start.to(weights.device).double()).norm()))


def generalisation_gap(train: Problem, test: Problem) -> Estimate:
    """How far train and test loss lie apart (A Sec 6; Q5), each by its problem's loss, label smoothing included.

    Example:
        >>> generalisation_gap(problem, problem.restricted((test_inputs, test_targets)))
    """
    return Estimate(abs(train.loss_at() - test.loss_at()))


def accuracy_gap(train: Problem, test: Problem) -> Estimate:
    """Train accuracy − test accuracy (D Sec 4; Q6).

    Example:
        >>> accuracy_gap(problem, problem.restricted((test_inputs, test_targets)))
    """
    return Estimate(float(accuracy(Bench(train))) - float(accuracy(Bench(test))))


@dataclass(frozen=True)
class _Answers:
    """Outputs and targets of all data; `rows` has one row of C outputs per sample or token."""

    outputs: Tensor
    rows: Tensor
    labels: Tensor | None
    ignored: int


def _answers(bench: Bench) -> _Answers:
    problem, pairs = bench.problem, []
    state = problem.state(bench.weights)
    with torch.no_grad():
        for piece in problem.pieces():
            outputs, targets = problem.outputs(state, piece)
            if not isinstance(outputs, Tensor) or outputs.ndim < 2:
                raise ValueError("expected outputs as one tensor (samples, outputs, ...): reshape in `forward`")
            pairs.append((outputs, targets))
    outputs = torch.cat([part for part, _ in pairs])
    rows = outputs.double().movedim(1, -1).flatten(0, -2)
    return _Answers(outputs, rows, _labels([part for _, part in pairs], rows), ignored_class(problem.loss))


def _labels(targets: list[Any], rows: Tensor) -> Tensor | None:
    """Class numbers, one for each row of outputs, where the targets are that."""
    if not all(isinstance(part, Tensor) for part in targets):
        return None
    joined = torch.cat(targets)
    if joined.is_floating_point():
        classes = joined.shape[1] if joined.ndim > 1 else 0
        if classes != rows.shape[1] or classes < 2:
            return None
        joined = joined.argmax(1)
    return joined.flatten() if joined.numel() == len(rows) else None


def _collected(parts: dict[str, Estimate], note: str) -> Estimate:
    """Many numbers as one labelled vector."""
    found = list(parts.values())
    failed = [one.status for one in found if not one.status]
    errors = torch.tensor([float(one.error) for one in found], dtype=torch.float64)
    exact = all(one.source == "exact" for one in found)
    return Estimate(
        torch.tensor([float(one) for one in found], dtype=torch.float64),
        0.0 if exact else errors,
        source="exact" if exact else "solver",
        products=sum(one.products for one in found),
        status=failed[0] if failed else Status(),
        labels=tuple(parts),
        note=note,
    )
