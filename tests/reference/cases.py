"""Small networks, one for every layer type, each with data: what the batteries run over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from reference.twins import Twin
from spherometer import Problem

NUM_SAMPLES, NUM_CLASSES = 5, 3


@dataclass(frozen=True)
class Case:
    """A network and inputs; `closed`: its per-sample gradients have closed forms; `multilinear`: T12 holds."""

    name: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    closed: bool = True
    multilinear: bool = False
    batchnorm: str = "eval"
    num_tokens: int = 0

    def model(self, dtype: torch.dtype = torch.float64) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(3)
            model = self.build()
            for parameter in model.parameters():
                parameter.data.add_(0.1 * torch.randn_like(parameter))  # no scale is exactly one, no shift zero
            for name, buffer in model.named_buffers():
                if "running" in name:
                    buffer.uniform_(0.5, 1.5)
        return model.to(dtype)

    def data(self, dtype: torch.dtype = torch.float64, num: int = NUM_SAMPLES) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(5)
        if self.num_tokens:
            inputs = torch.randint(self.num_tokens, (num, *self.shape), generator=generator)
        else:
            inputs = torch.randn(num, *self.shape, generator=generator, dtype=torch.float64).to(dtype)
        return inputs, torch.randint(NUM_CLASSES, (num,), generator=generator)

    def problem(self, loss: Any = None, dtype: torch.dtype = torch.float64, **options: Any) -> Problem:
        loss = nn.CrossEntropyLoss() if loss is None else loss
        return Problem(self.model(dtype), loss, self.data(dtype), batchnorm=self.batchnorm, **options)

    def twin(self, loss: Any = None) -> Twin:
        return _twin(self, nn.CrossEntropyLoss if loss is None else type(loss))


@cache
def _twin(case: Case, loss: type[nn.Module]) -> Twin:
    """Kept for the next test: dense matrices take their time."""
    return Twin(case.model(), loss(), *case.data(), batchnorm=case.batchnorm)


class Residual(nn.Module):
    """x + inner(x)."""

    def __init__(self, *inner: nn.Module) -> None:
        super().__init__()
        self.inner = nn.Sequential(*inner)

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + self.inner(inputs)


class Attention(nn.Module):
    """One head of scaled dot-product attention over (n, T, d)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mixed = nn.Linear(width, 3 * width)

    def forward(self, inputs: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(*self.mixed(inputs).chunk(3, dim=-1))


class Heads(nn.Module):
    """nn.MultiheadAttention of a sequence with itself."""

    def __init__(self, *, batch_first: bool = True) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=batch_first)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.attention(inputs, inputs, inputs, need_weights=False)[0]


class Last(nn.Module):
    """The last output of a recurrent network."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, inputs: Tensor) -> Tensor:
        return self.inner(inputs)[0][:, -1]


class Mean(nn.Module):
    """Mean over the second axis."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs.mean(1)


class TiedLanguageModel(nn.Module):
    """Embedding, one mixing layer, and the embedding again as the output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(NUM_CLASSES, 4)
        self.mixing = nn.Linear(4, 4)
        self.head = nn.Linear(4, NUM_CLASSES, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.tanh(self.mixing(self.table(tokens).mean(1))))


class Transposed(nn.Module):
    """A linear layer written x @ W.T, which no closed form recognises."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 4) / 2)

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs @ self.weight.T


