"""One step, two gradients: climb from θ to θ̂, take the gradient there, step from θ."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from spherometer.training.arguments import not_negative
from spherometer.training.optim.marking import hearing
from spherometer.training.statistics import frozen_statistics

Closure = Callable[[], Tensor]
P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Ascent:
    """What the first pass found: the loss at θ and the way up, one direction per weight (None: stay).

    The step up is ρ·direction/norm. `mark` is what `logits` does in the second pass.
    """

    loss: Tensor
    directions: Sequence[Tensor | None]
    norm: Tensor
    mark: Callable[[Tensor], Tensor] | None = None


class TwoPass(Optimizer, ABC):
    """θ̂ = θ + ρ δ/‖δ‖, then a step of the base optimiser from θ with the gradient at θ̂; a subclass says what δ is.

    The closure is that of every `torch.optim.Optimizer`: it zeroes the gradients, computes the loss, calls backward and
    returns the loss. It runs twice; `step` returns the loss at θ. Weight decay and momentum are the base optimiser's
    own affair: neither is part of δ. The norm runs over all parameter groups, `rho` may differ between them.

    Args:
        params: parameters or parameter groups; a group may have its own `rho`.
        base: class of the optimiser that makes the step, such as `torch.optim.SGD`; its options follow as keywords.
        rho: length of the step up.
        model: if given, the second pass leaves running statistics alone, so that batch norm sees each batch once;
            and if it is a `DistributedDataParallel`, the first pass is not synchronised: each process climbs its own
            gradient (m-sharpness, Foret et al. 2021 section 4.1) and gradients are exchanged once per step.
        seed: of the random directions, for those optimisers that draw some.
    """

    base: Optimizer
    model: nn.Module | None

    def __init__(
        self,
        params: Any,
        base: Callable[..., Optimizer],
        *,
        rho: float,
        model: nn.Module | None,
        seed: int = 0,
        **options: Any,
    ) -> None:
        if not callable(base) or isinstance(base, Optimizer):
            raise TypeError(
                f"expected the class of an optimiser, got {base!r}: write {type(self).__name__}(params, "
                "torch.optim.SGD, lr=0.1)"
            )
        super().__init__(params, {"rho": _valid_radius(rho)})
        for group in self.param_groups:
            _valid_radius(group["rho"])
        self.base = base(self.param_groups, **options)
        _refuse_line_searches(self.base)
        _refuse_ascent(self.base)
        self.model, self.generator = model, torch.Generator().manual_seed(seed)
        self.defaults |= self.base.defaults
        self._share_state()

    @abstractmethod
    def _first_pass(self, closure: Closure, weights: Sequence[Tensor], scale: float) -> Ascent:
        """Run the closure at θ and say where to go; gradients in the closure are `scale` times too large."""

    @torch.no_grad()
    def step(self, closure: Closure | None = None, *, scaler: torch.amp.GradScaler | None = None) -> Tensor:  # type: ignore[override]
        """One step; returns what the closure returned first, the loss at the weights before the step.

        With mixed precision the closure calls `scaler.scale(loss).backward()`; pass the scaler here instead of calling
        `scaler.step`, and call `scaler.update()` afterwards as ever.
        """
        if closure is None:
            raise TypeError(f"{type(self).__name__}.step expected a closure that computes the loss and its gradient")
        pairs = [(w, group["rho"]) for group in self.param_groups for w in group["params"] if w.requires_grad]
        weights, radii = [weight for weight, _ in pairs], [radius for _, radius in pairs]
        scale = 1.0 if scaler is None else scaler.get_scale()
        with torch.enable_grad(), self._without_synchronisation():
            ascent = self._first_pass(closure, weights, scale)
        with _climbed(weights, radii, ascent), self._without_statistics(), hearing(ascent.mark), torch.enable_grad():
            closure()
        if scaler is None:
            self.base.step()
        else:
            scaler.step(self.base)
        return ascent.loss

    @staticmethod
    def profile_hook_step(func: Callable[P, R]) -> Callable[P, R]:
        """As in `torch.optim.Optimizer`, which wraps `step`, but at no cost while nobody hooks into it or profiles."""
        watched = Optimizer.profile_hook_step(func)

        @wraps(func)
        def step(*args: P.args, **options: P.kwargs) -> R:
            return (watched if _is_watched(cast(Optimizer, args[0])) else func)(*args, **options)

        return step

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As in `torch.optim.Optimizer`; a group without its own `rho` takes the default."""
        if "base" in self.__dict__:
            param_group["rho"] = _valid_radius(param_group.get("rho", self.defaults["rho"]))
            self.base.add_param_group(param_group)
        else:  # torch.optim.Optimizer.__init__ is at work
            super().add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """That of the base optimiser, with `rho` in its groups, and the state of the random directions."""
        return self.base.state_dict() | {"generator": self.generator.get_state()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue where `state_dict` was taken; that of a bare base optimiser will do, too."""
        self.base.load_state_dict(state_dict)
        for group in self.base.param_groups:
            group.setdefault("rho", self.defaults["rho"])
        if "generator" in state_dict:
            self.generator.set_state(state_dict["generator"].cpu())
        self._share_state()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__.copy()

    def _share_state(self) -> None:
        """Groups and state are the base optimiser's own: schedulers change the learning rate in one place."""
        self.param_groups, self.state = self.base.param_groups, self.base.state

    def _without_synchronisation(self) -> AbstractContextManager[None]:
        return self.model.no_sync() if isinstance(self.model, DistributedDataParallel) else nullcontext()

    def _without_statistics(self) -> AbstractContextManager[None]:
        return nullcontext() if self.model is None else frozen_statistics(self.model)


@contextmanager
def _climbed(weights: Sequence[Tensor], radii: Sequence[float], ascent: Ascent) -> Iterator[None]:
    """θ + ρ·direction/norm inside, exactly θ again outside; a norm that is zero or not finite moves nothing up."""
    kept = []
    try:
        for radius in set(radii):
            factor = _factor(radius, ascent.norm)
            moves = [
                (w, d)
                for w, d, r in zip(weights, ascent.directions, radii, strict=True)
                if d is not None and r == radius
            ]
            if factor > 0 and moves:
                moved, directions = zip(*moves, strict=True)
                kept.append((moved, torch._foreach_clone(moved)))
                torch._foreach_add_(moved, directions, alpha=factor)
        yield
    finally:
        for moved, before in kept:
            torch._foreach_copy_(moved, before)


def _factor(radius: float, norm: Tensor) -> float:
    """ρ/norm; 0 where the norm is zero, not finite, or too small for the ratio to be a number of its type."""
    length = float(norm)  # waiting for one number costs less than doing the same on the device in many small steps
    factor = radius / length if length > 0 else 0.0
    return factor if factor <= torch.finfo(norm.dtype).max else 0.0


def total_norm(tensors: Sequence[Tensor | None]) -> Tensor:
    """‖·‖₂ of all entries of all tensors together; 0 if there are none."""
    present = [tensor for tensor in tensors if tensor is not None]
    if any(tensor.is_sparse for tensor in present):
        raise TypeError("expected dense gradients, got sparse ones: build the embedding with sparse=False")
    if not present:
        return torch.zeros(())
    norms = torch._foreach_norm(present)
    device = norms[0].device
    return torch.linalg.vector_norm(torch.stack([n if n.device == device else n.to(device) for n in norms]))


def _is_watched(optimizer: Optimizer) -> bool:
    registers = (
        optimizer._optimizer_step_pre_hooks,
        optimizer._optimizer_step_post_hooks,
        _global_optimizer_pre_hooks,
        _global_optimizer_post_hooks,
    )
    return any(registers) or torch.autograd._profiler_enabled()


def _valid_radius(rho: float) -> float:
    return not_negative("a radius rho", rho)


def _refuse_line_searches(base: Optimizer) -> None:
    closure = inspect.signature(base.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise TypeError(
            f"{type(base).__name__} calls the closure itself, as often as it likes, and cannot be a base optimiser: "
            "use one whose step takes no closure, such as torch.optim.SGD"
        )


def _refuse_ascent(base: Optimizer) -> None:
    if any(group.get("maximize", False) for group in base.param_groups):
        raise ValueError(
            "expected a base optimiser that descends, got maximize=True, for which the way up is down: minimise the "
            "negative loss instead"
        )
