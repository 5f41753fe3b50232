"""What a loss means: how many terms its mean runs over, and which likelihood it is the negative logarithm of."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from spherometer.problems.batches import placed

Loss = Callable[[Any, Any], Tensor]
Count = Callable[[Any, Any], float]
CATEGORICAL = ("cross_entropy", "nll_loss")  # whose mean runs over the positions that are not ignored
ELEMENTWISE = (  # whose mean runs over all elements of the outputs
    "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits",
    "poisson_nll_loss", "soft_margin_loss", "kl_div",
)  # fmt: skip


class HalfSquaredError(nn.Module):
    """½‖f − y‖² summed over outputs, mean over samples; the loss of paper B (Eq 1) and of paper C's appendix P.

    Integer targets are read as classes and compared as one-hot vectors. `torch.nn.MSELoss` averages over the
    outputs too and has no half: its Hessian is 2/C times this one's.

    Example:
        >>> HalfSquaredError()(torch.tensor([[1.0, 0.0]]), torch.tensor([1]))
        tensor(1.)
    """

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean over the first axis of half the squared distance."""
        if not targets.is_floating_point():
            _refuse_bad_classes(targets, outputs.shape[-1])
            targets = functional.one_hot(targets, outputs.shape[-1]).to(outputs.dtype)
        if outputs.shape != targets.shape:
            raise ValueError(
                f"HalfSquaredError expected targets of the outputs' shape {tuple(outputs.shape)}, "
                f"got {tuple(targets.shape)}: pass class numbers as integers or reshape the targets"
            )
        return (outputs - targets).square().sum() / (2 * max(1, len(outputs)))


@dataclass(frozen=True)
class Likelihood:
    """The model distribution behind a loss: categorical over logits, or a Gaussian of variance 1/precision."""

    family: Literal["categorical", "gaussian"]
    precision: float = 1.0


def likelihood_of(loss: Loss, outputs: Tensor) -> Likelihood | None:
    """The distribution whose negative log-likelihood `loss` is, or None when that is not known.

    A loss with weights is no likelihood here; with label smoothing the model distribution is the same.
    """
    name, options = _recognise(loss)
    if options.get("weight") is not None:
        return None
    if name == "cross_entropy":
        return Likelihood("categorical") if outputs.ndim > 1 else None
    if name == "half_squared_error":
        return Likelihood("gaussian")
    if name == "mse_loss":
        return Likelihood("gaussian", precision=2 / max(1, outputs[0].numel()))
    return None


def terms_are_positions(loss: Loss, outputs: Tensor) -> bool:
    """Whether each position of the outputs (n, C, ...) is a loss term of its own (cross-entropy); else a sample is."""
    return _recognise(loss)[0] in CATEGORICAL and outputs.ndim > 1


def term_weights(loss: Loss, outputs: Tensor, targets: Any) -> Tensor | None:
    """The class weight of each term, shaped like one class of the outputs; None: all count alike."""
    weight = _recognise(loss)[1].get("weight")
    if weight is None or not terms_are_positions(loss, outputs) or targets.is_floating_point():
        return None
    counted = targets != ignored_class(loss)
    return (weight.to(outputs)[targets * counted] * counted).unsqueeze(1)


def on_device(loss: Loss, device: torch.device, dtype: torch.dtype) -> Loss:
    """The loss with its own tensors (class weights, say) where the outputs are."""

    def misplaced(tensor: Tensor) -> bool:
        return tensor.device != device or (tensor.is_floating_point() and tensor.dtype != dtype)

    if isinstance(loss, nn.Module) and any(map(misplaced, (*loss.buffers(), *loss.parameters()))):
        return copy.deepcopy(loss).to(device, dtype)
    if isinstance(loss, partial) and any(isinstance(x, Tensor) and misplaced(x) for x in loss.keywords.values()):
        return partial(loss.func, *loss.args, **placed(loss.keywords, device, dtype))
    return loss


def ignored_class(loss: Loss) -> int:
    """The class number that stands for "not counted"."""
    return int(_recognise(loss)[1].get("ignore_index", getattr(loss, "ignore_index", -100)))


def counted_terms(loss: Loss, outputs: Tensor, targets: Any) -> Tensor | None:
    """Which terms a categorical loss counts (those not ignored), shaped like one class of the outputs; None: all."""
    if _recognise(loss)[0] not in CATEGORICAL or not isinstance(targets, Tensor) or targets.is_floating_point():
        return None
    counted = targets != ignored_class(loss)
    return None if bool(counted.all()) else counted.to(outputs.dtype).unsqueeze(1)


def num_slopes(loss: Loss, outputs: Tensor, targets: Any) -> float:
    """How many terms have a slope of their own, whatever their weight: counted positions (cross-entropy) or samples."""
    if not terms_are_positions(loss, outputs):
        return float(len(outputs))
    counted = counted_terms(loss, outputs, targets)
    return float(outputs[:, 0].numel() if counted is None else counted.sum())


def counts_nothing(loss: Loss, outputs: Any, targets: Any) -> bool:
    """Whether a loss that torch defines ignores every target it is given, which makes its mean 0 / 0."""
    if not isinstance(outputs, Tensor):
        return False
    counted = counted_terms(loss, outputs, targets)
    return counted is not None and not bool(counted.any())


