"""What every loader returns: two tensors, and what is known about them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from spherometer.zoo.names import shorten, suggest


class DataError(ValueError):
    """Data that cannot be used; the message is one line: what was expected, what was found, what to do."""


class MissingDataError(DataError, FileNotFoundError):
    """Data that is not where it was looked for; the message says what to place where."""


class UnknownDataError(DataError):
    """A name that no data set has; the message tells the nearest ones, or all there are."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        self.known = tuple(known)
        super().__init__(f"no data set or file called {shorten(name)!r}; {suggest(name, self.known)}")


@dataclass(frozen=True, eq=False)
class Dataset:
    """Samples in memory: `inputs` (n, ...) of floats, `targets` (n,) of class numbers, or floats for regression.

    `num_classes` is the number of outputs a model needs: classes, or columns of the targets in a regression.
    `note` tells how complete the files were and what was done since.
    """

    inputs: Tensor
    targets: Tensor
    num_classes: int
    name: str
    class_names: tuple[str, ...] = ()
    note: str = ""

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.targets):
            counts = f"{len(self.inputs)} inputs and {len(self.targets)} targets"
            raise DataError(f"{self.name}: expected one target per input, got {counts}")
        if len(self.inputs) == 0 or self.inputs.numel() == 0:
            raise DataError(f"{self.name}: expected at least one sample, got none")
        if not self.is_regression:
            check_labels(self.targets, self.num_classes, self.name)
        if self.class_names and len(self.class_names) != self.num_classes:
            raise DataError(f"{self.name}: expected {self.num_classes} class names, got {len(self.class_names)}")

    def __len__(self) -> int:
        return len(self.inputs)

    def __repr__(self) -> str:
        shape = "x".join(str(size) for size in self.input_shape) or "scalar"
        kind = f"{self.num_classes} outputs" if self.is_regression else f"{self.num_classes} classes"
        return f"Dataset({self.name}: {len(self):,} x {shape}, {kind}{'; ' + self.note if self.note else ''})"

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input, as `build_model` wants it."""
        return tuple(self.inputs.shape[1:])

    @property
    def is_regression(self) -> bool:
        """Whether the targets are values rather than class numbers."""
        return self.targets.is_floating_point()

    @property
    def tensors(self) -> tuple[Tensor, Tensor]:
        """The pair that `Problem` takes as data."""
        return self.inputs, self.targets

    def take(self, indices: Tensor, remark: str) -> Dataset:
        """The samples at `indices`, in that order, with `remark` added to the note."""
        return replace(
            self, inputs=self.inputs[indices], targets=self.targets[indices], note=add_remark(self.note, remark)
        )

    def with_inputs(self, inputs: Tensor, remark: str) -> Dataset:
        """The same samples with other inputs, and `remark` added to the note."""
        return replace(self, inputs=inputs, note=add_remark(self.note, remark))


def add_remark(note: str, remark: str) -> str:
    """Remarks in the order in which things were done."""
    return f"{note}; {remark}" if note else remark


def check_labels(labels: Tensor, num_classes: int, name: str) -> None:
    """Class numbers run from 0 to num_classes - 1; anything else is a damaged or mislabelled file."""
    if labels.ndim != 1 or labels.dtype != torch.long:
        raise DataError(
            f"{name}: expected a vector of whole-number labels, got {labels.dtype} of shape {tuple(labels.shape)}"
        )
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= num_classes:
        raise DataError(f"{name}: expected labels from 0 to {num_classes - 1}, got {low} to {high}")
