"""What a certificate must know of an activation φ: over any interval the ranges of φ, φ' and φ'', and a linear band."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Function = Callable[[Tensor], Tensor]
Range = tuple[Tensor, Tensor]
FAR = 1e150  # there every slope has reached its limit, and a square is still a number


@dataclass(frozen=True)
class Activation:
    """φ with its derivatives, each with the points where it turns: between them it rises or falls.

    `curvature` is None where φ' jumps at 0 and is constant on either side. `gap` is the largest jump of φ' that
    an implementation makes on its own.
    """

    name: str
    value: Function
    slope: Function
    curvature: Function | None = None
    value_turns: tuple[float, ...] = ()
    slope_turns: tuple[float, ...] = ()
    curvature_turns: tuple[float, ...] = ()
    gap: float = 0.0

    @property
    def smooth(self) -> bool:
        """Whether φ' is Lipschitz."""
        return self.curvature is not None

    def values(self, low: Tensor, high: Tensor) -> Range:
        """The range of φ over [low, high]."""
        return _range(self.value, self.value_turns, low, high)

    def slopes(self, low: Tensor, high: Tensor) -> Range:
        """The range of φ' over [low, high]; both one-sided slopes where 0 is a kink inside or on the border."""
        if self.smooth:
            return _range(self.slope, self.slope_turns, low, high)
        left, right = self.slope(-torch.ones_like(low)), self.slope(torch.ones_like(low))
        first, second = torch.where(low > 0, right, left), torch.where(high < 0, left, right)
        return torch.minimum(first, second), torch.maximum(first, second)

    def global_slopes(self) -> tuple[float, float]:
        """The range of φ' over all numbers."""
        far = torch.tensor(FAR, dtype=torch.float64)
        low, high = self.slopes(-far, far)
        return float(low), float(high)

    def steepness(self, low: Tensor, high: Tensor) -> Tensor:
        """The largest |φ''| over [low, high]."""
        assert self.curvature is not None
        least, most = _range(self.curvature, self.curvature_turns, low, high)
        return torch.maximum(least.abs(), most.abs())

    def band(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """a, c, r with |φ(z) − a z − c| ≤ r on [low, high]: for each entry the thinnest of three bands.

        The constant one, the one around the mean slope (mean-value theorem), and the one around the chord, which φ
        leaves by −½φ''(ξ)(z − low)(high − z), or most at the kink.
        """
        return _thinnest([self._constant(low, high), self._mean_value(low, high), self._chord(low, high)])

    def _constant(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        least, most = self.values(low, high)
        return torch.zeros_like(low), (least + most) / 2, (most - least) / 2

    def _mean_value(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        least, most = self.slopes(low, high)
        middle, slope = (low + high) / 2, (least + most) / 2
        return slope, self.value(middle) - slope * middle, (most - least) / 2 * (high - low) / 2

    def _chord(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        width = high - low
        wide = width > 1e-6
        rise = self.value(high) - self.value(low)
        slope = torch.where(wide, rise / width.where(wide, 1.0), self.slope((low + high) / 2))
        start = self.value(low) - slope * low
        if self.curvature is None:
            kink = torch.where((low < 0) & (high > 0), self.value(torch.zeros_like(low)) - start, 0.0)
            least, most = kink.clamp_max(0), kink.clamp_min(0)
        else:
            bends = _range(self.curvature, self.curvature_turns, low, high)
            most, least = (-bends[0]).clamp_min(0) * width**2 / 8, (-bends[1]).clamp_max(0) * width**2 / 8
        radius = torch.where(wide, (most - least) / 2, torch.inf)
        return slope, start + (most + least) / 2, radius


def activation_of(module: nn.Module) -> Activation | None:
    """The calculus of an activation module, None for any other module or an option that is not known."""
    make = KNOWN.get(type(module))
    return None if make is None else make(module)


def register_activation(kind: type[nn.Module], make: Callable[[Any], Activation | None]) -> None:
    """Teach the certificates an elementwise module: `make(module)` returns its calculus.

    Example:
        >>> register_activation(Sine, lambda module: Activation("sine", torch.sin, torch.cos, ...))
    """
    KNOWN[kind] = make


def gaussian(scale: float) -> Activation:
    """exp(−z²/(2 scale²)) (A C.3)."""

    def value(z: Tensor) -> Tensor:
        return torch.exp(-0.5 * (z / scale) ** 2)

    return Activation(
        "Gaussian",
        value,
        lambda z: -z / scale**2 * value(z),
        lambda z: ((z / scale) ** 2 - 1) / scale**2 * value(z),
        value_turns=(0.0,),
        slope_turns=(-scale, scale),
        curvature_turns=(-math.sqrt(3) * scale, 0.0, math.sqrt(3) * scale),
    )


def _piecewise(name: str, left: float) -> Activation:
    return Activation(
        name,
        lambda z: torch.where(z > 0, z, left * z),
        lambda z: torch.where(z > 0, torch.ones_like(z), left),
        value_turns=(0.0,),
    )


def _tanh(_: nn.Module) -> Activation:
    turn = math.atanh(1 / math.sqrt(3))
    return Activation(
        "tanh",
        torch.tanh,
        lambda z: 1 / torch.cosh(z.clamp(-300, 300)) ** 2,
        lambda z: -2 * torch.tanh(z) / torch.cosh(z.clamp(-300, 300)) ** 2,
        slope_turns=(0.0,),
        curvature_turns=(-turn, turn),
    )


def _sigmoid_slope(z: Tensor) -> Tensor:
    return torch.sigmoid(z) * torch.sigmoid(-z)


def _sigmoid_curvature(z: Tensor) -> Tensor:
    return _sigmoid_slope(z) * (torch.sigmoid(-z) - torch.sigmoid(z))


SIGMOID_TURN = math.log(2 + math.sqrt(3))


def _sigmoid(_: nn.Module) -> Activation:
    return Activation(
        "sigmoid",
        torch.sigmoid,
        _sigmoid_slope,
        _sigmoid_curvature,
        slope_turns=(0.0,),
        curvature_turns=(-SIGMOID_TURN, SIGMOID_TURN),
    )


def _softplus(module: nn.Softplus) -> Activation | None:
    """log(1 + e^{βz})/β; at βz = threshold torch falls onto z: by 2e-9/β at 20, its own choice, more below it."""
    beta = float(module.beta)
    if module.threshold < 20:
        return None
    return Activation(
        "softplus",
        lambda z: functional.softplus(z, beta, module.threshold),
        lambda z: torch.sigmoid(beta * z),
        lambda z: beta * _sigmoid_slope(beta * z),
        curvature_turns=(0.0,),
        gap=math.exp(-module.threshold),
    )


def _normal_density(z: Tensor) -> Tensor:
    return torch.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)


def _gelu(module: nn.GELU) -> Activation | None:
    if module.approximate != "none":
        return None
    return Activation(
        "GELU",
        functional.gelu,
        lambda z: torch.special.ndtr(z) + z * _normal_density(z),
        lambda z: (2 - z**2) * _normal_density(z),
        value_turns=(-0.7517915246935645,),
        slope_turns=(-math.sqrt(2), math.sqrt(2)),
        curvature_turns=(-2.0, 0.0, 2.0),
    )


def _silu(_: nn.Module) -> Activation:
    return Activation(
        "SiLU",
        functional.silu,
        lambda z: torch.sigmoid(z) + z * _sigmoid_slope(z),
        lambda z: 2 * _sigmoid_slope(z) + z * _sigmoid_curvature(z),
        value_turns=(-1.2784645427610738,),
        slope_turns=(-2.3993572805154675, 2.3993572805154675),
        curvature_turns=(-3.43584099353511, 0.0, 3.43584099353511),
    )


def _elu(module: nn.ELU) -> Activation | None:
    if module.alpha != 1:
        return None
    return Activation(
        "ELU",
        functional.elu,
        lambda z: torch.exp(z.clamp_max(0)),
        lambda z: torch.where(z > 0, 0.0, torch.exp(z.clamp_max(0))),
        curvature_turns=(0.0,),
    )


KNOWN: dict[type[nn.Module], Callable[[Any], Activation | None]] = {
    nn.ReLU: lambda _: _piecewise("ReLU", 0.0),
    nn.LeakyReLU: lambda module: _piecewise("LeakyReLU", module.negative_slope),
    nn.Tanh: _tanh,
    nn.Sigmoid: _sigmoid,
    nn.Softplus: _softplus,
    nn.GELU: _gelu,
    nn.SiLU: _silu,
    nn.ELU: _elu,
}


def _range(function: Function, turns: tuple[float, ...], low: Tensor, high: Tensor) -> Range:
    """Least and largest value over [low, high], reached at an end or at a turn inside."""
    points = [low, high, *(torch.minimum(torch.maximum(low.new_tensor(turn), low), high) for turn in turns)]
    values = torch.stack([function(point) for point in points])
    return values.amin(0), values.amax(0)


def _thinnest(bands: list[tuple[Tensor, Tensor, Tensor]]) -> tuple[Tensor, Tensor, Tensor]:
    slopes, offsets, radii = (torch.stack(parts) for parts in zip(*bands, strict=True))
    best = radii.argmin(0, keepdim=True)
    slope, offset, radius = (stack.gather(0, best)[0] for stack in (slopes, offsets, radii))
    return slope, offset, radius
