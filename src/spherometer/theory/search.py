"""Large Jacobians and large differences of Jacobians inside balls, found by drawing and climbing: lower bounds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Generator, Tensor, nn

from spherometer.problems.modes import differentiating

ENTRIES = 2**23  # of the Jacobians held at once
FORWARD = 4  # passes backward that cost as much as one forward along a direction
ROUNDING = 1e-12  # of a difference of Jacobians, relative to their norms
SPAN = 4.0  # of the mean over a segment, relative to a step: shorter ones miss most kinks
SHORTEST = 2.0**-6  # a step, relative to the radius, below which climbing stops


@dataclass(frozen=True)
class Effort:
    """How hard to search: random starts of which each sample keeps the best, then steps uphill."""

    num_draws: int
    num_steps: int


def jacobians(model: nn.Module, points: Tensor) -> Tensor:
    """J_i = ∂f/∂x at every point, (n, C, d): by rows, or by columns where these are much fewer."""
    with differentiating():
        moved = points.detach().requires_grad_()
        outputs = flat_outputs(model, moved)
        if outputs.shape[1] <= FORWARD * moved[0].numel():
            return _rows(outputs, moved)
    return _columns(model, points)


def flat_outputs(model: nn.Module, points: Tensor) -> Tensor:
    """The outputs of every sample as a row (n, C)."""
    outputs = model(points)
    if not isinstance(outputs, Tensor) or outputs.shape[:1] != points.shape[:1]:
        found = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise ValueError(f"expected outputs (n, ...) for {len(points)} samples, got {found}")
    return outputs.reshape(len(points), -1)


def jacobian_norms(model: nn.Module, points: Tensor) -> Tensor:
    """‖J_i‖₂ at every point."""
    return torch.cat([_top(jacobians(model, part))[0] for part in points.split(_height(model, points))])


def climb(
    model: nn.Module, centres: Tensor, radius: float, effort: Effort, generator: Generator, *, pair: bool
) -> Tensor:
    """For every sample the largest ‖J(x)‖₂, or with `pair` ‖J(x) − J(y)‖₂, met in the ball around it (Q72, L37).

    Every value is reached at points of the ball: a lower bound, with the rounding of the difference taken off.
    """
    parts = centres.split(_height(model, centres))
    return torch.cat([_Climb(model, part, radius, pair=pair).best(effort, generator) for part in parts])


class _Climb:
    """Ascent from the best of some draws; each sample has its own step length, halved when a step does not help.

    Uphill for σ = u'Jv with fixed u, v is the gradient of u'(f(x + hv) − f(x − hv))/2h, the mean of u'Jv over a
    segment a few steps long: it also feels the kinks of piecewise linear networks, where J has no derivative.
    """

    def __init__(self, model: nn.Module, centres: Tensor, radius: float, *, pair: bool) -> None:
        self.model, self.centres, self.radius = model, centres, radius
        self.signs = (1.0, -1.0) if pair else (1.0,)

    def best(self, effort: Effort, generator: Generator) -> Tensor:
        points = [self.centres] * len(self.signs)
        state = self._evaluate(points)
        for _ in range(effort.num_draws):
            shift = self._sphere(generator)
            state = self._better(
                state, self._evaluate([self._inside(self.centres + sign * shift) for sign in self.signs])
            )[0]
        lengths = torch.ones_like(state[0])
        for _ in range(effort.num_steps):
            trial = self._evaluate(self._uphill(state, lengths, generator))
            state, improved = self._better(state, trial)
            lengths = torch.where(improved, lengths, (lengths / 2).clamp_min(SHORTEST))
        return state[0]

    def _evaluate(self, points: list[Tensor]) -> tuple[Tensor, ...]:
        """Values (n,), left and right singular vectors, and the points."""
        found = [jacobians(self.model, point) for point in points]
        value, left, right = _top(
            sum((sign * one for sign, one in zip(self.signs, found, strict=True)), torch.zeros(()))
        )
        if len(found) == 2:
            value = (value - ROUNDING * sum(one.flatten(1).norm(dim=1) for one in found)).clamp_min(0)
        return value, left, right, *points

    def _better(self, old: tuple[Tensor, ...], new: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], Tensor]:
        improved = new[0] > old[0]
        return tuple(torch.where(_like(improved, a), b, a) for a, b in zip(old, new, strict=True)), improved

    def _uphill(self, state: tuple[Tensor, ...], lengths: Tensor, generator: Generator) -> list[Tensor]:
        _, left, right, *points = state
        reach = _like(lengths * self.radius, self.centres)
        offset = SPAN * reach * right.reshape(self.centres.shape)
        moved = []
        for sign, point in zip(self.signs, points, strict=True):
            slope = self._pulled(point + offset, left) - self._pulled(point - offset, left)
            size = _like(slope.flatten(1).norm(dim=1), slope)
            step = torch.where(
                size > 0, sign * slope / size.where(size > 0, 1.0), self._sphere(generator) / self.radius
            )
            moved.append(self._inside(point + reach * step))
        return moved

    def _pulled(self, points: Tensor, left: Tensor) -> Tensor:
        """J(x)'u for every sample."""
        with differentiating():
            moved = points.detach().requires_grad_()
            outputs = flat_outputs(self.model, moved)
            (result,) = torch.autograd.grad((outputs * left).sum(), moved)
        return result

    def _inside(self, points: Tensor) -> Tensor:
        shift = points - self.centres
        size = _like(shift.flatten(1).norm(dim=1), shift)
        return self.centres + shift * (self.radius * (1 - 1e-12) / size.clamp_min(1e-300)).clamp_max(1.0)

    def _sphere(self, generator: Generator) -> Tensor:
        noise = torch.randn(self.centres.shape, generator=generator, dtype=torch.float64).to(self.centres)
        return self.radius * noise / _like(noise.flatten(1).norm(dim=1), noise)


