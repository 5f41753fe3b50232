"""A small sequential network as matrices with activations between them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from spherometer.theory.activations import Activation
from spherometer.theory.layer_constants import matrix_and_offset
from spherometer.theory.reading import Affine, Other, ReadingError, Step

ENTRIES = 2**22  # of one matrix


@dataclass(frozen=True)
class Chain:
    """x -> W_L φ_{L−1}(… φ_1(W_1 x + b_1) …) + b_L, then perhaps a softmax."""

    weights: tuple[Tensor, ...]
    offsets: tuple[Tensor, ...]
    activations: tuple[Activation, ...]
    softmax: bool = False

    @cached_property
    def narrowed(self) -> Chain:
        """Every norm ‖A W_1‖ and ‖W_L A‖ stays the same, with no more inputs and outputs than hidden neurons.

        W_1' = Q R gives ‖A W_1‖ = ‖A R'‖, and W_L = Q R gives ‖W_L A‖ = ‖R A‖; offsets of the outputs are left alone.
        """
        weights = list(self.weights)
        if self.activations and weights[0].shape[1] > weights[0].shape[0]:
            weights[0] = torch.linalg.qr(weights[0].T, mode="r").R.T
        if self.activations and weights[-1].shape[0] > weights[-1].shape[1]:
            weights[-1] = torch.linalg.qr(weights[-1], mode="r").R
        return Chain(tuple(weights), self.offsets, self.activations, self.softmax)


def whole_chain(steps: Sequence[Step], num_inputs: int) -> Chain:
    """The whole network; what is not affine or an activation, except a softmax at the end, is refused by its name."""
    last = steps[-1].rule if steps else None
    softmax = isinstance(last, Other) and last.softmax
    body = steps[:-1] if softmax else steps
    for place, step in enumerate(body):
        if not isinstance(step.rule, Affine | Activation) or step.parents != (place - 1,):
            raise ReadingError(
                f"the variation of the Jacobian has no certified bound through {step.name}: it must be a chain of "
                "affine layers and known activations; ask for certified=False"
            )
    return _chain(body, num_inputs, softmax=softmax)


def segments(steps: Sequence[Step], num_inputs: int) -> tuple[list[Chain], float] | None:
    """Chains between the other maps, and the product of the constants of those; None where branches are added."""
    chains, constant, begin, size = [], 1.0, 0, num_inputs
    for place, step in enumerate(steps):
        if step.parents != (place - 1,) or not isinstance(step.rule, Affine | Activation | Other):
            return None
        if isinstance(step.rule, Other):
            if begin < place:
                chains.append(_chain(steps[begin:place], size))
            constant, begin = constant * step.rule.constant, place + 1
            size = _entering(steps[begin:]) or size
    if begin < len(steps):
        chains.append(_chain(steps[begin:], size))
    return chains, constant


def _entering(steps: Sequence[Step]) -> int | None:
    """How many numbers the first affine step takes; activations before it do not change that."""
    shapes = [step.rule.shape for step in steps if isinstance(step.rule, Affine)]
    return math.prod(shapes[0]) if shapes else None


def _chain(steps: Sequence[Step], num_inputs: int, *, softmax: bool = False) -> Chain:
    pairs, activations, run = [], [], list[Step]()
    size = num_inputs
    for step in steps:
        if isinstance(step.rule, Activation):
            pairs.append(_merged(run, size))
            activations.append(step.rule)
            run, size = [], len(pairs[-1][0])
        else:
            run.append(step)
    pairs.append(_merged(run, size))
    weights, offsets = zip(*pairs, strict=True)
    return Chain(weights, offsets, tuple(activations), softmax)


def _merged(run: Sequence[Step], size: int) -> tuple[Tensor, Tensor]:
    """One matrix and offset for affine steps in a row."""
    rules = [step.rule for step in run if isinstance(step.rule, Affine)]
    if size * max([size, *(rule.num_outputs for rule in rules)]) > ENTRIES:
        wide = max([size, *(rule.num_outputs for rule in rules)])
        raise ReadingError(
            f"{run[0].name if run else 'an activation'} is a matrix of {size} x {wide}, and certificates of whole "
            f"chains hold at most {ENTRIES} entries: use a smaller network, or ask for certified=False"
        )

    def apply(points: Tensor) -> Tensor:
        for rule in rules:
            points = rule.apply(points)
        return points

    with torch.no_grad():
        return matrix_and_offset(apply, rules[0].shape if rules else (size,))
