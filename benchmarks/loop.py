"""What a step costs: the loop over a bare one, and each method over plain SGD.  `python -m benchmarks.loop`.

Rounds of a few steps take turns, so that a busy moment of the machine hits all; a ratio is the median over rounds of
time over the bare loop's time in the same round.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from spherometer.training import PGD, AdversarialTraining, MeanJacobianPenalty, Penalised, Plain, Training
from spherometer.training.optim import ASAM, EJR, SAM, EJRv2
from spherometer.zoo import build_model

LOSS = nn.CrossEntropyLoss()


@dataclass(frozen=True)
class Setting:
    """A network, the shape of its inputs, a batch size, and how many steps make a round."""

    network: str
    input_shape: tuple[int, ...]
    batch_size: int
    num_steps: int

    def model(self) -> nn.Module:
        return build_model(self.network, input_shape=self.input_shape, num_classes=10)

    def data(self) -> tuple[Tensor, Tensor]:
        generator, num = torch.Generator().manual_seed(0), 8 * self.batch_size
        return torch.rand(num, *self.input_shape, generator=generator), torch.arange(num) % 10


SETTINGS = (
    Setting("digits-mlp", (1, 8, 8), 64, 20),
    Setting("digits-cnn", (1, 8, 8), 64, 10),
    Setting("lenet", (3, 32, 32), 64, 2),
    Setting("resnet20", (3, 32, 32), 32, 1),
)


def bare(setting: Setting) -> Iterator[float]:
    """The loop that everybody writes: a fresh order each epoch, indexed batches, the loss looked at."""
    model, (inputs, targets) = setting.model(), setting.data()
    optimizer, generator = _sgd(model), torch.Generator().manual_seed(0)
    while True:
        for chosen in torch.randperm(len(inputs), generator=generator).split(setting.batch_size):
            optimizer.zero_grad()
            loss = LOSS(model(inputs[chosen]), targets[chosen])
            loss.backward()
            optimizer.step()
            yield loss.item()


def ours(setting: Setting, make: Callable[[nn.Module], torch.optim.Optimizer], objective: object) -> Iterator[object]:
    model = setting.model()
    return Training(model, make(model), setting.data(), objective, setting.batch_size).run(10**9)  # type: ignore[arg-type]


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)


def _two_pass(kind: type[torch.optim.Optimizer]) -> Callable[[nn.Module], torch.optim.Optimizer]:
    return lambda model: kind(model.parameters(), torch.optim.SGD, lr=1e-3, momentum=0.9, rho=0.05, model=model)  # type: ignore[call-arg, arg-type]


def methods(setting: Setting) -> dict[str, tuple[Iterator[object], str]]:
    """Endless runs by name, with the ratio that is wanted."""
    generator = torch.Generator().manual_seed(0)
    simple = Penalised(LOSS, [MeanJacobianPenalty(0.01, generator=generator)])
    adversarial = AdversarialTraining(PGD(8 / 255, num_steps=10), generator)
    return {
        "bare loop": (bare(setting), ""),
        "the loop, SGD": (ours(setting, _sgd, Plain(LOSS)), "1.05"),
        "SAM": (ours(setting, _two_pass(SAM), Plain(LOSS)), "2.1"),
        "ASAM": (ours(setting, _two_pass(ASAM), Plain(LOSS)), ""),
        "EJR efficient": (ours(setting, _two_pass(EJR), Plain(LOSS)), "2.1"),
        "EJR v2": (ours(setting, _two_pass(EJRv2), Plain(LOSS)), ""),
        "EJR simple": (ours(setting, _sgd, simple), "3.5"),
        "AT, 10 steps of PGD": (ours(setting, _sgd, adversarial), ""),
    }


def ratios(setting: Setting, *, rounds: int, names: tuple[str, ...] = ()) -> list[tuple[str, float, float, str]]:
    """Name, milliseconds per step, ratio over the bare loop, wanted ratio."""
    runs = {name: entry for name, entry in methods(setting).items() if not names or name in names}
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds + 1):
        for name, (run, _) in runs.items():
            began = time.perf_counter()
            for _ in range(setting.num_steps):
                next(run)
            times[name].append(time.perf_counter() - began)
    table = []
    for name, (_, wanted) in runs.items():
        over = [one / base for one, base in zip(times[name][1:], times["bare loop"][1:], strict=True)]
        each = 1e3 * statistics.median(times[name][1:]) / setting.num_steps
        table.append((name, each, statistics.median(over), wanted))
    return table


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.loop", description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--network", default="", help="only this one")
    parser.add_argument("--names", default="", help="only these, separated by commas; the bare loop among them")
    options = parser.parse_args()
    names = tuple(name.strip() for name in options.names.split(",") if name.strip())
    print("| network | batch | method | ms a step | over the bare loop | wanted at most |")
    print("|---|---|---|---|---|---|")
    for setting in SETTINGS:
        if options.network in ("", setting.network):
            for name, each, over, wanted in ratios(setting, rounds=options.rounds, names=names):
                print(f"| {setting.network} | {setting.batch_size} | {name} | {each:.2f} | {over:.2f} | {wanted} |")


if __name__ == "__main__":
    main()
