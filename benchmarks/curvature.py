"""Contests about curvature: top eigenvalues, Gauss-Newton norm, trace, density."""

from __future__ import annotations

import statistics
from functools import cache

import torch
from scipy.sparse.linalg import eigsh

import spherometer as sm
from benchmarks import peers
from benchmarks.contest import Outcome, Row, console, contest
from benchmarks.networks import NETWORKS, Setting, setting


def rows(*, quick: bool) -> list[Row]:
    """Every contest of this file."""
    networks = ["3FCN"] if quick else list(NETWORKS)
    found: list[Row] = []
    found += top_ten(setting("3FCN"))
    found += density(setting("3FCN"))
    for name in ["3FCN"] if quick else ["3FCN", "6CNN"]:
        found += gauss_newton_norm(setting(name))
        found += trace(setting(name))
    for name in networks:
        found += top_eigenvalue(setting(name))
    return found


def top_eigenvalue(one: Setting) -> list[Row]:
    """The largest Hessian eigenvalue, ours certified to 1e-3."""
    wanted = {"PyHessian": "≥ 2.5" if one.name in ("3FCN", "6CNN") else "≥ 1.7", "curvlinops + eigsh": "≥ 5"}
    tools = {
        "spherometer": lambda seed: _ours(sm.eigenvalues(sm.Hessian(problem(one)), rtol=1e-3, seed=seed)),
        "PyHessian": lambda seed: peers.pyhessian_eigenvalues(one, seed),
        "curvlinops + eigsh": lambda seed: peers.curvlinops_norm(one, seed, kind="hessian"),
    }
    return contest("top eigenvalue", one.name, tools, truth=_truth(one.name)[0], targets=wanted)


def top_ten(one: Setting) -> list[Row]:
    """The ten largest Hessian eigenvalues, ours certified to 1e-3; the tenth is compared."""
    tools = {
        "spherometer": lambda seed: _ours(sm.eigenvalues(sm.Hessian(problem(one)), num=10, rtol=1e-3, seed=seed)),
        "PyHessian": lambda seed: peers.pyhessian_eigenvalues(one, seed, num=10),
    }
    truth = _truth(one.name)[9]
    return contest("10 eigenvalues", one.name, tools, truth=truth, repeats=1, targets={"PyHessian": "≥ 8"})


def gauss_newton_norm(one: Setting) -> list[Row]:
    """The largest eigenvalue of the Gauss-Newton matrix."""
    tools = {
        "spherometer": lambda seed: _ours(sm.eigenvalues(sm.GaussNewton(problem(one)), rtol=1e-3, seed=seed)),
        "curvlinops + eigsh": lambda seed: peers.curvlinops_norm(one, seed, kind="ggn"),
    }
    operator = sm.GaussNewton(reference(one))
    truth = float(eigsh(operator.to_scipy(), k=1, which="LA", tol=1e-6)[0][0])
    targets = {"curvlinops + eigsh": "≥ 3"}
    return contest("Gauss-Newton norm", one.name, tools, truth=truth, targets=targets)


def trace(one: Setting) -> list[Row]:
    """The trace of the Hessian to 1 %: exact here; a peer's time is that of its probes times the number it needs.

    The number is what the variance of 30 probes says, not what PyHessian's own stop rule takes.
    """
    truth = float(sm.trace(sm.Hessian(reference(one))).value)
    probes, _ = peers.pyhessian_trace(one, 0, 30)
    needed = max(30, round((statistics.stdev(probes) / (0.01 * truth)) ** 2))
    console.print(f"  trace, {one.name}: Hutchinson needs {needed} probes for 1 %", style="dim")
    tools = {
        "spherometer": lambda seed: _ours(sm.trace(sm.Hessian(problem(one)), rtol=0.01, seed=seed)),
        "PyHessian, 30 probes": lambda seed: _hutchinson(one, seed),
        "curvlinops Hutch++, 60 products": lambda seed: Outcome(peers.curvlinops_trace(one, seed, 60), 60),
    }
    found = contest("trace", one.name, tools, truth=truth, repeats=1)
    ours, theirs = found[0], found[1]
    extrapolated = theirs.seconds * needed / 30
    row = Row(
        "trace", one.name, f"PyHessian, {needed} probes (from the time of 30)", str(needed), extrapolated,
        extrapolated / ours.seconds, "1e-02", "none", "≥ 20",
    )  # fmt: skip
    return [*found, row]


def density(one: Setting) -> list[Row]:
    """Spectral density by 4 probes of 80 Lanczos steps, full reorthogonalisation; the first moment is compared."""
    tools = {
        "spherometer": lambda seed: _density(one, seed),
        "PyHessian": lambda seed: peers.pyhessian_density(one, seed, 4, 80),
    }
    truth = float(sm.trace(sm.Hessian(reference(one))).value)
    return contest("density 4 x 80", one.name, tools, truth=truth, repeats=1, targets={"PyHessian": "≥ 1.5"})


def problem(one: Setting) -> sm.Problem:
    """The setting as a problem; made anew each time, as a user would."""
    return sm.Problem(one.model, one.loss, (one.inputs, one.targets))


def reference(one: Setting) -> sm.Problem:
    """The same in float64, with room for its graph."""
    return sm.Problem(one.model, one.loss, (one.inputs, one.targets), dtype=torch.float64, memory=1.6e10)


@cache
def _truth(name: str) -> list[float]:
    """Ten largest eigenvalues by ARPACK on float64 products."""
    operator = sm.Hessian(reference(setting(name)))
    num = 10 if name == "3FCN" else 1
    values = eigsh(operator.to_scipy(), k=num, which="LA", tol=1e-6)[0]
    return sorted(values.tolist(), reverse=True)


def _ours(estimate: sm.Estimate) -> Outcome:
    value, error = (x if isinstance(x, float) else float(x.reshape(-1)[-1]) for x in (estimate.value, estimate.error))
    return Outcome(value, estimate.products, error)


def _hutchinson(one: Setting, seed: int) -> Outcome:
    probes, products = peers.pyhessian_trace(one, seed, 30)
    return Outcome(statistics.mean(probes), products)


def _density(one: Setting, seed: int) -> Outcome:
    found = sm.spectral_density(sm.Hessian(problem(one)), num_vectors=4, num_steps=80, seed=seed)
    moment = found.moment(1)
    return Outcome(float(moment.value), found.products, float(moment.error))
