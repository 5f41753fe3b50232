"""EJR: the way up is that of a random direction of the mean logits; it pushes the mean logit-weight Jacobian down."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from spherometer.problems.modes import uncompiled
from spherometer.training.arguments import not_negative, num_logits
from spherometer.training.optim.marking import hearing
from spherometer.training.optim.two_pass import Ascent, Closure, TwoPass, total_norm


class _RandomLogit:
    """g'z of one step: g is Gaussian, drawn once, the same for all samples and micro-batches; u = g/‖g‖ is uniform.

    The way up is divided by its own norm, so that the length of g does not matter there.
    """

    def __init__(self, generator: torch.Generator, weights: Sequence[Tensor]) -> None:
        self._generator, self._weights = generator, weights
        self.direction = torch.empty(0)
        self.gradients: Sequence[Tensor | None] = ()
        self.num_samples = 0

    def collect(self, outputs: Tensor) -> Tensor:
        """Add ∇θ Σ g'z over these samples; the loss gets a copy of z that leads nowhere, so its backward is free."""
        g = self._draw(outputs)
        found = torch.autograd.grad(outputs, self._weights, g.expand_as(outputs), retain_graph=True, allow_unused=True)
        self.gradients = list(map(_sum, self.gradients, found)) if self.gradients else found
        self.num_samples += outputs.numel() // outputs.shape[-1]
        return outputs.detach().requires_grad_()

    def tilt(self, strength: float) -> Callable[[Tensor], Tensor]:
        """Add `strength`·⟨u'z⟩ to whatever loss is made of z, by its gradient."""
        factor = strength / (self.num_samples * float(torch.linalg.vector_norm(self.direction)))

        def mark(outputs: Tensor) -> Tensor:
            push = self._draw(outputs) * factor
            marked = outputs.view_as(outputs)
            marked.register_hook(lambda gradient: gradient + push)
            return marked

        return mark

    def _draw(self, outputs: Tensor) -> Tensor:
        num = num_logits(outputs)
        if not self.num_samples:
            self.direction = torch.randn(num, dtype=torch.float64, generator=self._generator)
        if len(self.direction) != num:
            raise ValueError(f"expected {len(self.direction)} logits as in the first call of this step, got {num}")
        return self.direction.to(outputs)


def _sum(old: Tensor | None, new: Tensor | None) -> Tensor | None:
    return old if new is None else new if old is None else old + new


def _collect(optimizer: TwoPass, closure: Closure, weights: Sequence[Tensor]) -> tuple[Tensor, _RandomLogit]:
    """The loss at θ and ∇θ Σ g'z, from one run of the closure; what is compiled keeps no graph for its own backward."""
    random = _RandomLogit(optimizer.generator, weights)
    with hearing(random.collect, gradient_wanted=False), uncompiled(optimizer.model):
        loss = closure()
    if not random.num_samples:
        raise RuntimeError(
            f"{type(optimizer).__name__} has to know the logits and heard of none: write "
            "logits = sm.optim.logits(model(inputs)) in the closure and compute the loss from these"
        )
    return loss, random


class EJR(TwoPass):
    """θ̂ = θ + ρ δ/‖δ‖ with δ = ∇θ⟨u'z⟩, then a step from θ with ∇L(θ̂): explicit Jacobian regularisation, efficient.

    u is uniform on the unit sphere of the logits z, drawn once per step and shared by all samples. To first order
    this descends L + ρ (⟨J⟩u/‖⟨J⟩u‖)'∇L, at the price of SAM. Paper C Eq 11-13, 53-54 (with erratum C-e5), L9; the
    paper uses ρ = 2 (CIFAR-10) and 4 (CIFAR-100). The closure names its logits with `sm.optim.logits`; only those
    decide the way up, whatever else the loss contains. Other arguments: see `TwoPass`.

    Args:
        seed: of the directions u. Processes that train one model together use the same.

    Example:
        >>> optimizer = sm.optim.EJR(model.parameters(), torch.optim.SGD, rho=2.0, model=model, lr=0.1)
        >>> def closure():
        ...     optimizer.zero_grad()
        ...     loss = criterion(sm.optim.logits(model(inputs)), targets)
        ...     loss.backward()
        ...     return loss
        >>> loss = optimizer.step(closure)
    """

    def __init__(
        self,
        params: Any,
        base: Callable[..., Optimizer],
        *,
        rho: float = 2.0,
        model: nn.Module | None = None,
        seed: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(params, base, rho=rho, model=model, seed=seed, **options)

    def _first_pass(self, closure: Closure, weights: Sequence[Tensor], scale: float) -> Ascent:  # noqa: ARG002
        loss, random = _collect(self, closure, weights)
        return Ascent(loss, random.gradients, total_norm(random.gradients))


class EJRv2(TwoPass):
    """As `EJR`, but the step descends L + μ⟨u'z⟩ at θ̂ with the same u, which adds about μρ‖⟨J⟩‖_F/√C to the loss.

    Paper C Eq 55-60, L10; best there: ρ = 2, μ = 0.03 (WRN-28-10, CIFAR-10). The returned loss is L(θ) without the
    addition. Arguments and closure: see `EJR`.

    Example:
        >>> optimizer = sm.optim.EJRv2(model.parameters(), torch.optim.SGD, rho=2.0, mu=0.03, model=model, lr=0.1)
    """

    def __init__(
        self,
        params: Any,
        base: Callable[..., Optimizer],
        *,
        rho: float = 2.0,
        mu: float = 0.03,
        model: nn.Module | None = None,
        seed: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(params, base, rho=rho, model=model, seed=seed, **options)
        self.mu = not_negative("mu", mu)

    def _first_pass(self, closure: Closure, weights: Sequence[Tensor], scale: float) -> Ascent:
        loss, random = _collect(self, closure, weights)
        return Ascent(loss, random.gradients, total_norm(random.gradients), mark=random.tilt(scale * self.mu))
