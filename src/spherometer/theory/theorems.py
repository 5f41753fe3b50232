"""Theorems 4.3, 5.1 and 6.1 of paper A on a problem: both sides, printed and corrected, and which hypotheses hold.

All three bound how steep a model f is by its Jacobian at the samples and by the local variation V_i of the Jacobian on
the balls B(x_i, δ) that cover the support (Eq 5). f is the model, for cross-entropy its softmax: the space in which the
cost grows at least quadratically (Q4).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from spherometer.metrics import Bench
from spherometer.metrics.sample_norms import input_norms, softmax_norms
from spherometer.metrics.sharpening import Fit, fit_of, steepest_pairs
from spherometer.problems import Problem
from spherometer.theory import arguments
from spherometer.theory.cover import Cover
from spherometer.theory.reading import ReadingError
from spherometer.theory.statement import Bound, Form, Forms, Hypothesis
from spherometer.theory.variation import Variation, jacobian_variation

INTERPOLATED = 1e-3  # residual that counts as none in the printed form of 6.1; the corrected form adds it


@dataclass(frozen=True)
class Steepness:
    """‖Jf(x_i)‖ of every sample, and V_i on the ball of this radius around it."""

    norms: Tensor
    variation: Tensor
    radius: float

    @property
    def sums(self) -> Tensor:
        """‖Jf(x_i)‖ + V_i: no smaller than the Lipschitz constant of f on the ball."""
        return self.norms + self.variation


class Theorems:
    """The theorems of paper A on one problem.

    Args:
        cover: of the samples, from a known support or from held-out probes.
        held_out: inputs and targets of independent samples: where the error is measured, and secants too.
        target_lipschitz: Lipschitz constant of the target f* on the support; None: taken from below by the secants of
            targets, and the theorem that needs it says so.
        variation: radius -> V of every sample on a ball of that radius, by default `jacobian_variation`.

    Example:
        >>> cover = Cover.of_support(Cube(2), num_samples=200, epsilon=0.1)
        >>> print(Theorems(problem, cover, held_out, target_lipschitz=2**0.5).generalisation())
    """

    def __init__(
        self,
        problem: Problem,
        cover: Cover,
        held_out: tuple[Tensor, Tensor],
        *,
        target_lipschitz: float | None = None,
        variation: Callable[[float], Variation] | None = None,
    ) -> None:
        if target_lipschitz is not None and not (math.isfinite(target_lipschitz) and target_lipschitz >= 0):
            raise ValueError(f"target_lipschitz must be finite and not negative, got {target_lipschitz}")
        arguments.rows("held_out", held_out[0])
        self.problem, self.cover, self.variation = problem, cover, variation or self._variation
        self.held_out, self.target_lipschitz = held_out, target_lipschitz
        self._known: dict[float, tuple[Steepness, Steepness]] = {}

    def lipschitz(self) -> Forms:
        """‖f‖_Lip ≤ max_i (‖Jf(x_i)‖ + V_i) (Thm 4.3; T46).

        The left side is the steepest secant between any two samples, held-out ones included. Corrected (A-e6): times
        the longest detour inside the support.
        """
        left, cover = float(self._all_pairs[2]), self.cover
        return Forms(
            self._bound("printed", "A Theorem 4.3", "‖f‖_Lip ≤ max(‖J‖ + V)", left, _largest, [cover.convex]),
            self._bound(
                "corrected",
                "A Theorem 4.3",
                "‖f‖_Lip ≤ detour · max(‖J‖ + V)",
                left,
                lambda found: self._detour * _largest(found),
                [cover.connected],
            ),
        )

    def sharpening(self) -> Forms:
        """max_{i≠j} (‖y_i − y_j‖ − 2ℓ)/‖x_i − x_j‖ ≤ max_i ‖Jf(x_i)‖ + max_i V_i (Thm 5.1; Q74, T47).

        Corrected: with each pair's own ℓ_i + ℓ_j for 2ℓ, the largest sum ‖J‖ + V for the sum of the largest, and times
        the longest detour inside the support.
        """
        (inputs, fit), cover = self.train, self.cover
        pairs = steepest_pairs(inputs, fit)[0]
        space = "probabilities" if fit.softmaxed else "outputs"
        growth = Hypothesis("cost grows quadratically", True, f"c ≥ {fit.growth:g}‖z − y‖² on {space}: Q4")
        return Forms(
            self._bound(
                "printed",
                "A Theorem 5.1",
                "(Δy − 2ℓ)/Δx ≤ max‖J‖ + max V",
                float(pairs[0]),
                lambda found: float(found.norms.max() + found.variation.max()),
                [growth, cover.convex],
            ),
            self._bound(
                "corrected",
                "A Theorem 5.1",
                "(Δy − ℓ_i − ℓ_j)/Δx ≤ detour · max(‖J‖ + V)",
                float(pairs[1]),
                lambda found: self._detour * _largest(found),
                [growth, cover.connected],
            ),
        )

    def generalisation(self) -> Forms:
        """E‖f − f*‖ ≤ δ (‖f*‖_Lip + max_i (‖Jf(x_i)‖ + V_i)) with probability 1 − ε (Thm 6.1; Q75, T47, gap G2).

        The left side is a mean over the held-out samples. The printed form needs f(x_i) = y_i; corrected, the largest
        over samples of ‖f(x_i) − y_i‖ + δ (‖f*‖_Lip + ‖Jf(x_i)‖ + V_i), it needs nothing of the kind.
        """
        errors, missed, steep = self.test[1].residuals, self.train[1].residuals.cpu(), self._target
        most, given = float(missed.max()), self.target_lipschitz is not None
        exact = Hypothesis("interpolation reached", most <= INTERPOLATED, f"largest ‖f(x_i) − y_i‖ = {most:.3g}")
        source = "given" if given else "from below, by the secants of targets"
        target = Hypothesis("Lipschitz constant of the target known", given or None, f"{steep:.4g}, {source}")
        bar = float(errors.std()) / len(errors) ** 0.5 if len(errors) > 1 else math.inf
        printed = self._bound(
            "printed",
            "A Theorem 6.1",
            "E‖f − f*‖ ≤ δ(‖f*‖_Lip + max(‖J‖ + V))",
            float(errors.mean()),
            lambda found: found.radius * (steep + _largest(found)),
            [exact, target],
        )
        corrected = self._bound(
            "corrected",
            "A Theorem 6.1",
            "E‖f − f*‖ ≤ max(‖f(x_i) − y_i‖ + δ(‖f*‖_Lip + ‖J‖ + V))",
            float(errors.mean()),
            lambda found: float((missed + found.radius * (steep + found.sums)).max()),
            [target],
        )
        return Forms(replace(printed, left_error=bar), replace(corrected, left_error=bar))

    def to_dict(self) -> dict[str, Any]:
        """All three as plain data."""
        return {name: getattr(self, name)().to_dict() for name in ("lipschitz", "sharpening", "generalisation")}

    @cached_property
    def train(self) -> tuple[Tensor, Fit]:
        """Inputs and fit of the samples."""
        return _inputs_and_fit(self._bench)

    @cached_property
    def test(self) -> tuple[Tensor, Fit]:
        """Inputs and fit of the held-out samples."""
        return _inputs_and_fit(Bench(self.problem.restricted([self.held_out]), places=frozenset()))

    def steepness(self, radius: float) -> tuple[Steepness, Steepness]:
        """‖Jf(x_i)‖ and V_i on balls of this radius, with V from below and from above."""
        if radius not in self._known:
            found = self.variation(radius)
            above = torch.full_like(found.lower, torch.inf) if found.upper is None else found.upper
            below, above = found.lower.double().cpu(), above.double().cpu()
            self._known[radius] = Steepness(self._norms, below, radius), Steepness(self._norms, above, radius)
        return self._known[radius]

    def _bound(
        self,
        form: Form,
        theorem: str,
        statement: str,
        left: float,
        right: Callable[[Steepness], float],
        hypotheses: list[Hypothesis],
    ) -> Bound:
        """One form of a theorem, at the radius of that form and with what this radius rests on."""
        printed = form == "printed"
        radius = self.cover.printed if printed else self.cover.corrected
        below, above = self.steepness(radius)
        most = float(above.variation.max())
        known = math.isfinite(most)
        certificate = Hypothesis(
            "variation bounded from above", known or None, f"V ≤ {most:.4g}" if known else "no certificate here"
        )
        facts = self.cover.printed_facts if printed else self.cover.corrected_facts
        return Bound(theorem, form, statement, left, right(above), right(below), (*hypotheses, *facts, certificate))

    def _variation(self, radius: float) -> Variation:
        inputs, model = self._bench.sensitivity.inputs, self.problem.model
        assert inputs is not None
        function = nn.Sequential(model, nn.Softmax(1)) if self.train[1].softmaxed else model
        try:
            return jacobian_variation(function, inputs, radius)
        except ReadingError:  # a model without a certificate
            return jacobian_variation(function, inputs, radius, certified=False)

    @property
    def _detour(self) -> float:
        return math.inf if self.cover.detour is None else self.cover.detour

    @cached_property
    def _bench(self) -> Bench:
        return Bench(self.problem, places=frozenset({"input_norms"}))

    @cached_property
    def _norms(self) -> Tensor:
        norms = self._bench.shared(softmax_norms if self.train[1].softmaxed else input_norms)
        return (norms.values + norms.errors).double().cpu()

    @cached_property
    def _target(self) -> float:
        return float(self._all_pairs[3]) if self.target_lipschitz is None else self.target_lipschitz

    @cached_property
    def _all_pairs(self) -> Tensor:
        """Steepest secants over samples and held-out ones together."""
        (inputs, fit), (more, other) = self.train, self.test
        return steepest_pairs(torch.cat([inputs, more]), fit.joined(other))[0]


def _largest(found: Steepness) -> float:
    return float(found.sums.max())


def _inputs_and_fit(bench: Bench) -> tuple[Tensor, Fit]:
    if bench.sensitivity.inputs is None:
        raise ValueError("the model's input holds no floating-point tensor (tokens?): samples have no distance")
    return bench.sensitivity.inputs.flatten(1).double(), bench.shared(fit_of)
