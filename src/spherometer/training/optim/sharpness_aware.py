"""SAM and ASAM: the way up is that of the loss itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from spherometer.training.arguments import not_negative
from spherometer.training.optim.two_pass import Ascent, Closure, TwoPass, total_norm


class SAM(TwoPass):
    """θ̂ = θ + ρ ∇L/‖∇L‖, then a step from θ with ∇L(θ̂): sharpness-aware minimisation.

    Foret et al. 2021 Eq 2-3; L11. `rho=0` is the base optimiser. Papers A and C use ρ = 0.05 (CIFAR-10) and 0.1
    (CIFAR-100). Arguments and the closure: see `TwoPass`.

    Example:
        >>> optimizer = sm.optim.SAM(model.parameters(), torch.optim.SGD, rho=0.05, model=model, lr=0.1)
        >>> loss = optimizer.step(closure)
    """

    def __init__(
        self,
        params: Any,
        base: Callable[..., Optimizer],
        *,
        rho: float = 0.05,
        model: nn.Module | None = None,
        **options: Any,
    ) -> None:
        super().__init__(params, base, rho=rho, model=model, **options)

    def _first_pass(self, closure: Closure, weights: Sequence[Tensor], scale: float) -> Ascent:  # noqa: ARG002
        loss = closure()
        gradients = [weight.grad for weight in weights]
        return Ascent(loss, gradients, total_norm(gradients))


class ASAM(TwoPass):
    """θ̂ = θ + ρ T²∇L/‖T∇L‖ with T = abs(θ) + η, then a step from θ with ∇L(θ̂): SAM that does not see scale.

    Kwon et al. 2021 Eq 7; L12. Rescaling a weight rescales its way up with it. Every weight is adapted, biases too
    (the authors' code leaves biases at T = 1). Paper C uses ρ = 0.5 (CIFAR-10) and 1 (CIFAR-100), η = 0.01.
    Arguments and the closure: see `TwoPass`.

    Example:
        >>> optimizer = sm.optim.ASAM(model.parameters(), torch.optim.SGD, rho=0.5, model=model, lr=0.1)
    """

    def __init__(
        self,
        params: Any,
        base: Callable[..., Optimizer],
        *,
        rho: float = 0.5,
        eta: float = 0.01,
        model: nn.Module | None = None,
        **options: Any,
    ) -> None:
        super().__init__(params, base, rho=rho, model=model, **options)
        self.eta = not_negative("eta", eta)

    def _first_pass(self, closure: Closure, weights: Sequence[Tensor], scale: float) -> Ascent:  # noqa: ARG002
        loss = closure()
        gradients = [weight.grad for weight in weights]
        scales = [weight.detach().abs() + self.eta for weight in weights]
        tilted = [None if g is None else t * g for t, g in zip(scales, gradients, strict=True)]
        directions = [None if g is None else t * g for t, g in zip(scales, tilted, strict=True)]
        return Ascent(loss, directions, total_norm(tilted))
