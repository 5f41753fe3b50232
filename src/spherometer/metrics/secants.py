"""Slopes of the secants between all pairs of samples, block by block."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from spherometer.metrics.bench import Bench

BLOCK = 512
MAX_KEPT = 1_000_000  # slopes kept for quantiles


@dataclass(frozen=True)
class Slopes:
    """The largest slope over all pairs, an even sample of all slopes, and what was left out."""

    largest: Tensor
    kept: Tensor
    note: str


def secant_slopes(bench: Bench) -> Slopes:
    """‖f_i − f_j‖ / ‖x_i − x_j‖ over all pairs i < j; pairs of equal inputs are left out and counted."""
    found = bench.sensitivity
    if found.inputs is None:
        raise ValueError("the model's input holds no floating-point tensor (tokens?): samples have no distance")
    return slopes_between(found.inputs.flatten(1).double(), found.outputs.double())


def slopes_between(inputs: Tensor, outputs: Tensor) -> Slopes:
    """The same for any points (n, d) and their images (n, C) in double precision."""
    total = len(inputs) * (len(inputs) - 1) // 2
    if not total:
        raise ValueError("a secant needs two samples, got one")
    step, largest, kept, equal = -(-total // MAX_KEPT), inputs.new_zeros(()), [], 0
    for rows, columns, upper in pairs_of(len(inputs)):
        apart = distances(inputs[rows], inputs[columns])[upper]
        slopes = distances(outputs[rows], outputs[columns])[upper][apart > 0] / apart[apart > 0]
        equal += int((apart == 0).sum())
        if len(slopes):
            largest = torch.maximum(largest, slopes.max())
            kept.append(slopes[::step])
    if equal == total:
        raise ValueError("all inputs are equal: no secant has a slope")
    note = f"{total - equal} pairs" + (f", {equal} pairs of equal inputs left out" if equal else "")
    return Slopes(largest.cpu(), torch.cat(kept).cpu(), note)


def pairs_of(num: int) -> Iterator[tuple[slice, slice, Tensor]]:
    """Blocks of pairs one by one, each with a mask of the pairs i < j."""
    slices = [slice(start, min(start + BLOCK, num)) for start in range(0, num, BLOCK)]
    for i, rows in enumerate(slices):
        for columns in slices[i:]:
            shape = (rows.stop - rows.start, columns.stop - columns.start)
            upper = torch.ones(shape, dtype=torch.bool)
            yield rows, columns, upper.triu(1) if rows == columns else upper


def distances(first: Tensor, second: Tensor) -> Tensor:
    """Distances by inner products, or directly where these cancel, so that equal points are at distance 0."""
    lengths = first.square().sum(1)[:, None] + second.square().sum(1)
    squares = (lengths - 2 * first @ second.T).clamp_min(0)
    near = (squares < 1e-6 * lengths).nonzero()
    for part in near.split(4096):
        i, j = part.T
        squares[i, j] = (first[i] - second[j]).square().sum(1)
    return squares.sqrt()
