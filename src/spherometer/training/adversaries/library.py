"""APGD and AutoAttack of other people, through the extra `adv`.  Croce and Hein (2020); L22."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor, nn

from spherometer.training.adversaries.attacks import Bounds, check_range
from spherometer.training.adversaries.balls import Norm, ball
from spherometer.zoo.randomness import seeded

NAMES = {"linf": "Linf", "l2": "L2"}
WHOLE = ("apgd-ce", "apgd-t", "fab-t", "square")
LEAST_CLASSES = 4  # the targeted DLR loss compares four logits


@dataclass(frozen=True)
class AutoAttack:
    """APGD-CE, targeted APGD-DLR, targeted FAB and Square one after the other, each on what the others left.

    The code is pyautoattack's, with its standard settings; this class only hands over seeds and shapes. Inputs are
    images in [0, 1]. Where a model has fewer than ten classes the targeted attacks try all the others.

    Example:
        >>> robust_accuracy(model, (inputs, targets), AutoAttack(8 / 255))
    """

    radius: float
    norm: Norm = "linf"
    attacks: tuple[str, ...] = WHOLE
    num_steps: int = 100
    bounds: Bounds = (0.0, 1.0)

    def __post_init__(self) -> None:
        ball(self.norm, self.radius)
        unknown = [name for name in self.attacks if name not in WHOLE]
        if unknown or not self.attacks:
            raise ValueError(f"expected attacks of {', '.join(WHOLE)}, got {', '.join(unknown) or 'none'}")
        if self.bounds != (0.0, 1.0):
            raise ValueError(f"expected bounds (0, 1), the only ones AutoAttack knows, got {self.bounds}")

    def __call__(self, model: nn.Module, inputs: Tensor, targets: Tensor, generator: Generator) -> Tensor:
        """The adversarial inputs; samples that are wrong from the start, or withstand, stay as they are."""
        check_range(inputs, self.bounds)
        if inputs.ndim != 4:
            raise ValueError(f"AutoAttack expected images (n, channels, height, width), got {tuple(inputs.shape)}")
        seed = int(torch.randint(2**31, (), generator=generator, device=generator.device))
        with torch.no_grad():
            num_classes = model(inputs[:1]).shape[1]
        run = self._prepared(model, num_classes, inputs.device, seed)
        with seeded(seed):  # the library seeds the global generators
            moved: Tensor = run.run_standard_evaluation(inputs, targets, batch_size=len(inputs))[0]
        return moved

    def _prepared(self, model: nn.Module, num_classes: int, device: torch.device, seed: int) -> Any:
        if set(self.attacks) & {"apgd-t"} and num_classes < LEAST_CLASSES:
            raise ValueError(
                f"AutoAttack's targeted APGD needs at least {LEAST_CLASSES} classes, the model has {num_classes}: "
                "use AutoAttack(..., attacks=('apgd-ce', 'fab-t', 'square'))"
            )
        try:
            from pyautoattack import AutoAttack as Library  # type: ignore[import-untyped]
        except ImportError:
            raise ImportError("AutoAttack needs pyautoattack: pip install 'spherometer[adv]'") from None
        run = Library(model, norm=NAMES[self.norm], eps=self.radius, seed=seed, device=device)
        run.attacks_to_run = list(self.attacks)
        for part in (run.apgd, run.apgd_targeted, run.fab):
            part.n_iter = self.num_steps
        run.apgd_targeted.n_target_classes = run.fab.n_target_classes = min(9, num_classes - 1)
        return run


def apgd(radius: float, norm: Norm = "linf", *, num_steps: int = 100) -> AutoAttack:
    """APGD on the cross-entropy alone: ascent whose step size looks after itself.

    Example:
        >>> robust_accuracy(model, (inputs, targets), apgd(8 / 255))
    """
    return AutoAttack(radius, norm, attacks=("apgd-ce",), num_steps=num_steps)
