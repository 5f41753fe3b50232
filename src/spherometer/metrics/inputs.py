"""How outputs react to the input: norms and singular values of every sample's Jacobian J_i = ∂f/∂x at x_i."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from spherometer.metrics.bench import Bench
from spherometer.metrics.options import check_count
from spherometer.metrics.registry import metric
from spherometer.metrics.sample_norms import (
    SampleNorms,
    input_norms,
    singular_values,
    softmax_norms,
    squared_frobenius,
)
from spherometer.metrics.secants import secant_slopes
from spherometer.operators.many_outputs import batch_grams
from spherometer.values import Estimate, Status

COST = "C backward passes, or about 20 where C > 32"
UNIT = "output / input"
QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
LABELS = ("smallest", "5 %", "25 %", "median", "75 %", "95 %", "largest")


@metric(
    symbol="max‖J‖",
    formula="max_i ‖∂f/∂x (x_i)‖₂",
    source="A App A.1; Q70",
    cost=COST,
    unit=UNIT,
    needs=["input_norms"],
)
def input_jacobian_norm(bench: Bench) -> Estimate:
    """The largest spectral norm of the input-output Jacobian over samples: the norm of the whole batch map (T43)."""
    norms = bench.shared(input_norms)
    return norms.maximum(_dead(norms))


@metric(
    symbol="MLS", formula="n⁻¹ Σ_i ‖∂f/∂x (x_i)‖₂", source="B Def 3.7; Q80", cost=COST, unit=UNIT, needs=["input_norms"]
)
def mls(bench: Bench) -> Estimate:
    """Maximum local sensitivity: the mean over samples of the spectral norm of the input-output Jacobian."""
    norms = bench.shared(input_norms)
    return norms.mean(_dead(norms))


@metric(
    symbol="‖J‖ quantiles",
    formula="quantiles over i of ‖∂f/∂x (x_i)‖₂",
    source="A App A.1, B Def 3.7; Q70, Q80",
    cost=COST,
    unit=UNIT,
    needs=["input_norms"],
)
def input_jacobian_quantiles(bench: Bench) -> Estimate:
    """How the spectral norm of the input-output Jacobian is spread over samples."""
    norms = bench.shared(input_norms)
    errors = norms.errors.amax().expand(len(LABELS))
    return _labelled(norms.estimate(_quantiles(norms.values), errors, _dead(norms)), LABELS)


@metric(
    symbol="⟨‖J‖_F⟩",
    formula="n⁻¹ Σ_i ‖∂f/∂x (x_i)‖_F",
    source="B Eq 5, T29; Q88",
    cost="C backward passes, or 32 random ones where C > 32",
    unit=UNIT,
    needs=["input_norms"],
)
def input_jacobian_frobenius(bench: Bench) -> Estimate:
    """The mean over samples of the Frobenius norm of the input-output Jacobian.

    With many outputs by random projections (T24); the square root's bias is taken out by the jackknife over them.
    """
    rows = bench.shared(squared_frobenius)
    return _jackknifed(rows, lambda kept: kept.mean(0).sqrt().mean())


@metric(
    symbol="‖J_batch‖_F",
    formula="√(Σ_i ‖∂f/∂x (x_i)‖_F²)",
    source="A Fig 33, C Sec 5.3; Q88, T25, A-e9",
    cost="as input_jacobian_frobenius",
    unit=UNIT,
    needs=["input_norms"],
)
def batch_jacobian_frobenius(bench: Bench) -> Estimate:
    """The Frobenius norm of the Jacobian of the whole data set; it grows with the root of the number of samples.

    Its square is N·C times the mean of ‖u'J‖² over random unit vectors u; figure 33 of A leaves N·C out (A-e9).
    """
    rows = bench.shared(squared_frobenius)
    return _jackknifed(rows, lambda kept: kept.mean(0).sum().sqrt())


@metric(
    symbol="‖J_batch‖",
    formula="max over batches of ‖∂(f(x_1),…,f(x_n)) / ∂(x_1,…,x_n)‖₂",
    source="A App A.1-A.2; Q70, T43, T44, A-e7",
    cost="10-20 products",
    unit=UNIT,
)
def batch_jacobian_norm(bench: Bench, *, rtol: float = 1e-3) -> Estimate:
    """The norm of the Jacobian of each whole batch in the problem's batch-norm mode, the largest over batches.

    In eval mode it equals `input_jacobian_norm`; in train mode samples of a batch react to each other's inputs.
    """
    grams = batch_grams(bench.problem, at=bench.weights)
    found = [bench.spectrum(f"Jacobian of batch {k}", gram, rtol=2 * rtol) for k, gram in enumerate(grams)]
    squares = torch.stack([torch.as_tensor(one.value)[0] for one in found]).double().clamp_min(0)
    errors = torch.stack([torch.as_tensor(one.error)[0] for one in found]).double()
    value = float(squares.max().sqrt())
    failed = [one.status for one in found if not one.status]
    return Estimate(
        value,
        float(errors.max()) / (2 * value) if value else 0.0,
        "bound",
        "solver",
        products=sum(one.products for one in found),
        status=failed[0] if failed else Status(),
    )


@metric(
    symbol="⟨σ_k⟩",
    formula="n⁻¹ Σ_i σ_k(∂f/∂x (x_i))",
    source="B Eq 7, Def 3.7; Q77, Q80",
    cost="C backward passes",
    unit=UNIT,
    needs=["input"],
)
def input_singular_values(bench: Bench, *, num: int = 10) -> Estimate:
    """The mean singular values of the input-output Jacobian, with the standard error of a mean over samples."""
    check_count("num", num, 1, "it is the number of singular values")
    gram = bench.sensitivity.input_gram
    if gram is None:
        bench.shared(input_norms)  # says why
    assert gram is not None
    values = singular_values(gram)[:, :num]
    error = values.std(0) / len(values) ** 0.5 if len(values) > 1 else torch.full_like(values[0], torch.inf)
    labels = tuple(f"σ{k}" for k in range(1, values.shape[1] + 1))
    return Estimate(values.mean(0), error, "standard error", "data sample", labels=labels)


@metric(
    symbol="max‖MJ‖",
    formula="max_i ‖∂ softmax(f)/∂x (x_i)‖₂",
    source="A B.1, Figs 1, 6-11; Q29, Q71",
    cost=COST,
    unit="1 / input",
    needs=["input_norms"],
)
def softmax_input_jacobian_norm(bench: Bench) -> Estimate:
    """The largest spectral norm over samples of the softmaxed model's Jacobian; at most half that of the logits."""
    norms = bench.shared(softmax_norms)
    return norms.maximum(_dead(norms))