def count_terms(loss: Loss, outputs: Any, targets: Any) -> float:
    """How many terms the mean of `loss` runs over in this batch: samples, elements, or tokens that are not ignored.

    A batch counts with this number, so that a ragged last batch and ignored tokens change nothing.
    """
    name, options = _recognise(loss)
    if name in CATEGORICAL and isinstance(targets, Tensor):
        if targets.is_floating_point():
            return float(targets.numel() // outputs.shape[1 if outputs.ndim > 1 else 0])
        valid = targets[targets != ignored_class(loss)]
        weight = options.get("weight")
        return float(valid.numel() if weight is None else weight.to(valid.device, torch.float64)[valid].sum())
    if name in ELEMENTWISE and options.get("reduction") != "batchmean":
        return float(outputs.numel())
    if isinstance(targets, Tensor) and _has_class(targets, ignored_class(loss)):
        raise ValueError(
            f"targets hold the class number {ignored_class(loss)} (ignored tokens?), and a loss of your own "
            "does not say how many terms its mean runs over: pass torch.nn.CrossEntropyLoss(ignore_index=...) or "
            "Problem(..., count=lambda outputs, targets: number_of_terms)"
        )
    first = targets if isinstance(targets, Tensor) and targets.ndim else outputs
    if not isinstance(first, Tensor) or not first.ndim:
        raise ValueError(
            f"cannot tell how many loss terms a batch has from outputs of type {type(outputs).__name__}: "
            "pass Problem(..., count=lambda outputs, targets: number_of_terms)"
        )
    return float(len(first))


def check_targets(loss: Loss, outputs: Any, targets: Any) -> None:
    """Refuse class numbers that the outputs do not have, and targets that would be broadcast."""
    name = _recognise(loss)[0]
    if name in ELEMENTWISE and isinstance(targets, Tensor) and targets.shape != outputs.shape:
        raise ValueError(
            f"{name} expected targets of the outputs' shape {tuple(outputs.shape)}, got "
            f"{tuple(targets.shape)}: torch would broadcast them against each other; reshape one of the two"
        )
    if name in CATEGORICAL and isinstance(targets, Tensor) and not targets.is_floating_point():
        classes = outputs.shape[1 if outputs.ndim > 1 else 0]
        _refuse_bad_classes(targets[targets != ignored_class(loss)], classes)
    elif name == "cross_entropy" and isinstance(targets, Tensor) and targets.shape != outputs.shape:
        raise ValueError(
            f"cross-entropy expected class numbers (a tensor of whole numbers: targets.long()) or probabilities of the "
            f"outputs' shape {tuple(outputs.shape)}, got {targets.dtype} of shape {tuple(targets.shape)}"
        )


def check_reduction(loss: Loss) -> None:
    """Refuse a loss that says of itself that it is not a mean."""
    reduction = _recognise(loss)[1].get("reduction", getattr(loss, "reduction", "mean"))
    if reduction not in ("mean", "batchmean"):
        raise ValueError(
            f"expected a loss that is a scalar mean over samples, got reduction={reduction!r}: use reduction='mean'"
        )


def check_is_mean(loss: Loss, outputs: Any, targets: Any) -> None:
    """Refuse a sum in a plain function's clothes: seeing every sample twice must not change a mean."""
    if not (isinstance(outputs, Tensor) and isinstance(targets, Tensor) and outputs.ndim and targets.ndim):
        return
    once, twice = loss(outputs, targets), loss(torch.cat([outputs] * 2), torch.cat([targets] * 2))
    if once.abs() > 0 and torch.isclose(twice, 2 * once, rtol=1e-3, atol=0):
        raise ValueError(
            "expected a loss that is a mean over samples, got one that doubles when every sample is seen twice: "
            "divide it by the number of samples"
        )


MODULES: dict[type[nn.Module], str] = {
    nn.CrossEntropyLoss: "cross_entropy",
    nn.NLLLoss: "nll_loss",
    nn.MSELoss: "mse_loss",
    nn.L1Loss: "l1_loss",
    nn.SmoothL1Loss: "smooth_l1_loss",
    nn.HuberLoss: "huber_loss",
    nn.BCELoss: "binary_cross_entropy",
    nn.BCEWithLogitsLoss: "binary_cross_entropy_with_logits",
    nn.PoissonNLLLoss: "poisson_nll_loss",
    nn.SoftMarginLoss: "soft_margin_loss",
    nn.KLDivLoss: "kl_div",
    HalfSquaredError: "half_squared_error",
}


def _recognise(loss: Loss) -> tuple[str, dict[str, Any]]:
    """The functional name of a loss that torch or we define, and its options.

    A subclass with a `forward` of its own is another loss, unless it says that it `differs_by_a_constant`.
    """
    for kind, name in MODULES.items():
        if isinstance(loss, kind):
            calculates = getattr(loss.forward, "__func__", None)
            if calculates is not kind.forward and not getattr(loss, "differs_by_a_constant", False):
                return "unknown", {}
            kept = ("weight", "ignore_index", "reduction", "label_smoothing")
            return name, {key: getattr(loss, key) for key in kept if hasattr(loss, key)}
    inner, options = (loss.func, loss.keywords) if isinstance(loss, partial) else (loss, {})
    names = (name for name in (*CATEGORICAL, *ELEMENTWISE) if getattr(functional, name) is inner)
    return next(names, "unknown"), options


def _has_class(targets: Tensor, number: int) -> bool:
    return not (targets.is_floating_point() or targets.is_complex()) and bool((targets == number).any())


def _refuse_bad_classes(targets: Tensor, num_classes: int) -> None:
    if targets.numel() and (int(targets.min()) < 0 or int(targets.max()) >= num_classes):
        raise ValueError(
            f"expected class numbers from 0 to {num_classes - 1} (the model has {num_classes} outputs), "
            f"got {int(targets.min())} to {int(targets.max())}: check the labels or the model's last layer"
        )
