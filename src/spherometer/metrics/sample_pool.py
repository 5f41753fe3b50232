"""Random batches of a problem's own samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Generator, Tensor

from spherometer.problems import Problem
from spherometer.problems.batches import made_like, map_tensors, num_samples
from spherometer.problems.losses import counted_terms


class SamplePool:
    """All samples with a loss term, numbered through the batches, any of which can be put together as one batch."""

    def __init__(self, problem: Problem) -> None:
        self._batches = list(problem.batches)
        sizes = [size for batch in self._batches if (size := num_samples(batch)) is not None]
        if len(sizes) < len(self._batches):
            raise ValueError("expected batches whose tensors share a first axis of samples, got one whose do not")
        check_separate(problem, sum(sizes))
        self._ends = torch.tensor(sizes).cumsum(0)
        self._places = _counted(problem, sizes).nonzero().flatten()  # of the samples of this pool among all

    def __len__(self) -> int:
        return len(self._places)

    def batch(self, indices: Tensor) -> Any:
        """The samples of these numbers as one batch."""
        places = self._places[indices]
        homes = torch.bucketize(places, self._ends, right=True)
        parts = []
        for home in homes.unique().tolist():
            first = int(self._ends[home - 1]) if home else 0
            parts.append(_rows(self._batches[home], places[homes == home] - first))
        return _joined(parts)

    def draw(self, size: int, generator: Generator, *, replacement: bool) -> Any:
        """A random batch."""
        if replacement:
            return self.batch(torch.randint(0, len(self), (size,), generator=generator))
        return self.batch(torch.randperm(len(self), generator=generator)[:size])

    def cut(self, size: int) -> list[Any]:
        """All samples in order, in batches of `size`, the last one perhaps smaller."""
        return [self.batch(rows) for rows in torch.arange(len(self)).split(size)]


def _counted(problem: Problem, sizes: list[int]) -> Tensor:
    """Which samples have a target that is not ignored."""
    state, found = problem.state(), []
    with torch.no_grad():
        for piece, size in zip(problem.pieces(), sizes, strict=True):
            counted = counted_terms(problem.loss, *problem.outputs(state, piece))
            if counted is None or len(counted) != size:
                found.append(torch.ones(size, dtype=torch.bool))
            else:
                found.append(counted.cpu().flatten(1).bool().any(1))
    return torch.cat(found)


def check_separate(problem: Problem, num: int) -> None:
    """Refuse samples that see each other; a single one does not."""
    if num > 1 and not problem.splittable:
        raise ValueError(
            "expected samples that do not see each other, got a problem whose batches cannot be cut: "
            "use batchnorm='eval', dropout=None and a loss that is a mean over samples"
        )


def _rows(batch: Any, rows: Tensor) -> Any:
    return map_tensors(lambda tensor: tensor[rows.to(tensor.device)], batch)


def _joined(parts: list[Any]) -> Any:
    """Nested batches of one form put behind each other."""
    first = parts[0]
    if isinstance(first, Tensor):
        return torch.cat(parts)
    if isinstance(first, Mapping):
        return {key: _joined([part[key] for part in parts]) for key in first}
    if isinstance(first, tuple | list):
        return made_like(first, [_joined([part[k] for part in parts]) for k in range(len(first))])
    return first
