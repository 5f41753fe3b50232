"""Label smoothing as part of the loss."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class SmoothedCrossEntropy(nn.CrossEntropyLoss):
    """Cross-entropy with labels (1−α)y + α/C, less the labels' entropy: KL(smoothed label ‖ p), which is 0 at best.

    Q2, Q3, L13; A Fig 1 plots the loss so. Without the entropy it is `torch.nn.CrossEntropyLoss(label_smoothing=α)`:
    gradients and Hessians are the same. Targets are class numbers or probabilities (from mixup, say).

    Example:
        >>> SmoothedCrossEntropy(0.5)(outputs, targets)
    """

    differs_by_a_constant = True  # from its parent: curvature may be taken as the parent's

    def __init__(self, alpha: float) -> None:
        if not 0 <= alpha <= 1:
            raise ValueError(f"expected a degree of label smoothing between 0 and 1, got {alpha}")
        super().__init__(label_smoothing=alpha)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:  # noqa: A002
        """Mean over samples of KL(smoothed label ‖ softmax(input)); classes are on axis 1."""
        labels = target
        if not target.is_floating_point():
            labels = functional.one_hot(target, input.shape[1]).movedim(-1, 1).to(input.dtype)
        smoothed = smooth_labels(labels, self.label_smoothing)
        entropy = -torch.xlogy(smoothed, smoothed).sum(1).mean()
        return functional.cross_entropy(input, smoothed) - entropy


def smooth_labels(labels: Tensor, alpha: float) -> Tensor:
    """(1−α)y + α/C of probabilities y, classes on axis 1; Q3."""
    return (1 - alpha) * labels + alpha / labels.shape[1]
