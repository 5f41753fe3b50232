"""Which samples withstand an attack, and the mistakes that make such a count worthless."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from spherometer.training.adversaries.attacks import Attack, check_floats
from spherometer.training.evaluation import Data, batches, evaluating


def right_answers(model: nn.Module, data: Data, *, batch_size: int = 250) -> Tensor:
    """(n,) of booleans: samples whose largest logit is the target's, in eval mode."""
    check_floats(data[0])
    with evaluating(model):
        return torch.cat([_right(model, *batch) for batch in batches(data, batch_size)])


def withstanding(
    model: nn.Module, data: Data, attack: Attack, right: Tensor, *, seed: int = 0, batch_size: int = 250
) -> Tensor:
    """(n,) of booleans: which of the samples that are `right` (n,) still are after the attack, in eval mode."""
    generator = torch.Generator(data[0].device).manual_seed(seed)
    with evaluating(model):
        after = [
            _right(model, attack(model, inputs, targets, generator), targets)
            for inputs, targets in batches(data, batch_size)
        ]
    return right & torch.cat(after)


def check_subject(model: nn.Module, data: Data) -> None:
    """Refuse what an attack cannot be judged on: no classes, probabilities for logits, outputs that are random."""
    inputs, targets = data
    if len(inputs) != len(targets) or not len(inputs):
        raise ValueError(f"expected one target per input, got {len(inputs)} inputs and {len(targets)} targets")
    if targets.is_floating_point() or targets.ndim != 1:
        raise ValueError(f"robust accuracy needs class numbers (n,), got {targets.dtype} of {tuple(targets.shape)}")
    check_floats(inputs)
    with evaluating(model), torch.no_grad():
        first, second = model(inputs[:100]), model(inputs[:100])
    if not torch.allclose(first, second, rtol=1e-4, atol=1e-6):
        raise ValueError(
            "the model answers the same inputs in eval mode with different outputs: attacks on a randomised model "
            "must average over its randomness, which is not done here"
        )
    if bool((first >= 0).all()) and torch.allclose(first.sum(dim=1), torch.ones_like(first[:, 0]), atol=1e-5):
        raise ValueError(
            "expected logits, got outputs that are probabilities: leave the softmax out of the model, it hides the "
            "gradient from the attack"
        )


@torch.no_grad()
def _right(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    outputs: Tensor = model(inputs)
    if not bool(torch.isfinite(outputs).all()):
        raise FloatingPointError("the model's outputs are not finite on attacked inputs: its answers mean nothing")
    return outputs.argmax(dim=1) == targets
