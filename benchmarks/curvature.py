"""Contests about curvature: top eigenvalues, Gauss-Newton norm, trace, density."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from scipy.sparse.linalg import eigsh

import spherometer as sm
from benchmarks import peers
from benchmarks.contest import Outcome, Row, console, contest
from benchmarks.networks import Setting, setting, settings


def rows(name: str, *, quick: bool) -> Iterator[Row]:
    """The contests of one network: all on the smallest, which is also the quick one, few on the large."""
    if name == "3FCN":
        yield from hard_spectrum()
    elif quick:
        return
    for run in CONTESTS.get(name, ()):
        yield from run(setting(name))
    yield from top_eigenvalue(settings(name))


def top_eigenvalue(stages: Sequence[Setting]) -> list[Row]:
    """The largest Hessian eigenvalue, ours certified to 1e-3, at several stages of training.

    Power iteration takes few or many products by chance of its start, so every tool runs three times at each stage.
    PyHessian runs as it comes, which is quick where it stops at a wrong value, and until its own residual certifies
    what ours certifies.
    """
    name = stages[0].name
    truths = [_truth(one, 1)[0] if name == "3FCN" else _certified(sm.Hessian, one) for one in stages]

    def at_stage(run: Callable[[Setting, int], Outcome]) -> Callable[[int], Outcome]:
        return lambda seed: _relative(run(stages[seed % len(stages)], seed), truths[seed % len(stages)])

    power = "≥ 2.5" if name in ("3FCN", "6CNN") else "≥ 1.7"
    certified = "PyHessian, until certified"
    wanted = {"PyHessian": power, certified: power, "curvlinops + eigsh": "≥ 5"}
    tools = {
        "spherometer": at_stage(lambda one, seed: _ours(_top(sm.Hessian, one, seed))),
        "PyHessian": at_stage(peers.pyhessian_eigenvalue),
        certified: at_stage(partial(peers.pyhessian_certified, rtol=1e-3)),
        "curvlinops + eigsh": at_stage(partial(peers.curvlinops_norm, kind="hessian")),
    }
    network, repeats = f"{name}, {len(stages)} stages", 3 * len(stages)
    once = () if name == "3FCN" else ("curvlinops + eigsh",)
    return contest("top eigenvalue", network, tools, truth=1.0, repeats=repeats, once=once, targets=wanted)


def top_ten(one: Setting) -> list[Row]:
    """The ten largest Hessian eigenvalues, ours certified to 1e-3; the worst of the ten is compared.

    PyHessian stops when an eigenvalue moves by less than its tolerance, which says little about its error: it runs
    once as it comes, and once with the tolerance at which all ten are right to 1e-3.
    """
    truth = _truth(one, 10)
    tools = {
        "spherometer": lambda seed: _worst(sm.eigenvalues(sm.Hessian(problem(one)), num=10, seed=seed), truth),
        "PyHessian": lambda seed: peers.pyhessian_top(one, seed, truth),
        "PyHessian, tol=1e-6": lambda seed: peers.pyhessian_top(one, seed, truth, maxIter=1000, tol=1e-6),
    }
    targets = {"PyHessian, tol=1e-6": "≥ 8"}
    return contest("10 eigenvalues", one.name, tools, truth=1.0, repeats=1, targets=targets)


def hard_spectrum() -> list[Row]:
    """The largest eigenvalue where the smallest is nearly its negative and the top is a cluster."""
    size = 3000
    values = torch.cat([torch.tensor([1.0, 0.995, 0.99, -0.98]), torch.linspace(-0.3, 0.3, size - 4)]).double()
    mirror = torch.eye(size, dtype=torch.float64) - 2 / size  # of the vector of ones: a rotation that is quickly made
    matrix = mirror @ (values[:, None] * mirror)
    tools = {
        "spherometer": lambda seed: _ours(sm.eigenvalues(matrix, rtol=1e-3, seed=seed)),
        "power iteration": lambda seed: peers.power_iteration(matrix, seed, tol=1e-3),
        "power iteration, tol=1e-6": lambda seed: peers.power_iteration(matrix, seed, tol=1e-6),
    }
    targets = {"power iteration, tol=1e-6": "≥ 5"}
    return contest("hard spectrum", "3,000 rows", tools, truth=1.0, targets=targets)


def gauss_newton_norm(one: Setting) -> list[Row]:
    """The largest eigenvalue of the Gauss-Newton matrix."""
    tools = {
        "spherometer": lambda seed: _ours(_top(sm.GaussNewton, one, seed)),
        "curvlinops + eigsh": lambda seed: peers.curvlinops_norm(one, seed, kind="ggn"),
    }
    truth = _certified(sm.GaussNewton, one)
    targets, repeats = {"curvlinops + eigsh": "≥ 3"}, 3 if one.name == "3FCN" else 1
    return contest("Gauss-Newton norm", one.name, tools, truth=truth, repeats=repeats, targets=targets)


def trace(one: Setting) -> list[Row]:
    """The trace of the Hessian to 1 %: exact here; a peer's time is that of its probes times the number it needs.

    The number is what the variance of the probes says, not what PyHessian's own stop rule takes.
    """
    truth = float(sm.trace(sm.Hessian(reference(one))).value)
    probes = 30 if one.name == "3FCN" else 9
    spread = statistics.stdev(peers.pyhessian_trace(one, 0, probes)[0])
    needed = max(probes, round((spread / (0.01 * truth)) ** 2))
    console.print(f"  trace, {one.name}: Hutchinson needs {needed} probes for 1 %", style="dim")
    tools = {
        "spherometer": lambda seed: _ours(sm.trace(sm.Hessian(problem(one)), rtol=0.01, seed=seed)),
        f"PyHessian, {probes} probes": lambda seed: _hutchinson(one, seed, probes),
        f"curvlinops Hutch++, {2 * probes} products": lambda seed: Outcome(
            peers.curvlinops_trace(one, seed, 2 * probes), 2 * probes
        ),
    }
    found = contest("trace", one.name, tools, truth=truth, repeats=1)
    extrapolated = found[1].seconds * needed / probes
    row = Row(
        "trace", one.name, f"PyHessian, {needed} probes (from the time of {probes})", str(needed), extrapolated,
        extrapolated / found[0].seconds, "1e-02", "none", "≥ 20",
    )  # fmt: skip
    return [*found, row]


def density(one: Setting) -> list[Row]:
    """Spectral density by 4 probes of 80 Lanczos steps, full reorthogonalisation; the first moment is compared.

    PyHessian takes one probe after the other: where they are slow, four times the time of one tells it.
    """
    num_vectors, num_steps = 4, 80
    timed = num_vectors if one.name == "3FCN" else 1
    peer = "PyHessian" if timed == num_vectors else f"PyHessian (from the time of {timed} probe)"
    tools = {
        "spherometer": lambda seed: _density(one, seed, num_vectors, num_steps),
        peer: lambda seed: peers.pyhessian_density(one, seed, timed, num_steps),
    }
    truth = float(sm.trace(sm.Hessian(reference(one))).value)
    ours, theirs = contest("density 4 x 80", one.name, tools, truth=truth, repeats=1, targets={peer: "≥ 1.5"})
    scale, products = num_vectors / timed, str(num_vectors * num_steps)
    return [ours, replace(theirs, products=products, seconds=scale * theirs.seconds, ratio=scale * theirs.ratio)]


CONTESTS = {"3FCN": (top_ten, density, gauss_newton_norm, trace), "6CNN": (density, gauss_newton_norm, trace)}


def problem(one: Setting) -> sm.Problem:
    """The setting as a problem; made anew each time, as a user would."""
    return sm.Problem(one.model, one.loss, (one.inputs, one.targets))


def reference(one: Setting) -> sm.Problem:
    """The same in float64, with room for its graph."""
    return sm.Problem(one.model, one.loss, (one.inputs, one.targets), dtype=torch.float64, memory=1.6e10)


def _truth(one: Setting, num: int) -> list[float]:
    """The largest eigenvalues by ARPACK on float64 products."""
    double = sm.Hessian(reference(one))
    return sorted(eigsh(double.to_scipy(), k=num, which="LA", tol=1e-6)[0].tolist(), reverse=True)


def _certified(kind: type[sm.Operator], one: Setting) -> float:
    """The largest eigenvalue in float64 to 1e-4, from the vectors that float32 found.

    Float64 convolutions are some ten times slower than float32.
    """
    start = sm.eigenvalues(kind(problem(one)), rtol=1e-3, vectors=2, seed=99).vectors
    return float(sm.eigenvalues(kind(reference(one)), start=start, rtol=1e-4).value)


def _top(kind: type[sm.Operator], one: Setting, seed: int) -> sm.Estimate:
    return sm.eigenvalues(kind(problem(one)), rtol=1e-3, seed=seed)


def _relative(outcome: Outcome, truth: float) -> Outcome:
    """An eigenvalue as a multiple of what it should be."""
    stated = None if outcome.stated is None else outcome.stated / truth
    return replace(outcome, value=outcome.value / truth, stated=stated)


def _worst(estimate: sm.Estimate, truth: list[float]) -> Outcome:
    """The eigenvalue that is furthest off, as a multiple of what it should be."""
    ratios = [float(value) / right for value, right in zip(estimate.value, truth, strict=True)]
    stated = max(float(error / abs(value)) for value, error in zip(estimate.value, estimate.error, strict=True))
    return Outcome(max(ratios, key=lambda ratio: abs(ratio - 1)), estimate.products, stated)


def _ours(estimate: sm.Estimate) -> Outcome:
    value, error = (x if isinstance(x, float) else float(x.reshape(-1)[-1]) for x in (estimate.value, estimate.error))
    return Outcome(value, estimate.products, error)


def _hutchinson(one: Setting, seed: int, num: int) -> Outcome:
    probes, products = peers.pyhessian_trace(one, seed, num)
    return Outcome(statistics.mean(probes), products)


def _density(one: Setting, seed: int, num_vectors: int, num_steps: int) -> Outcome:
    found = sm.spectral_density(sm.Hessian(problem(one)), num_vectors=num_vectors, num_steps=num_steps, seed=seed)
    moment = found.moment(1)
    return Outcome(float(moment.value), found.products, float(moment.error))