class Prompt(nn.Module):
    """A learnt vector that is itself the input of a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.prompt, self.layer = nn.Parameter(torch.randn(1, 4)), nn.Linear(4, NUM_CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(self.prompt) + inputs


def _around(middle: Callable[[], nn.Module], *, bend: type[nn.Module] = nn.Tanh) -> Callable[[], nn.Module]:
    """conv - middle - bend - linear on (2, 4, 4) images; `middle` keeps 4 channels of 3 x 3."""
    return lambda: nn.Sequential(
        nn.Conv2d(2, 4, 2), middle(), bend(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, NUM_CLASSES)
    )


def _bent(bend: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Linear(3, 5), bend(), nn.Linear(5, NUM_CLASSES))


def _convolution(layer: Callable[[], nn.Module], size: int) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(layer(), nn.Tanh(), nn.Flatten(), nn.Linear(size, NUM_CLASSES))


def _sequence(middle: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Linear(3, 4), middle(), Mean(), nn.Linear(4, NUM_CLASSES))


IMAGE = (2, 4, 4)
PADDED = Case(
    "embedding with padding",
    lambda: nn.Sequential(nn.Embedding(6, 4, padding_idx=2), Mean(), nn.Tanh(), nn.Linear(4, 3)),
    (7,),
    num_tokens=6,
)
CASES = [
    Case("linear", _bent(nn.Tanh), (3,)),
    Case("relu", _bent(nn.ReLU), (3,), multilinear=True),
    Case("relu in place", _bent(lambda: nn.ReLU(inplace=True)), (3,), multilinear=True),
    Case("leaky relu", _bent(nn.LeakyReLU), (3,), multilinear=True),
    Case("prelu", _bent(nn.PReLU), (3,), closed=False, multilinear=True),
    Case("silu", _bent(nn.SiLU), (3,)),
    Case("gelu", _bent(nn.GELU), (3,)),
    Case("gelu tanh", _bent(lambda: nn.GELU(approximate="tanh")), (3,)),
    Case("softplus", _bent(nn.Softplus), (3,)),
    Case("elu", _bent(nn.ELU), (3,)),
    Case("softmax inside", _bent(lambda: nn.Softmax(1)), (3,)),
    Case("linear on sequences", _sequence(nn.Tanh), (6, 3)),
    Case("conv1d", _convolution(lambda: nn.Conv1d(2, 3, 3, stride=2, padding=1), 9), (2, 6)),
    Case(
        "conv2d",
        _convolution(lambda: nn.Conv2d(2, 3, (2, 3), stride=(1, 2), padding=(1, 0), dilation=(2, 1)), 12),
        IMAGE,
    ),
    Case("conv2d same", _convolution(lambda: nn.Conv2d(2, 2, (2, 3), padding="same"), 32), IMAGE),
    Case("conv2d valid", _convolution(lambda: nn.Conv2d(2, 2, 3, padding="valid"), 8), IMAGE),
    Case("conv2d circular", _convolution(lambda: nn.Conv2d(2, 2, 3, padding=1, padding_mode="circular"), 32), IMAGE),
    Case("conv2d grouped", _convolution(lambda: nn.Conv2d(2, 4, 2, groups=2), 36), IMAGE),
    Case("conv2d without bias", _convolution(lambda: nn.Conv2d(2, 2, 2, bias=False), 18), IMAGE),
    Case("conv3d", _convolution(lambda: nn.Conv3d(1, 2, 2, stride=(1, 1, 2)), 16), (1, 3, 3, 4)),
    Case(
        "transposed conv1d", _convolution(lambda: nn.ConvTranspose1d(2, 3, 3, stride=2, output_padding=1), 24), (2, 3)
    ),
    Case(
        "transposed conv2d",
        _convolution(lambda: nn.ConvTranspose2d(2, 2, (2, 3), stride=2, padding=(0, 1), dilation=(2, 1)), 30),
        (2, 2, 2),
    ),
    Case("transposed conv2d grouped", _convolution(lambda: nn.ConvTranspose2d(4, 6, 2, groups=2), 54), (4, 2, 2)),
    Case("transposed conv3d", _convolution(lambda: nn.ConvTranspose3d(1, 2, 2), 36), (1, 2, 2, 1)),
    Case("max pool", _around(lambda: nn.MaxPool2d(2, 1), bend=nn.ReLU), IMAGE, multilinear=True),
    Case("average pool", _around(lambda: nn.AvgPool2d(2, 1), bend=nn.ReLU), IMAGE, multilinear=True),
    Case(
        "conv residual", _around(lambda: Residual(nn.Conv2d(4, 4, 1), nn.ReLU()), bend=nn.ReLU), IMAGE, multilinear=True
    ),
    Case("batch norm eval", _around(lambda: nn.BatchNorm2d(4)), IMAGE),
    Case("batch norm eval relu", _around(lambda: nn.BatchNorm2d(4), bend=nn.ReLU), IMAGE, multilinear=True),
    Case("batch norm train", _around(lambda: nn.BatchNorm2d(4)), IMAGE, closed=False, batchnorm="train"),
    Case(
        "batch norm train relu",
        _around(lambda: nn.BatchNorm2d(4), bend=nn.ReLU),
        IMAGE,
        closed=False,
        batchnorm="train",
    ),
    Case("batch norm untracked", _around(lambda: nn.BatchNorm2d(4, track_running_stats=False)), IMAGE, closed=False),
    Case(
        "batch norm 1d train",
        _bent(lambda: nn.Sequential(nn.BatchNorm1d(5), nn.Tanh())),
        (3,),
        closed=False,
        batchnorm="train",
    ),
    Case("batch norm 1d eval", _bent(lambda: nn.Sequential(nn.BatchNorm1d(5), nn.Tanh())), (3,)),
    Case("layer norm", _bent(lambda: nn.Sequential(nn.LayerNorm(5), nn.Tanh())), (3,)),
    Case("layer norm on images", _around(lambda: nn.LayerNorm((4, 3, 3))), IMAGE),
    Case("group norm", _around(lambda: nn.GroupNorm(2, 4)), IMAGE),
    Case("group norm relu", _around(lambda: nn.GroupNorm(2, 4), bend=nn.ReLU), IMAGE),
    Case("instance norm", _around(lambda: nn.InstanceNorm2d(4, affine=True)), IMAGE),
    Case(
        "instance norm tracked",
        _around(lambda: nn.InstanceNorm2d(4, affine=True, track_running_stats=True)),
        IMAGE,
        closed=False,
    ),
    Case(
        "instance norm tracked train",
        _around(lambda: nn.InstanceNorm2d(4, affine=True, track_running_stats=True)),
        IMAGE,
        closed=False,
        batchnorm="train",
    ),
    Case("rms norm", _bent(lambda: nn.Sequential(nn.RMSNorm(5), nn.Tanh())), (3,)),
    Case("attention", _sequence(lambda: Attention(4)), (6, 3)),
    Case("multihead attention", _sequence(Heads), (6, 3), closed=False),
    Case("multihead attention, sequence first", _sequence(lambda: Heads(batch_first=False)), (6, 3), closed=False),
    Case(
        "transformer layer",
        _sequence(lambda: nn.TransformerEncoderLayer(4, 2, 6, batch_first=True, activation="gelu")),
        (6, 3),
        closed=False,
    ),
    Case(
        "lstm",
        lambda: nn.Sequential(Last(nn.LSTM(2, 3, batch_first=True)), nn.Linear(3, NUM_CLASSES)),
        (4, 2),
        closed=False,
    ),
    Case(
        "gru",
        lambda: nn.Sequential(Last(nn.GRU(2, 3, batch_first=True)), nn.Linear(3, NUM_CLASSES)),
        (4, 2),
        closed=False,
    ),
    Case(
        "rnn",
        lambda: nn.Sequential(Last(nn.RNN(2, 3, batch_first=True)), nn.Linear(3, NUM_CLASSES)),
        (4, 2),
        closed=False,
    ),
    Case(
        "embedding", lambda: nn.Sequential(nn.Embedding(6, 4), Mean(), nn.Tanh(), nn.Linear(4, 3)), (7,), num_tokens=6
    ),
    PADDED,
    Case("tied language model", TiedLanguageModel, (4,), closed=False, num_tokens=NUM_CLASSES),
    Case("x @ W.T", lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), Transposed()), (3,), closed=False),
    Case("prompt", Prompt, (3,), closed=False, multilinear=True),
]
BY_NAME = {case.name: case for case in CASES}


def random_block(rows: int, num: int = 3, seed: int = 11) -> Tensor:
    return torch.randn(rows, num, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