@metric(
    symbol="MLS softmax",
    formula="n⁻¹ Σ_i ‖∂ softmax(f)/∂x (x_i)‖₂",
    source="A B.1, B Def 3.7; Q29, Q80",
    cost=COST,
    unit="1 / input",
    needs=["input_norms"],
)
def softmax_mls(bench: Bench) -> Estimate:
    """The mean over samples of the spectral norm of the Jacobian of the softmaxed model."""
    norms = bench.shared(softmax_norms)
    return norms.mean(_dead(norms))


@metric(
    symbol="MLS_inv",
    formula="n⁻¹ Σ_i Σ_p ‖∂f/∂x_p (x_i)‖² x_ip²",
    source="B Def E.3; Q85, B-e12",
    cost="C backward passes",
    unit="output²",
    needs=["input_columns"],
)
def input_invariant_mls(bench: Bench) -> Estimate:
    """Input-invariant MLS: sensitivities squared, each input coordinate weighed with its own square."""
    found = bench.sensitivity
    if found.input_columns is None or found.inputs is None:
        bench.shared(input_norms)  # says why
    assert found.input_columns is not None
    assert found.inputs is not None
    terms = found.input_columns * found.inputs.double().square()
    return Estimate(float(terms.flatten(1).sum(1).mean()))


@metric(
    symbol="⟨‖x‖²‖J‖²⟩",
    formula="n⁻¹ Σ_i ‖x_i‖² ‖∂f/∂x (x_i)‖₂²",
    source="B Def F.1; Q86",
    cost=COST,
    unit="output²",
    needs=["input_norms"],
)
def normalised_mls(bench: Bench) -> Estimate:
    """Normalised MLS: both factors squared, as defined; B takes it of a model with a sigmoid head."""
    norms = bench.shared(input_norms)
    assert bench.sensitivity.inputs is not None
    lengths = bench.sensitivity.inputs.flatten(1).double().square().sum(1).cpu()
    value, error = (lengths * norms.values.square()).mean(), (2 * lengths * norms.values * norms.errors).mean()
    return norms.estimate(float(value), float(error), _dead(norms))


@metric(
    symbol="max Δf/Δx",
    formula="max_{i≠j} ‖f(x_i) − f(x_j)‖ / ‖x_i − x_j‖",
    source="A Eq 23, Thm 5.1; Q74",
    cost="1 forward pass, n² distances",
    unit=UNIT,
)
def secant_slope(bench: Bench) -> Estimate:
    """The steepest secant between two samples: no Lipschitz constant of the model on their hull is smaller."""
    slopes = bench.shared(secant_slopes)
    return Estimate(float(slopes.largest), note=slopes.note)


@metric(
    symbol="Δf/Δx quantiles",
    formula="quantiles over pairs of ‖f(x_i) − f(x_j)‖ / ‖x_i − x_j‖",
    source="A Eq 23; Q74",
    cost="1 forward pass, n² distances",
    unit=UNIT,
)
def secant_quantiles(bench: Bench) -> Estimate:
    """How the slopes of secants between samples are spread over pairs."""
    slopes = bench.shared(secant_slopes)
    values = torch.cat([_quantiles(slopes.kept)[:-1], slopes.largest.reshape(1)])
    return Estimate(values, labels=LABELS, note=slopes.note)


def _quantiles(values: Tensor) -> Tensor:
    return torch.quantile(values.double(), torch.tensor(QUANTILES, dtype=torch.float64))


def _labelled(estimate: Estimate, labels: tuple[str, ...]) -> Estimate:
    return replace(estimate, labels=labels)


def _dead(norms: SampleNorms) -> str:
    """How many samples the outputs do not react to at all; they count as zero."""
    num = int((norms.values == 0).sum())
    return f"{num} of {len(norms.values)} samples have a zero Jacobian and count as zero" if num else ""


def _jackknifed(rows: Tensor, quantity: Callable[[Tensor], Tensor]) -> Estimate:
    """A function of the mean over random vectors with its bias and standard error by leaving one vector out."""
    value = float(quantity(rows))
    if len(rows) == 1:
        return Estimate(value)
    total = rows.sum(0, keepdim=True)
    left_out = torch.stack([quantity((total - row) / (len(rows) - 1)) for row in rows])
    num = len(rows)
    value = num * value - (num - 1) * float(left_out.mean())
    error = float(((num - 1) * left_out.var(correction=0)).sqrt())
    return Estimate(value, error, "standard error", "random vectors", products=num)