def _top(matrices: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The largest singular value of each matrix with its left and right vector; zeros where the matrix is zero."""
    tall = matrices.shape[1] > matrices.shape[2]
    gram = matrices.mT @ matrices if tall else matrices @ matrices.mT
    values, vectors = torch.linalg.eigh(gram)
    value, vector = values[:, -1].clamp_min(0).sqrt(), vectors[:, :, -1:]
    other = (matrices @ vector if tall else matrices.mT @ vector) / value.clamp_min(1e-300)[:, None, None]
    left, right = (other, vector) if tall else (vector, other)
    return value, left[:, :, 0], right[:, :, 0]


def _rows(outputs: Tensor, inputs: Tensor) -> Tensor:
    num = outputs.shape[1]
    if not outputs.requires_grad:
        return inputs.new_zeros(len(inputs), num, inputs[0].numel())
    rows = [
        torch.autograd.grad(outputs[:, k].sum(), inputs, retain_graph=k + 1 < num, materialize_grads=True)[0].flatten(1)
        for k in range(num)
    ]
    return torch.stack(rows, 1)


def _columns(model: nn.Module, points: Tensor) -> Tensor:
    columns = []
    for k in range(points[0].numel()):
        direction = torch.zeros_like(points)
        direction.flatten(1)[:, k] = 1
        columns.append(torch.func.jvp(partial(flat_outputs, model), (points,), (direction,))[1])
    return torch.stack(columns, 2)


def _height(model: nn.Module, points: Tensor) -> int:
    """How many samples' Jacobians fit into the memory set aside."""
    with torch.no_grad():
        num_outputs = flat_outputs(model, points[:1]).numel()
    return max(1, ENTRIES // max(1, num_outputs * points[0].numel()))


def _like(numbers: Tensor, tensor: Tensor) -> Tensor:
    """One number for each sample, shaped to multiply."""
    return numbers.reshape(-1, *[1] * (tensor.ndim - 1))
