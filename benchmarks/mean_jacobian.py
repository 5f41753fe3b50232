"""The norm of the mean logit-weight Jacobian: C backward passes and a C x C Gram against Algorithm 2 of paper C (L2).

Both see the same network and batch in the same process and take turns; the truth is the Gram matrix in double
precision.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

import spherometer as sm
from benchmarks.contest import Outcome, Row, contest
from benchmarks.networks import Setting, setting
from spherometer.operators import MeanJacobianGram, OutputJacobian

QUANTITY = "norm of the mean logit Jacobian"
NUM_SAMPLES = {"3FCN": 256, "6CNN": 128}  # few: Algorithm 2 takes up to hundreds of backward passes


def rows(*, quick: bool) -> list[Row]:
    """One contest for each network."""
    found: list[Row] = []
    for name in ["3FCN"] if quick else list(NUM_SAMPLES):
        given, num = setting(name), NUM_SAMPLES[name]
        found += race(replace(given, inputs=given.inputs[:num], targets=given.targets[:num]))
    return found


def race(given: Setting) -> list[Row]:
    double = sm.Problem(given.model, given.loss, (given.inputs, given.targets), dtype=torch.float64)
    truth = float(_top(MeanJacobianGram(OutputJacobian(double)).exact()))
    tools = {
        "spherometer": lambda seed: gram(given),  # noqa: ARG005
        "spherometer, Lanczos": lambda seed: lanczos(given, seed),
        "paper C, Algorithm 2": lambda seed: algorithm_2(given, seed),
    }
    return contest(QUANTITY, given.name, tools, truth=truth, targets={"paper C, Algorithm 2": "≥ 6"})


def gram(given: Setting) -> Outcome:
    """C backward passes, exact."""
    problem = sm.Problem(given.model, given.loss, (given.inputs, given.targets))
    matrix = MeanJacobianGram(OutputJacobian(problem)).exact()
    return Outcome(float(_top(matrix)), products=len(matrix))


def lanczos(given: Setting, seed: int) -> Outcome:
    """One J'u and one Jv for each product: the way for many outputs."""
    problem = sm.Problem(given.model, given.loss, (given.inputs, given.targets))
    found = sm.eigenvalues(MeanJacobianGram(OutputJacobian(problem)), num=2, rtol=1e-4, seed=seed)
    square = float(found.value[0])
    return Outcome(square**0.5, products=2 * found.products, stated=float(found.error[0]) / (2 * square))


def algorithm_2(given: Setting, seed: int, *, rtol: float = 1e-4, max_steps: int = 100) -> Outcome:
    """v ∝ ∇θ⟨u'z⟩, then u_c ∝ v'∇θ⟨z_c⟩ for each c, until v'⟨J⟩u changes by less than rtol (C App E.5).

    Kinder than the paper's text: the forward graph is built once and kept.
    """
    weights = list(given.model.parameters())
    means = given.model(given.inputs).mean(0)
    u = torch.randn(len(means), generator=torch.Generator().manual_seed(seed))
    u, value, passes = u / u.norm(), 0.0, 0
    for _ in range(max_steps):
        v = _gradient(means @ u, weights)
        norm = v.norm()
        u = torch.stack([_gradient(mean, weights) @ v / norm for mean in means])
        before, value = value, float(u.norm())
        u, passes = u / u.norm(), passes + 1 + len(means)
        if abs(value - before) < rtol * value:
            break
    return Outcome(value, products=passes)


def _gradient(scalar: Tensor, weights: list[Tensor]) -> Tensor:
    gradients = torch.autograd.grad(scalar, weights, retain_graph=True, allow_unused=True)
    parts = [torch.zeros_like(w) if g is None else g for g, w in zip(gradients, weights, strict=True)]
    return torch.cat([part.reshape(-1) for part in parts])


def _top(matrix: Tensor) -> Tensor:
    return torch.linalg.eigvalsh(matrix)[-1].sqrt()
