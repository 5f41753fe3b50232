"""Jacobians of every sample: one set of backward passes for all layers, and Lanczos runs side by side for many outputs.

Against the naive ways: layer by layer at full batch, sample by sample as the code of paper B works, and C backward
passes. The way of one sample after the other takes time in proportion to them, so it sees few.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

import spherometer as sm
from benchmarks.contest import Outcome, Row, contest
from benchmarks.networks import Setting, images, setting
from spherometer.operators.forward import is_linear_map

NUM, NUM_ALONE = 1000, 8  # samples of NMLS, and of the batch-one way, whose time is scaled up
NUM_OUTPUTS, NUM_MANY = 1000, 8  # outputs and samples of the contest of many outputs


def rows(*, quick: bool) -> list[Row]:
    """NMLS of VGG-11, then the input-Jacobian norms of a vision transformer with 1000 outputs."""
    return network_sensitivity("6CNN") if quick else network_sensitivity("VGG-11") + many_outputs()


def network_sensitivity(name: str) -> list[Row]:
    given = setting(name)
    inputs, targets, _ = images()
    some, few = (inputs[:NUM], targets[:NUM]), inputs[:NUM_ALONE]
    truth, slow = ours(given, *some, 0).value, "layer by layer, full batch"
    alone, scale = f"sample by sample (from the time of {NUM_ALONE})", NUM / NUM_ALONE
    tools = {
        "spherometer": lambda seed: ours(given, *some, seed),
        slow: lambda seed: by_layer(given.model, some[0]),  # noqa: ARG005
        alone: lambda seed: by_sample(given.model, few),  # noqa: ARG005
    }
    *found, last = contest(
        "NMLS",
        f"{name}, {NUM} samples",
        tools,
        truth=truth,
        repeats=5,
        once=(slow,),
        targets={slow: "≥ 5", alone: "≥ 50"},
    )
    return [*found, replace(last, seconds=scale * last.seconds, ratio=scale * last.ratio, error="")]


def ours(given: Setting, inputs: Tensor, targets: Tensor, seed: int) -> Outcome:
    problem = sm.Problem(given.model, given.loss, (inputs, targets))
    return Outcome(float(sm.measure(problem, ["nmls"], seed=seed)["nmls"]), products=10, stated=0.0)


def by_layer(model: nn.Module, inputs: Tensor) -> Outcome:
    """For each layer a forward pass and C backward passes down to its input, all samples at once; dense SVDs."""
    total = 0.0
    for layer in [module for module in model.modules() if is_linear_map(module)]:
        for entered, outputs in _entered(model, layer, inputs):
            rows = [
                torch.autograd.grad(outputs[:, k].sum(), entered, retain_graph=True)[0].flatten(1)
                for k in range(outputs.shape[1])
            ]
            total += float(torch.linalg.svdvals(torch.stack(rows, 1))[:, 0].mean())
    return Outcome(total)


def by_sample(model: nn.Module, inputs: Tensor) -> Outcome:
    """The same at batch size one."""
    return Outcome(sum(by_layer(model, sample[None]).value for sample in inputs) / len(inputs))


def _entered(model: nn.Module, layer: nn.Module, inputs: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    met: list[Tensor] = []

    def hook(_: nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        met.append(arguments[0].detach().requires_grad_())
        return (met[-1],)

    handle = layer.register_forward_pre_hook(hook)
    outputs = model(inputs)
    handle.remove()
    for entered in met:
        yield entered, outputs


def many_outputs() -> list[Row]:
    torch.manual_seed(0)
    model = Transformer(NUM_OUTPUTS)
    inputs = images()[0][:NUM_MANY]
    targets = torch.zeros(NUM_MANY, dtype=torch.long)
    problem = sm.Problem(model, nn.CrossEntropyLoss(), (inputs, targets))
    truth = one_by_one(model, inputs).value
    tools = {
        "spherometer": lambda seed: lanczos(problem, seed),
        "C backward passes": lambda seed: one_by_one(model, inputs),  # noqa: ARG005
    }
    name = f"ViT, {NUM_OUTPUTS} outputs, {NUM_MANY} samples"
    return contest(
        "mean input-Jacobian norm", name, tools, truth=truth, repeats=1, targets={"C backward passes": "≥ 10"}
    )


def lanczos(problem: sm.Problem, seed: int) -> Outcome:
    found = sm.measure(problem, ["mls"], seed=seed)["mls"].estimate
    return Outcome(float(found), products=2 * found.products, stated=float(found.error))


def one_by_one(model: nn.Module, inputs: Tensor) -> Outcome:
    """C backward passes for all samples at once, Gram matrices, eigvalsh."""
    inputs = inputs.clone().requires_grad_()
    outputs = model(inputs)
    rows = [
        torch.autograd.grad(outputs[:, k].sum(), inputs, retain_graph=True)[0].flatten(1)
        for k in range(outputs.shape[1])
    ]
    jacobians = torch.stack(rows, 1)
    values = [torch.linalg.eigvalsh((one @ one.T).double())[-1].sqrt() for one in jacobians]
    return Outcome(float(torch.stack(values).mean()), products=outputs.shape[1])


class Transformer(nn.Module):
    """A small vision transformer: patches of 4 x 4, 6 blocks of width 96."""

    def __init__(self, num_outputs: int, width: int = 96, depth: int = 6) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.places = nn.Parameter(0.02 * torch.randn(1, 64, width))
        self.blocks = nn.Sequential(*[Block(width) for _ in range(depth)])
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, num_outputs))

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.patches(images).flatten(2).transpose(1, 2) + self.places
        return self.head(self.blocks(tokens).mean(1))


class Block(nn.Module):
    """Attention and a hidden layer, each behind a layer norm and around a skip connection."""

    def __init__(self, width: int, heads: int = 3) -> None:
        super().__init__()
        self.heads, self.first, self.second = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.mixed, self.joined = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        split = self.mixed(self.first(tokens)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(*split).transpose(1, 2).flatten(2)
        tokens = tokens + self.joined(attended)
        return tokens + self.down(functional.gelu(self.up(self.second(tokens))))
