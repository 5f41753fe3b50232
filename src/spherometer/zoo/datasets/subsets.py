"""Fewer samples: the first n, a balanced n, a random n, some classes, a split.  On tensors, and by a seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from spherometer.zoo.datasets.dataset import DataError, Dataset
from spherometer.zoo.names import suggest


def first(dataset: Dataset, num: int) -> Dataset:
    """The first `num` samples."""
    _check_count(dataset, num)
    return dataset.take(torch.arange(num), f"first {num:,}")


def balanced(dataset: Dataset, num: int) -> Dataset:
    """The first samples of each class, `num` together, in file order; class sizes differ by at most one."""
    _check_count(dataset, num)
    _check_classes(dataset, "balanced")
    share, rest = divmod(num, dataset.num_classes)
    chosen = []
    for label in range(dataset.num_classes):
        wanted = share + (label < rest)
        found = (dataset.targets == label).nonzero().flatten()
        if len(found) < wanted:
            raise DataError(f"{dataset.name}: expected {wanted} of class {label}, got {len(found)}; ask for fewer")
        chosen.append(found[:wanted])
    return dataset.take(torch.cat(chosen).sort().values, f"balanced {num:,}")


def random_subset(dataset: Dataset, num: int, *, seed: int = 0) -> Dataset:
    """`num` samples drawn without replacement, in the order of the draw."""
    _check_count(dataset, num)
    return dataset.take(_permutation(len(dataset), seed)[:num], f"random {num:,} (seed {seed})")


def select_classes(dataset: Dataset, classes: Sequence[int | str]) -> Dataset:
    """The samples of some classes, by number or name, relabelled 0, 1, ... in the order given."""
    _check_classes(dataset, "select_classes")
    labels = [_class_number(dataset, entry) for entry in classes]
    if not labels or len(set(labels)) < len(labels):
        raise DataError(f"{dataset.name}: expected different classes, at least one, got {list(classes)}")
    renamed = torch.full((dataset.num_classes,), -1)
    renamed[labels] = torch.arange(len(labels))
    targets = renamed[dataset.targets]
    if not bool((targets >= 0).any()):
        raise DataError(f"{dataset.name}: no sample of classes {list(classes)}")
    names = tuple(dataset.class_names[label] for label in labels) if dataset.class_names else ()
    kept = (targets >= 0).nonzero().flatten()
    relabelled = replace(dataset, targets=targets.clamp(min=0), num_classes=len(labels), class_names=names)
    return relabelled.take(kept, f"classes {', '.join(str(entry) for entry in classes)}")


def split(dataset: Dataset, num: int, *, seed: int = 0) -> tuple[Dataset, Dataset]:
    """`num` random samples and the rest, e.g. 45,000 / 5,000 of D."""
    if not 1 <= num < len(dataset):
        raise DataError(f"{dataset.name}: expected num from 1 to {len(dataset) - 1}, got {num}")
    order = _permutation(len(dataset), seed)
    remark = f"of a split {num:,} / {len(dataset) - num:,} (seed {seed})"
    return dataset.take(order[:num], f"first part {remark}"), dataset.take(order[num:], f"second part {remark}")


def _permutation(length: int, seed: int) -> torch.Tensor:
    return torch.randperm(length, generator=torch.Generator().manual_seed(seed))


def _check_count(dataset: Dataset, num: int) -> None:
    if not 1 <= num <= len(dataset):
        raise DataError(f"{dataset.name}: expected num from 1 to {len(dataset)}, got {num}")


def _check_classes(dataset: Dataset, action: str) -> None:
    if dataset.is_regression:
        raise DataError(f"{dataset.name}: {action} needs classes, got values as targets")


def _class_number(dataset: Dataset, entry: int | str) -> int:
    if isinstance(entry, str):
        if entry not in dataset.class_names:
            raise DataError(f"{dataset.name}: no class called {entry!r}; {suggest(entry, dataset.class_names)}")
        return dataset.class_names.index(entry)
    if not 0 <= entry < dataset.num_classes:
        raise DataError(f"{dataset.name}: expected classes from 0 to {dataset.num_classes - 1}, got {entry}")
    return entry
