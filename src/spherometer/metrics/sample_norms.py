"""Spectral and Frobenius norms of every sample's Jacobian by the quickest way, worked out once for a bench."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from spherometer.estimators.side_by_side import largest_of_each
from spherometer.metrics.bench import Bench
from spherometer.operators.logit_hessian import logit_hessian, root_adjoint, root_product
from spherometer.operators.many_outputs import LocalGrams, local_grams
from spherometer.operators.sensitivity import Sensitivity, largest_singular_values
from spherometer.operators.trial import Trial
from spherometer.values import Estimate, Status

RTOL = 1e-3  # of each sample's norm, where it is not exact
NUM_PROBES = 32  # random vectors for each sample's Frobenius norm, where it is not exact


@dataclass(frozen=True)
class SampleNorms:
    """One norm for each sample with a bound on its error, and the products (two backward passes each) it took."""

    values: Tensor  # (n,)
    errors: Tensor  # (n,)
    products: int = 0

    def estimate(self, value: float | Tensor, error: float | Tensor, note: str = "") -> Estimate:
        """A quantity made from these norms: exact, or with the solver's bound."""
        missed = bool((self.errors > 2 * RTOL * self.values).any())
        message = f"a sample's norm is known to {float((self.errors / self.values).max()):.1g} only" if missed else ""
        status = Status(not missed, message)
        if not self.products:
            return Estimate(value, note=note)
        return Estimate(value, error, "bound", "solver", products=self.products, status=status, note=note)

    def mean(self, note: str = "") -> Estimate:
        """Their mean over samples."""
        return self.estimate(float(self.values.mean()), float(self.errors.mean()), note)

    def maximum(self, note: str = "") -> Estimate:
        """The largest of them."""
        return self.estimate(float(self.values.max()), float(self.errors.max()), note)


def input_norms(bench: Bench) -> SampleNorms:
    """‖J_i‖₂ of every sample at the input."""
    gram = _refuse_tokens(bench.sensitivity).input_gram
    return top_of(gram) if gram is not None else _by_lanczos(bench, "input")


def softmax_norms(bench: Bench) -> SampleNorms:
    """‖M_i J_i‖₂ of every sample: the Jacobian of the softmaxed model, M = diag(p) − pp' (Q29)."""
    found = _refuse_tokens(bench.sensitivity)
    if found.input_gram is None:
        return _by_lanczos(bench, "input", _Softmaxed)
    return top_of(softmax_gram(found))


def norms_at_layers(bench: Bench) -> dict[str, SampleNorms]:
    """‖∂f/∂x_i^l‖₂ of every sample at the input of every use of a layer, by its name."""
    layers = bench.sensitivity.layers
    if layers:
        return {layer.name: top_of(layer.gram) if layer.norms is None else _exact(layer.norms) for layer in layers}
    return {call.name: _by_lanczos(bench, call.name) for call in bench.shared(layer_trial).calls}


def layer_trial(bench: Bench) -> Trial:
    """How the model uses its linear maps; refused where it has none."""
    if not bench.trial.calls:
        raise ValueError("the model has no linear or convolutional layer: there is nothing to look into")
    return bench.trial


def layer_note(bench: Bench, names: Iterable[str]) -> str:
    """Which layers were used more than once, so that each use counts, and what is not among the layers."""
    again = sorted({name.split("#")[0] for name in names if "#" in name})
    left_out = bench.shared(layer_trial).left_out
    notes = [f"used more than once, each use counts: {', '.join(again)}"] if again else []
    notes += [f"not among the layers: {', '.join(left_out)}"] if left_out else []
    return "; ".join(notes)


def top_of(gram: Tensor) -> SampleNorms:
    """Square roots of the largest eigenvalues of Gram matrices (n, C, C)."""
    return _exact(largest_singular_values(gram))


def _exact(values: Tensor) -> SampleNorms:
    return SampleNorms(values.cpu(), torch.zeros_like(values.cpu()))


def singular_values(gram: Tensor) -> Tensor:
    """Singular values (n, C) in descending order, from Gram matrices (n, C, C)."""
    return torch.linalg.eigvalsh(gram).flip(1).clamp_min(0).sqrt().cpu()


def softmax_gram(found: Sensitivity) -> Tensor:
    """M J J' M for every sample."""
    assert found.input_gram is not None
    chances = found.outputs.double().softmax(1)
    middle = logit_hessian(chances)
    return middle @ found.input_gram @ middle


def squared_frobenius(bench: Bench) -> Tensor:
    """‖J_i‖_F² of every sample at the input: one row when exact, else one row per random vector, (rows, n).

    C·‖J_i'u‖² with u uniform on the unit sphere has the mean ‖J_i‖_F² (T24); each sample has its own u.
    """
    gram = _refuse_tokens(bench.sensitivity).input_gram
    if gram is not None:
        return gram.diagonal(dim1=1, dim2=2).sum(1)[None].cpu()
    stream = bench.generator("input Frobenius norms")
    parts = [torch.stack([_projected(part, stream) for _ in range(NUM_PROBES)]) for part in _grams(bench, "input")]
    return torch.cat(parts, dim=1)


def _projected(grams: LocalGrams, stream: torch.Generator) -> Tensor:
    directions = torch.randn(grams.num, grams.size, generator=stream, dtype=torch.float64)
    directions /= directions.norm(dim=1, keepdim=True)
    return grams.size * grams.rows(directions).flatten(1).double().square().sum(1).cpu()


class _Softmaxed:
    """M J J' M as a product."""

    def __init__(self, grams: LocalGrams) -> None:
        self.num, self.size, self.dtype = grams.num, grams.size, grams.dtype
        self._grams, self._chances = grams, grams.outputs.double().softmax(1).cpu()

    def __matmul__(self, vectors: Tensor) -> Tensor:
        return self._middle((self._grams @ self._middle(vectors)).cpu())

    def _middle(self, vectors: Tensor) -> Tensor:
        return root_product(self._chances, root_adjoint(self._chances, vectors))


def _by_lanczos(bench: Bench, place: str, wrap: Callable[[LocalGrams], object] = lambda grams: grams) -> SampleNorms:
    stream = bench.generator(f"Jacobian norms at {place}")
    parts = [largest_of_each(wrap(grams), rtol=2 * RTOL, generator=stream) for grams in _grams(bench, place)]  # type: ignore[arg-type]
    squares, errors = (torch.cat([getattr(part, key) for part in parts]) for key in ("values", "errors"))
    values = squares.sqrt()
    # √(λ+e) − √λ ≤ e / 2√λ
    return SampleNorms(values, errors / (2 * values).clamp_min(1e-300), max(part.products for part in parts))


def _grams(bench: Bench, place: str) -> Iterable[LocalGrams]:
    return local_grams(bench.problem, place, at=bench.weights)


def _refuse_tokens(found: Sensitivity) -> Sensitivity:
    if found.inputs is None:
        raise ValueError(
            "the model's input holds no floating-point tensor (tokens?), so the outputs have no derivative in it: "
            "measure at the layers instead, with 'nmls' or 'layer_mls'"
        )
    return found
