"""What happens to a batch before the model sees it: callables `(inputs, targets, generator) -> (inputs, targets)`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from spherometer.training.arguments import not_negative


@dataclass(frozen=True)
class Mixup:
    """(1−θ)(x, y) + θ(x', y') with θ ~ Beta(β, β) and x' another sample of the batch; A B.3, L14.

    Class numbers become probabilities, for which `num_classes` is needed; other targets are mixed as they are.
    β = 0 is the limit Bernoulli(½), a sample or its partner unmixed; β = 1 is uniform.

    Args:
        per: one θ for the whole batch (Zhang et al. 2018; the default) or one for each sample: paper A does not say.

    Example:
        >>> inputs, targets = Mixup(1.0, num_classes=10)(inputs, targets, generator)
    """

    beta: float
    num_classes: int | None = None
    per: Literal["batch", "sample"] = "batch"

    def __post_init__(self) -> None:
        not_negative("beta", self.beta)
        if self.per not in ("batch", "sample"):
            raise ValueError(f"expected per='batch' or per='sample', got {self.per!r}")

    def __call__(self, inputs: Tensor, targets: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """A mixed batch of the same size."""
        num = len(inputs)
        partners = torch.randperm(num, generator=generator, device=generator.device).to(inputs.device)
        shares = symmetric_beta(self.beta, num if self.per == "sample" else 1, generator)
        probabilities = self._probabilities(targets, inputs.dtype)
        return _mixed(inputs, partners, shares), _mixed(probabilities, partners, shares)

    def _probabilities(self, targets: Tensor, dtype: torch.dtype) -> Tensor:
        if targets.is_floating_point():
            return targets
        if self.num_classes is None:
            raise ValueError("mixing class numbers needs the number of classes: write Mixup(beta, num_classes=10)")
        return functional.one_hot(targets, self.num_classes).to(dtype)


@dataclass(frozen=True)
class CropAndFlip:
    """With probability p per sample: pad by zeros, crop back at a random place, mirror left-right half of the time.

    A B.3, L15 (per sample is our reading). Images are (n, channels, height, width); targets pass unchanged. On
    standardised images the padding is the mean colour, not black.

    Example:
        >>> inputs, targets = CropAndFlip(probability=0.5)(inputs, targets, generator)
    """

    probability: float = 1.0
    padding: int = 4

    def __post_init__(self) -> None:
        if not 0 <= self.probability <= 1:
            raise ValueError(f"expected a probability between 0 and 1, got {self.probability}")
        if self.padding < 0:
            raise ValueError(f"expected a padding of at least 0, got {self.padding}")

    def __call__(self, inputs: Tensor, targets: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """A batch of the same shape, each sample with its own draw."""
        if inputs.ndim != 4:
            raise ValueError(f"expected images (n, channels, height, width), got shape {tuple(inputs.shape)}")
        num, (height, width) = len(inputs), inputs.shape[2:]
        device = generator.device
        chosen = torch.rand(num, generator=generator, device=device) < self.probability
        mirrored = torch.randint(2, (num,), generator=generator, device=device).bool() & chosen
        shifts = torch.randint(2 * self.padding + 1, (2, num), generator=generator, device=device)
        down, right = torch.where(chosen, shifts, self.padding).to(inputs.device).unsqueeze(-1)
        columns = torch.arange(width, device=inputs.device).expand(num, -1)
        columns = torch.where(mirrored.to(inputs.device).unsqueeze(-1), width - 1 - columns, columns) + right
        rows = torch.arange(height, device=inputs.device) + down
        padded = functional.pad(inputs, [self.padding] * 4)
        samples = torch.arange(num, device=inputs.device).view(-1, 1, 1)
        cropped = padded.permute(0, 2, 3, 1)[samples, rows.unsqueeze(2), columns.unsqueeze(1)]
        return cropped.permute(0, 3, 1, 2).contiguous(), targets


def symmetric_beta(beta: float, num: int, generator: torch.Generator) -> Tensor:
    """Draws from Beta(β, β) in double precision, for β as small as one likes; β = 0 gives 0 or 1.

    Of two Gamma(β) variables the share of one, with log Γ-draws as log G(β+1) + log(U)/β: draws for small β are
    too small for floating point, their logarithms are not.
    """
    if beta == 0:
        return torch.randint(2, (num,), generator=generator, device=generator.device).double()
    shape = torch.full((2, num), beta + 1.0, dtype=torch.float64, device=generator.device)
    uniform = 1 - torch.rand(2, num, generator=generator, dtype=torch.float64, device=generator.device)
    first, second = torch._standard_gamma(shape, generator=generator).log() + uniform.log() / beta
    return torch.sigmoid(first - second)


def _mixed(values: Tensor, partners: Tensor, shares: Tensor) -> Tensor:
    return torch.lerp(values, values[partners], shares.to(values).view(-1, *[1] * (values.ndim - 1)))
