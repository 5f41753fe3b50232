"""Which layer makes the loss sharp: the Gauss-Newton norm as a sum over layers, each a product of three factors.

A's Eq 4 (T8) writes the conjugate Gauss-Newton matrix as Σ_l C (suffix Jacobian) (Df_l Df_l') (suffix Jacobian)' C'.
Along its top eigenvector u (a vector over all outputs) the norm is a sum of layer terms, and each is exactly
loss factor ‖Cu‖² x suffix factor ‖suffix' Cu‖²/‖Cu‖² x parameter factor ‖Df_l' δ‖² with δ the unit vector that arrives.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spherometer.metrics.bench import Bench
from spherometer.metrics.logit_bench import LogitBench, eigenvector_angles
from spherometer.metrics.registry import metric
from spherometer.operators.layer_terms import layer_terms
from spherometer.values import Estimate


@dataclass(frozen=True)
class Decomposition:
    """The layer terms of ‖G‖ along its top eigenvector, each the product loss x suffix x parameter."""

    layers: tuple[str, ...]
    terms: Tensor  # (number of layers,), in sum the Rayleigh quotient of the conjugate matrix
    loss: float
    suffix: Tensor
    parameter: Tensor
    angle: float  # bound on the sine between r and the true top eigenvector
    top: Estimate

    @property
    def reading(self) -> str:
        """One sentence on who drives the norm."""
        total = float(self.terms.sum())
        if total == 0:
            return "the Gauss-Newton matrix vanishes: no layer drives it"
        k = int(self.terms.argmax())
        doubt = "; the top eigenvalue is tied: another direction is as sharp" if self.angle >= 1 else ""
        return f"{self.layers[k]} makes {100 * float(self.terms[k]) / total:.0f} % of ‖G‖ = {total:.4g}{doubt}"

    @property
    def relative_errors(self) -> Tensor:
        """|δ‖w_l‖²| ≤ 2φ‖w_l‖‖w‖ + φ²‖w‖² relative to the term, for w turned by an angle φ."""
        ratio = (self.terms.sum() / self.terms).sqrt()
        return 2 * self.angle * ratio + (self.angle * ratio) ** 2


def decompose(bench: Bench, rtol: float = 1e-3) -> Decomposition:
    """The layer terms of ‖G‖: one product Jr, one M, one backward pass (A Eq 4; T8, gap G1).

    With r the top eigenvector of G, u ∝ C Jr is that of the conjugate matrix, so the cotangent C'u is MJr scaled.
    """
    jacobian = bench.shared(LogitBench).jacobian
    top = bench.extreme("gauss_newton", num=min(2, bench.problem.num_parameters), rtol=rtol)
    assert top.vectors is not None
    angle = float(eigenvector_angles(bench.gauss_newton, top, 1)[0])
    change = (jacobian @ top.vectors[:, 0]).view_as(jacobian.outputs)
    curved = jacobian.curved(change)
    energy = float((change.double() * curved.double()).sum())  # N r'Gr
    scale = (energy * len(change)) ** -0.5 if energy > 0 else 0.0
    norms, arriving = layer_terms(jacobian, scale * curved)
    layers = _grouped(norms)
    terms = torch.tensor(list(layers.values()), dtype=torch.float64)
    loss = float(curved.double().square().sum()) / energy if energy > 0 else 0.0
    reached = torch.tensor([arriving.get(name, torch.nan) for name in layers], dtype=torch.float64) * len(change)
    suffix = reached / loss if loss > 0 else torch.full_like(reached, torch.nan)
    return Decomposition(tuple(layers), terms, loss, suffix, terms / (loss * suffix), angle, top)


@metric(
    symbol="‖G‖_l",
    formula="‖J_l'C'u‖², u the top eigenvector of the conjugate matrix; they sum to ‖G‖",
    source="A Eq 4; Q33, T8, gap G1",
    cost="Gauss-Newton norm, 2 products",
    unit="loss / weight²",
)
def sharpness_by_layer(bench: Bench, *, rtol: float = 1e-3) -> Estimate:
    """The share of each layer's parameters in the Gauss-Newton norm: which layer makes the loss sharp."""
    parts = _parts(bench, rtol)
    return _vector(parts, parts.terms, parts.reading)


