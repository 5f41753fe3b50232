"""The peers as their users call them, with a counter of products where they have one."""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from curvlinops import GGNLinearOperator, HessianLinearOperator, hutchpp_trace
from pyhessian import hessian as pyhessian
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import Tensor

from benchmarks.contest import Outcome
from benchmarks.networks import Setting


def pyhessian_eigenvalue(setting: Setting, seed: int, **options: float) -> Outcome:
    """Power iteration, with its defaults unless told otherwise."""
    torch.manual_seed(seed)
    peer, count = _pyhessian(setting)
    values, _ = peer.eigenvalues(**options)
    return Outcome(values[0], count())


def pyhessian_certified(setting: Setting, seed: int, rtol: float) -> Outcome:
    """Its power iteration, ended as soon as its own residual r = ‖Hv − θv‖ says that θ is right to `rtol`.

    PyHessian computes Hv anyway and makes nothing of it. By r/2 ≤ rtol·θ it is asked for no more than ours, which never
    claims less than half its residual. The residual takes some hundredths of a product.
    """
    torch.manual_seed(seed)
    peer, count = _pyhessian(setting, partial(_end_when_certified, rtol))
    try:
        peer.eigenvalues(maxIter=10_000, tol=0.0)
    except _Certified as found:
        return Outcome(found.value, count(), found.error)
    raise RuntimeError(f"power iteration is not certified to {rtol:g} after {count()} products")


class _Certified(Exception):  # noqa: N818  an end, not an error
    def __init__(self, value: float, error: float) -> None:
        super().__init__()
        self.value, self.error = value, error


def _end_when_certified(rtol: float, vector: list[Tensor], product: Sequence[Tensor]) -> None:
    pairs = list(zip(vector, product, strict=True))
    value = float(sum((v * image).sum() for v, image in pairs) / sum(v.square().sum() for v in vector))
    error = 0.5 * float(torch.stack([(image - value * v).norm() for v, image in pairs]).norm())
    if error <= rtol * abs(value):
        raise _Certified(value, error)


def pyhessian_top(setting: Setting, seed: int, truth: list[float], **options: float) -> Outcome:
    """Deflated power iteration; the eigenvalue that is furthest off is compared, as a multiple of what it should be."""
    torch.manual_seed(seed)
    peer, count = _pyhessian(setting)
    values, _ = peer.eigenvalues(top_n=len(truth), **options)
    ratios = [value / right for value, right in zip(values, truth, strict=True)]
    return Outcome(max(ratios, key=lambda ratio: abs(ratio - 1)), count())


def power_iteration(matrix: object, seed: int, *, tol: float) -> Outcome:
    """PyHessian's rule on any matrix: stop when the Rayleigh quotient moves by less than `tol`."""
    vector = torch.randn(matrix.shape[0], generator=torch.Generator().manual_seed(seed), dtype=matrix.dtype)
    values: list[float] = []
    while len(values) < 2 or abs(values[-1] - values[-2]) > tol * abs(values[-2]):
        vector = vector / vector.norm()
        image = matrix @ vector
        values.append(float(vector @ image))
        vector = image
    return Outcome(values[-1], len(values))


def pyhessian_trace(setting: Setting, seed: int, num: int) -> tuple[list[float], int]:
    """`num` probes of Hutchinson's estimator."""
    torch.manual_seed(seed)
    peer, count = _pyhessian(setting)
    return peer.trace(maxIter=num, tol=0.0), count()


def pyhessian_density(setting: Setting, seed: int, num_vectors: int, num_steps: int) -> Outcome:
    """Stochastic Lanczos quadrature; its `torch.eig` is gone from torch and is lent one here."""
    torch.manual_seed(seed)
    peer, count = _pyhessian(setting)
    original, torch.eig = getattr(torch, "eig", None), _eig
    try:
        nodes, weights = peer.density(iter=num_steps, n_v=num_vectors)
    finally:
        torch.eig = original
    size = sum(p.numel() for p in setting.model.parameters())
    trace = size * float(np.mean([np.dot(np.real(n), np.real(w)) for n, w in zip(nodes, weights, strict=True)]))
    return Outcome(trace, count())


def curvlinops_norm(setting: Setting, seed: int, *, kind: str) -> Outcome:
    """Largest eigenvalue by ARPACK to a tolerance of 1e-3."""
    counted = _Counted(_curvlinops(setting, kind).to_scipy())
    start = np.random.default_rng(seed).standard_normal(counted.shape[0]).astype(np.float32)
    return Outcome(float(eigsh(counted, k=1, which="LA", tol=1e-3, v0=start)[0][0]), counted.products)


def curvlinops_trace(setting: Setting, seed: int, num: int) -> float:
    """Hutch++ with `num` products."""
    torch.manual_seed(seed)
    return float(hutchpp_trace(_curvlinops(setting, "hessian"), num_matvecs=num))


def _pyhessian(setting: Setting, watch: Callable[..., None] = lambda *_: None) -> tuple[pyhessian, object]:
    """The peer on a setting, and the number of its products; `watch` sees each vector and its product."""
    module = sys.modules[pyhessian.__module__]
    products = [0]
    plain = module.hessian_vector_product

    def counting(gradients: object, parameters: object, vector: list[Tensor]) -> Sequence[Tensor]:
        products[0] += 1
        product = plain(gradients, parameters, vector)
        watch(vector, product)
        return product

    module.hessian_vector_product = counting
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peer = pyhessian(copy.deepcopy(setting.model), setting.loss, data=(setting.inputs, setting.targets), cuda=False)

    def count() -> int:
        module.hessian_vector_product = plain
        return products[0]

    return peer, count


def _curvlinops(setting: Setting, kind: str) -> HessianLinearOperator | GGNLinearOperator:
    make = HessianLinearOperator if kind == "hessian" else GGNLinearOperator
    model = copy.deepcopy(setting.model)
    parameters = [p for p in model.parameters() if p.requires_grad]
    data = [(setting.inputs, setting.targets)]
    return make(model, setting.loss, parameters, data, check_deterministic=False)


class _Counted(LinearOperator):
    def __init__(self, inner: LinearOperator) -> None:
        super().__init__(inner.dtype, inner.shape)
        self.inner, self.products = inner, 0

    def _matvec(self, vector: np.ndarray) -> np.ndarray:
        self.products += 1
        return self.inner @ vector


def _eig(matrix: Tensor, eigenvectors: bool) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    values, vectors = torch.linalg.eigh(matrix)
    return torch.stack([values, torch.zeros_like(values)], 1), vectors
