"""Data that can be replayed: two tensors, a list of batches or a DataLoader, seen as one sequence of batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, RandomSampler


def as_batches(data: Any) -> Iterable[Any]:
    """The batches of `data`; a tuple (inputs, targets) or a dict is one batch, a list holds several.

    Refuses data that cannot be replayed.
    """
    if isinstance(data, tuple):
        _refuse_pair_of_pairs(data)
        _refuse_bad_pair(data)
        return [data]
    if isinstance(data, Mapping):
        return [data]
    if isinstance(data, list):
        _refuse_bad_list(data)
        return data
    if isinstance(data, DataLoader):
        if isinstance(data.sampler, RandomSampler):
            raise ValueError(
                "expected data that is the same in every pass, got a DataLoader that shuffles: "
                "use shuffle=False, or freeze one order with list(loader)"
            )
        return _Passes(data)
    if isinstance(data, Tensor):
        raise TypeError("expected data as (inputs, targets), a list of batches or a DataLoader, got one tensor")
    if isinstance(data, Iterator) or not isinstance(data, Iterable):
        raise TypeError(
            f"expected data as (inputs, targets), a list of batches or a DataLoader, got {type(data).__name__}, "
            "which cannot be read more than once: pass list(data)"
        )
    return _Passes(data)


class Chosen(list[Any]):
    """Some batches of a sequence, each with the number it has there: dropout masks and draws follow the number."""

    def __init__(self, numbered: Iterable[tuple[int, Any]]) -> None:
        pairs = list(numbered)
        super().__init__(batch for _, batch in pairs)
        self.numbers = [number for number, _ in pairs]


def numbered(batches: Iterable[Any]) -> Iterator[tuple[int, Any]]:
    """Each batch with its number."""
    return zip(batches.numbers, batches, strict=True) if isinstance(batches, Chosen) else enumerate(batches)


class _Passes:
    """A new pass over the data whenever asked; a DataLoader draws a number for its workers, which is given back."""

    def __init__(self, data: Iterable[Any]) -> None:
        self._data = data

    def __iter__(self) -> Iterator[Any]:
        with torch.random.fork_rng(devices=[]):
            return iter(self._data)


def _refuse_pair_of_pairs(data: tuple[Any, ...]) -> None:
    if len(data) == 2 and all(isinstance(part, tuple | list) and len(part) == 2 for part in data):
        raise ValueError("expected data as a pair (inputs, targets), got a pair of pairs: put batches into a list")


def _refuse_bad_list(batches: list[Any]) -> None:
    if not batches:
        raise ValueError("expected data with at least one batch, got an empty list")
    for batch in batches:
        if isinstance(batch, tuple | list) and len(batch) == 2:
            _refuse_bad_pair(batch)


def _refuse_bad_pair(pair: Sequence[Any]) -> None:
    if len(pair) != 2:
        raise ValueError(
            f"expected data as a pair (inputs, targets), got a tuple of {len(pair)}: "
            "several batches go into a list, several inputs into a tuple or dict inside the pair"
        )
    sizes = {len(part) for part in pair if isinstance(part, Tensor) and part.ndim}
    if len(sizes) > 1:
        raise ValueError(f"expected as many inputs as targets, got {len(pair[0])} inputs and {len(pair[1])} targets")
    if sizes == {0}:
        raise ValueError("expected data with at least one sample, got none")


def map_tensors(function: Callable[[Tensor], Tensor], content: Any) -> Any:
    """The same nested batch with every tensor replaced by its image."""
    if isinstance(content, Tensor):
        return function(content)
    if isinstance(content, Mapping):
        return {key: map_tensors(function, value) for key, value in content.items()}
    if isinstance(content, tuple | list):
        return made_like(content, [map_tensors(function, value) for value in content])
    return content


def made_like(content: Any, values: Iterable[Any]) -> Any:
    """Values as a list, tuple or named tuple, as the content is."""
    return content._make(values) if hasattr(content, "_make") else type(content)(values)


def tensors_of(content: Any) -> list[Tensor]:
    """Every tensor of a nested batch, in order."""
    found: list[Tensor] = []
    map_tensors(lambda tensor: found.append(tensor) or tensor, content)  # type: ignore[func-returns-value]
    return found


def num_samples(content: Any) -> int | None:
    """How many samples a batch holds along the first axis its tensors share, or None when they share none."""
    sizes = {len(tensor) if tensor.ndim else -1 for tensor in tensors_of(content)}
    return sizes.pop() if len(sizes) == 1 and -1 not in sizes else None


def take(content: Any, start: int, stop: int) -> Any:
    """Samples start..stop of a batch."""
    return map_tensors(lambda tensor: tensor[start:stop], content)


def placed(content: Any, device: torch.device, dtype: torch.dtype) -> Any:
    """The batch on a device, its floating-point tensors in `dtype`."""

    def place(tensor: Tensor) -> Tensor:
        there = tensor.to(device, dtype if tensor.is_floating_point() else None)
        return there.clone() if there.is_inference() else there  # an inference tensor cannot be part of a graph

    with torch.inference_mode(False):
        return map_tensors(place, content)


def fingerprint(content: Any) -> tuple[Any, ...]:
    """A cheap number that changes when a batch, or the order in it, changes."""
    return tuple((tuple(tensor.shape), _mark(tensor)) for tensor in tensors_of(content))


def _mark(tensor: Tensor) -> float:
    entries = tensor.detach().reshape(-1).double().nan_to_num()  # NaN differs from itself, and is not a change
    return float(entries @ torch.linspace(1, 2, len(entries), dtype=torch.float64, device=entries.device))
