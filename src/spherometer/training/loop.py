"""The loop: batches in, one optimiser step after the other, the same numbers for the same seed.

>>> training = Training(model, torch.optim.SGD(model.parameters(), lr=0.1), data, Plain(nn.CrossEntropyLoss()), 128)
>>> for step in training.run(1000):
...     step.number, step.loss  # between two steps the model may be measured
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil, isfinite
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.optim import Optimizer

from spherometer.estimators.randomness import child_stream
from spherometer.problems import NonFiniteError
from spherometer.problems.modes import KeptRandomState, seed_streams
from spherometer.training.averaging import IterateAverage
from spherometer.training.objectives import Objective
from spherometer.training.optim.marking import differentiate
from spherometer.training.schedules import Schedule, constant
from spherometer.training.stopping import StopRule

GOLDEN = 0x9E3779B97F4A7C15  # spreads neighbouring seeds
Batch = tuple[Tensor, Tensor]
Transform = Callable[[Tensor, Tensor, Generator], Batch]


@dataclass(frozen=True)
class Step:
    """One update: `loss` is the objective of its batch at the weights before it."""

    number: int
    loss: float
    learning_rate: float


@dataclass(eq=False)
class Training:
    """A model on its way: all that decides the next step.

    An epoch is a fresh order of the samples, cut into batches; without `batch_size` every step sees all samples (full-
    batch gradient descent, one step per epoch). A batch beyond `ghost_size` is computed in pieces, whose gradients are
    averaged by the number of their loss terms (L23); batch norm sees the pieces. All randomness of batches, transforms
    and dropout is a function of the seed and the number of the step: a run that goes on from a checkpoint takes the
    steps of one that was never interrupted, and the global random state stays as it was.

    Args:
        data: inputs and targets, in memory.
        schedule: epoch -> factor of the learning rates that the optimiser has now.
        average: of the iterates, one taken at the end of each epoch.
        stop: a rule of `stopping`.
        generators: those that the objective draws from, to be kept in checkpoints.

    Example:
        >>> training = Training(model, optimizer, (inputs, targets), Plain(nn.CrossEntropyLoss()), batch_size=64)
        >>> losses = [step.loss for step in training.run(1000)]
    """

    model: nn.Module
    optimizer: Optimizer
    data: Batch
    objective: Objective
    batch_size: int | None = None
    ghost_size: int | None = None
    transforms: Sequence[Transform] = ()
    schedule: Schedule = field(default_factory=constant)
    average: IterateAverage | None = None
    stop: StopRule | None = None
    generators: Sequence[Generator] = ()
    seed: int = 0
    number: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        num = len(self.data[0])
        if not num or num != len(self.data[1]):
            raise ValueError(f"expected one target per input, got {num} inputs and {len(self.data[1])} targets")
        for name, size in (("batch_size", self.batch_size), ("ghost_size", self.ghost_size)):
            if size is not None and size < 1:
                raise ValueError(f"expected {name} of at least 1, got {size}")
        self.steps_per_epoch = ceil(num / (self.batch_size or num))
        self.device = next(self.model.parameters()).device
        self._random_state = KeptRandomState(self.device)
        self._rates = [group["lr"] for group in self.optimizer.param_groups]
        self._order: tuple[int, Sequence[Tensor]] = (-1, ())
        self._factor: float | None = None
        self._judged = (-1, False)

    def run(self, num_steps: int) -> Iterator[Step]:
        """Steps until so many have been made since the very start, or the stop rule says so."""
        if num_steps < 0:
            raise ValueError(f"expected num_steps of at least 0, got {num_steps}")
        self.model.train()
        while self.number < num_steps and not self._is_over():
            yield self.step()

    def step(self) -> Step:
        """One update of the weights."""
        epoch, place = divmod(self.number, self.steps_per_epoch)
        if place == 0 or self._factor is None:
            self._set_rates(self.schedule(epoch))
        ghosts = self._ghosts(epoch, place)
        with self._random_state:
            loss = float(self.optimizer.step(self._closure(ghosts)))  # type: ignore[arg-type]
        if not isfinite(loss):
            raise NonFiniteError(
                f"training diverged at step {self.number + 1}: the loss is {loss}; lower the learning rate (now "
                f"{self.optimizer.param_groups[0]['lr']:g}) or look for numbers in the data that are not finite"
            )
        self.number += 1
        if self.average is not None and place == self.steps_per_epoch - 1:
            self.average.update(epoch)
        return Step(self.number, loss, self.optimizer.param_groups[0]["lr"])

    def state_dict(self) -> dict[str, Any]:
        """All that a resumed run needs besides the arguments of this one."""
        return {
            "number": self.number,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "average": {} if self.average is None else self.average.state_dict(),
            "recent": [] if self.stop is None else list(self.stop.recent),
            "judged": self._judged,
            "generators": [generator.get_state() for generator in self.generators],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where the state was taken."""
        self.number = state["number"]
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.average is not None:
            self.average.load_state_dict(state["average"])
        if self.stop is not None:
            self.stop.recent = list(state["recent"])
        self._judged = state.get("judged", (-1, False))  # older checkpoints have none
        for generator, kept in zip(self.generators, state["generators"], strict=True):
            generator.set_state(kept)

    def _closure(self, ghosts: list[Batch]) -> Callable[[], Tensor]:
        seed = (self.seed * GOLDEN + self.number) % 2**63  # a named stream would cost microseconds in every step
        seed_streams(seed, self.device)
        parts = self.objective.over(self.model, ghosts)

        def closure() -> Tensor:
            seed_streams(seed, self.device)  # the same masks however often the optimiser asks
            self._forget_gradients()
            losses = []
            for part, (inputs, targets) in zip(parts, ghosts, strict=True):
                loss = part(self.model, inputs, targets)
                differentiate(loss)
                losses.append(loss.detach())
            return losses[0] if len(losses) == 1 else torch.stack(losses).sum()

        return closure

    def _forget_gradients(self) -> None:
        """What `zero_grad` does, without a label for the profiler, which costs more than all the rest of it."""
        for group in self.optimizer.param_groups:
            for weight in group["params"]:
                weight.grad = None

    def _ghosts(self, epoch: int, place: int) -> list[Batch]:
        inputs, targets = self.data
        if self.batch_size is not None:
            if self._order[0] != epoch:
                order = torch.randperm(len(inputs), generator=child_stream(self.seed, f"epoch {epoch}"))
                self._order = epoch, order.split(self.batch_size)
            chosen = self._order[1][place]
            inputs, targets = inputs[chosen], targets[chosen]
        if inputs.device != self.device:
            inputs, targets = inputs.to(self.device), targets.to(self.device)
        if self.transforms:
            stream = child_stream(self.seed, f"transforms {self.number}")
            for transform in self.transforms:
                inputs, targets = transform(inputs, targets, stream)
        if self.ghost_size is None or self.ghost_size >= len(inputs):
            return [(inputs, targets)]
        return list(zip(inputs.split(self.ghost_size), targets.split(self.ghost_size), strict=True))

    def _is_over(self) -> bool:
        """What the stop rule says, asked once for each step: it remembers what it has seen."""
        if self.stop is not None and self._judged[0] != self.number:
            self._judged = self.number, self.stop(self.number, self.model, self.data)
        return self._judged == (self.number, True)

    def _set_rates(self, factor: float) -> None:
        self._factor = factor
        for group, rate in zip(self.optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * factor