@metric(
    symbol="‖C'u‖²",
    formula="curvature of the loss in the outputs along the top eigenvector u",
    source="A Eq 4; gap G1",
    cost="Gauss-Newton norm, 2 products",
    unit="loss / output²",
)
def loss_factor(bench: Bench, *, rtol: float = 1e-3) -> Estimate:
    """The factor of the loss in every layer's share; for softmax cross-entropy at most the largest impurity."""
    parts = _parts(bench, rtol)
    note = "share of a layer = loss x suffix x parameter"
    return Estimate(
        parts.loss, 2 * parts.angle * parts.loss, "bound", "solver", products=parts.top.products + 2, note=note
    )


@metric(
    symbol="‖suffix_l'‖²",
    formula="‖∂z/∂(output of layer l)' C'u‖² / ‖C'u‖²",
    source="A Eq 4; T8, gap G1",
    cost="Gauss-Newton norm, 2 products",
    unit="(output / activation)²",
)
def suffix_factors(bench: Bench, *, rtol: float = 1e-3) -> Estimate:
    """How much the layers after each layer amplify, along the sharpest direction; 1 for the last layer."""
    parts = _parts(bench, rtol)
    return _vector(parts, parts.suffix, _largest(parts, parts.suffix, "the layers after {} amplify most"))


@metric(
    symbol="‖Df_l'‖²",
    formula="N⁻¹ ‖Df_l' δ‖², δ the unit vector that arrives at layer l",
    source="A Eq 4, App C.2; Q13, T8, gap G1",
    cost="Gauss-Newton norm, 2 products",
    unit="(activation / weight)²",
)
def parameter_factors(bench: Bench, *, rtol: float = 1e-3) -> Estimate:
    """How strongly each layer's output reacts to its own parameters; for a linear layer the size of its features."""
    parts = _parts(bench, rtol)
    return _vector(parts, parts.parameter, _largest(parts, parts.parameter, "{} reacts most to its own parameters"))


class _Decompositions:
    """Those made so far on a bench, by tolerance."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.known: dict[float, Decomposition] = {}

    def at(self, rtol: float) -> Decomposition:
        if rtol not in self.known:
            self.known[rtol] = decompose(self.bench, rtol)
        return self.known[rtol]


def _parts(bench: Bench, rtol: float) -> Decomposition:
    return bench.shared(_Decompositions).at(rtol)


def _grouped(norms: dict[str, float]) -> dict[str, float]:
    """Squared norms of parameter tensors added up by the module that owns them."""
    layers: dict[str, float] = {}
    for name, norm in norms.items():
        owner = name.rpartition(".")[0]
        layers[owner] = layers.get(owner, 0.0) + norm
    return layers


def _largest(parts: Decomposition, values: Tensor, sentence: str) -> str:
    missing = int(values.isnan().sum())
    note = f"{missing} layers are used in a way that hides their output, or nothing arrives there" if missing else ""
    if missing == len(values):
        return note
    return "; ".join(filter(None, [sentence.format(parts.layers[int(values.nan_to_num(-1.0).argmax())]), note]))


def _vector(parts: Decomposition, values: Tensor, note: str) -> Estimate:
    """One number for each layer; the relative error of its share stands for that of its factors too."""
    names = tuple(name or "(model)" for name in parts.layers)
    return Estimate(
        values,
        (values * parts.relative_errors).nan_to_num(0.0),
        "bound",
        "solver",
        products=parts.top.products + 2,
        status=parts.top.status,
        labels=names,
        note=note,
    )
