"""Small networks in training, with and without somebody watching."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import Tensor, nn

import spherometer as sm

CASES = ("plain", "dropout", "batch norm", "autocast", "accumulation", "adam")


def data(num: int = 48) -> tuple[Tensor, Tensor]:
    stream = torch.Generator().manual_seed(5)
    return torch.randn(num, 6, generator=stream), torch.randint(0, 3, (num,), generator=stream)


def model_of(case: str) -> nn.Module:
    middle: list[nn.Module] = [nn.Tanh()]
    if case == "dropout":
        middle.append(nn.Dropout(0.3))
    if case == "batch norm":
        middle.insert(0, nn.BatchNorm1d(8))
    return nn.Sequential(nn.Linear(6, 8), *middle, nn.Linear(8, 3))


def train(case: str, tracked: dict | None, num_steps: int = 12) -> tuple[nn.Module, sm.Tracker | None]:
    """A run from a fixed seed; `tracked` are the tracker's options, None for nobody watching."""
    torch.manual_seed(0)
    model, loss, (inputs, targets) = model_of(case).train(), nn.CrossEntropyLoss(), data()
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    if case == "adam":
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    tracker = None if tracked is None else sm.Tracker(sm.Problem(model, loss, (inputs, targets)), **tracked)
    cast = torch.autocast("cpu", dtype=torch.bfloat16) if case == "autocast" else nullcontext()
    pieces = 3 if case == "accumulation" else 1
    for _ in range(num_steps):
        batch = torch.randint(0, len(inputs), (24,))
        optimizer.zero_grad()
        with cast:
            for part in batch.chunk(pieces):
                value = loss(model(inputs[part]).float(), targets[part]) / pieces
                value.backward()
                if tracker is not None and pieces > 1:
                    tracker.end_epoch()  # measured between two halves of a gradient
            optimizer.step()
            if tracker is not None:
                tracker.step(optimizer, value.detach())
    return model, tracker
