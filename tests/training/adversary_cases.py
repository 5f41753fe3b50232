"""A small trained network, and ones that only look robust."""

from __future__ import annotations

import copy
from functools import cache

import torch
from torch import Tensor, nn

from spherometer.zoo import build_model, load_data

NUM_TEST = 120


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def digits(train: bool = False, num: int = NUM_TEST) -> tuple[Tensor, Tensor]:
    return load_data("digits", train=train, num=num).tensors


def trained() -> nn.Module:
    """A copy of a network that gets about 95 % of the test digits right."""
    return copy.deepcopy(_trained_once())


@cache
def _trained_once() -> nn.Module:
    model = build_model("fcn3-mnist", input_shape=(1, 8, 8), width=32, seed=1)
    inputs, targets = load_data("digits").tensors
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(120):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    model.zero_grad()
    return model.eval()


class Answers(nn.Module):
    """The trained network with something between inputs and logits, or behind them."""

    def __init__(self, before=lambda x: x, after=lambda z: z) -> None:
        super().__init__()
        self.model, self.before, self.after = trained(), before, after

    def forward(self, inputs: Tensor) -> Tensor:
        return self.after(self.model(self.before(inputs)))
