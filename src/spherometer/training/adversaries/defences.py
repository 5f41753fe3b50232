"""Training against an adversary: AT and TRADES, as objectives (model, inputs, targets) -> loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy, kl_div, log_softmax

from spherometer.training.adversaries.attacks import PGD, check_range
from spherometer.training.arguments import not_negative
from spherometer.training.evaluation import evaluating
from spherometer.training.optim.marking import logits
from spherometer.training.shares import Batch, sample_shares, term_shares, weighted
from spherometer.training.statistics import frozen_statistics

Loss = Callable[[Tensor, Tensor], Tensor]
Mode = Literal["train", "eval"]


@dataclass(frozen=True, eq=False)
class AdversarialTraining:
    """AT: the loss at x' = argmax of the cross-entropy in a ball around x.  Madry et al. (2018); L19.

    While crafting, batch norm uses the statistics of the batch (`batchnorm="train"`, the setting of C Table 4) or the
    running ones; either way its buffers are moved by the loss and not by the attack. The papers' inner attack is
    `PGD(8 / 255, num_steps=10, step_size=2 / 255)`.

    Example:
        >>> objective = AdversarialTraining(PGD(8 / 255, num_steps=10), torch.Generator().manual_seed(0))
        >>> objective(model, inputs, targets).backward()
    """

    attack: PGD
    generator: Generator
    loss: Loss = cross_entropy
    batchnorm: Mode = "train"

    def __call__(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """The loss at freshly crafted inputs."""
        (crafted,) = self.over(model, [(inputs, targets)])
        return crafted(model, inputs, targets)

    def over(self, model: nn.Module, batches: Sequence[Batch]) -> list[AtCrafted]:
        """Craft once: optimisers that evaluate the loss several times see the same adversarial inputs (L21)."""
        with crafting(model, self.batchnorm):
            crafted = [self._craft(model, *batch) for batch in batches]
        shares = term_shares(self.loss, batches)
        return [AtCrafted(self.loss, *part) for part in zip(crafted, shares, strict=True)]

    def _craft(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        def gain(moved: Tensor) -> Tensor:
            return cross_entropy(model(moved), targets, reduction="none")

        return self.attack.maximise(gain, inputs, self.generator)


@dataclass(frozen=True, eq=False)
class AtCrafted:
    """The loss at inputs that have been crafted; the given ones are not looked at."""

    loss: Loss
    adversarial: Tensor
    share: float  # of these samples in the loss of the batch

    def __call__(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """share · loss(f(x'), y); EJR's logits are those of x'."""
        del inputs
        outputs = logits(model(self.adversarial))
        return weighted(partial(self.loss, outputs, targets), self.share, outputs)


@dataclass(frozen=True, eq=False)
class Trades:
    """TRADES: loss(f(x), y) + β KL(f(x) ‖ f(x')), x' = argmax of the KL in a ball.  Zhang et al. (2019); L20.

    β is 6 or 10 in C Table 7; batch norm is in eval mode while crafting. At x itself the KL has no gradient, so the
    attack needs a random start. `marked` tells whose logits EJR regularises, which C leaves open (L21).

    Example:
        >>> objective = Trades(PGD(8 / 255, num_steps=10), torch.Generator().manual_seed(0), beta=6)
    """

    attack: PGD
    generator: Generator
    beta: float = 6.0
    loss: Loss = cross_entropy
    batchnorm: Mode = "eval"
    marked: Literal["clean", "adversarial"] = "adversarial"

    def __post_init__(self) -> None:
        if not self.attack.random_start:
            raise ValueError("expected an attack with a random start: at the input itself the KL has no gradient")
        not_negative("beta", self.beta)

    def __call__(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """The loss at freshly crafted inputs."""
        (crafted,) = self.over(model, [(inputs, targets)])
        return crafted(model, inputs, targets)

    def over(self, model: nn.Module, batches: Sequence[Batch]) -> list[TradesCrafted]:
        """Craft once: optimisers that evaluate the loss several times see the same adversarial inputs (L21)."""
        with crafting(model, self.batchnorm):
            crafted = [self._craft(model, inputs) for inputs, _ in batches]
        shares = term_shares(self.loss, batches), sample_shares(batches)
        return [TradesCrafted(self, *part) for part in zip(crafted, *shares, strict=True)]

    def _craft(self, model: nn.Module, inputs: Tensor) -> Tensor:
        check_range(inputs, self.attack.bounds)
        with torch.no_grad():
            clean = log_softmax(model(inputs), dim=1)
        return self.attack.maximise(lambda moved: divergences(clean, model(moved)), inputs, self.generator)


@dataclass(frozen=True, eq=False)
class TradesCrafted:
    """The loss of TRADES at inputs that have been crafted."""

    rule: Trades
    adversarial: Tensor
    share: float  # of these samples in the loss of the batch
    sample_share: float  # and in the KL

    def __call__(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """share · loss(f(x), y) + sample_share · β KL(f(x) ‖ f(x'))."""
        outputs, moved = model(inputs), model(self.adversarial)
        if self.rule.marked == "clean":
            outputs = logits(outputs)
        else:
            moved = logits(moved)
        apart = divergences(log_softmax(outputs, dim=1), moved).mean()
        value = weighted(partial(self.rule.loss, outputs, targets), self.share, outputs)
        return value + self.sample_share * self.rule.beta * apart


def divergences(log_clean: Tensor, outputs: Tensor) -> Tensor:
    """KL(f(x) ‖ f(x')) of each sample."""
    return kl_div(log_softmax(outputs, dim=1), log_clean, reduction="none", log_target=True).sum(dim=1)


@contextmanager
def crafting(model: nn.Module, batchnorm: Mode) -> Iterator[None]:
    """The model as an attack sees it during training: in eval mode, or as it is; its buffers stay either way."""
    with evaluating(model) if batchnorm == "eval" else frozen_statistics(model):
        yield
