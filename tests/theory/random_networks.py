"""Random small networks with balls; no certificate may be below what was met: `test_lipschitz` breaks the check."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from spherometer.zoo.models.parts import Gaussian

ACTIVATIONS = [
    nn.ReLU, lambda: nn.LeakyReLU(0.2), nn.Tanh, nn.Sigmoid, nn.Softplus, nn.GELU, nn.SiLU, nn.ELU, Gaussian,
    lambda: Gaussian(1.5),
]  # fmt: skip


def generator(seed):
    return torch.Generator().manual_seed(seed)


def noise(*shape, seed=0):
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


def double(model, seed=0):
    """In float64 with weights from a seed."""
    stream = generator(seed)
    model = model.double().eval()
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.copy_(torch.randn(tensor.shape, generator=stream, dtype=torch.float64) / tensor[0].numel() ** 0.5)
    return model


def pick(choices, generator):
    return choices[int(torch.randint(len(choices), (), generator=generator))]


def random_network(seed: int) -> tuple[nn.Module, Tensor, float]:
    """A network in float64, samples and a radius: dense or convolutional, up to five layers, some with a softmax."""
    generator = torch.Generator().manual_seed(seed)
    convolutional, depth = pick([False, False, False, True], generator), pick([1, 2, 2, 3, 3, 4], generator)
    layers: list[nn.Module] = []
    if convolutional:
        shape, channels = (pick([1, 2], generator), 4, 4), pick([1, 3], generator)
        layers += [
            nn.Conv2d(shape[0], channels, 3, stride=pick([1, 2], generator), padding=1),
            pick(ACTIVATIONS, generator)(),
        ]
        layers += [nn.BatchNorm2d(channels)] if pick([True, False], generator) else []
        layers += [nn.AvgPool2d(2)] if pick([True, False], generator) else []
        layers += [nn.Flatten()]
        width = nn.Sequential(*layers).eval()(torch.zeros(1, *shape)).shape[1]
    else:
        shape = (width,) = (pick([1, 2, 5], generator),)
    for _ in range(depth - 1):
        hidden = pick([1, 4, 9], generator)
        layers += [nn.Linear(width, hidden, bias=pick([True, False], generator)), pick(ACTIVATIONS, generator)()]
        width = hidden
    layers += [nn.Linear(width, pick([1, 3], generator))]
    layers += [nn.Softmax(1)] if pick([True, False, False, False], generator) else []
    model = nn.Sequential(*layers).double().eval()
    gain = pick([0.3, 1.0, 3.0], generator)
    with torch.no_grad():
        for tensor in model.parameters():
            noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
            tensor.copy_(gain * noise / max(1, tensor[0].numel()) ** 0.5)
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_var.uniform_(0.2, 2, generator=generator)
    samples = torch.randn(2, *shape, generator=generator, dtype=torch.float64)
    return model, samples, pick([1e-6, 1e-2, 0.3, 3.0], generator)


def _added_in_place(a, b):
    total = 2 * a
    total += b
    total *= 1.5
    return total


LINKS = [  # one value of shape (n, rows, columns) to one, in every way of writing
    lambda x: 5 * x,
    lambda x: x * torch.tensor([[-1.7]], dtype=torch.float64),
    lambda x: x.sum(1, keepdim=True) * torch.tensor([[1.0], [-2.0], [0.5]], dtype=torch.float64),
    lambda x: torch.div(input=x, other=0.3),
    lambda x: x / torch.tensor(-0.4, dtype=torch.float64) + 1e3,
    lambda x: 1 - x,
    lambda x: torch.rsub(x, 2.0, alpha=4),
    lambda x: -x,
    lambda x: torch.add(x, x, alpha=2),
    lambda x: x - 3 * x,
    lambda x: x.clone().mul_(3).sub_(1).relu_(),
    functional.relu,
    lambda x: functional.relu(-x, inplace=True),
    lambda x: functional.silu(input=x),
    lambda x: functional.leaky_relu(x, 3.0),
    lambda x: functional.softplus(x, beta=2),
    functional.elu,
    functional.gelu,
    lambda x: x.tanh(),
    lambda x: functional.softmax(x.flatten(1), dim=1).reshape(x.shape),
    lambda x: functional.layer_norm(x, (x.shape[-1],), eps=0.5),
    lambda x: functional.linear(x, torch.full((2, 3), -0.7, dtype=torch.float64)),
    lambda x: x.transpose(1, 2),
    lambda x: torch.permute(x, (0, 2, 1)),
    lambda x: x.contiguous().view(x.size(0), -1, 3),
    lambda x: x.flip(2),
    lambda x: x[:, [0, 0, 0]],
    lambda x: x[:, ::2, 1:],
    lambda x: functional.pad(x, (1, 0), mode="replicate"),
    lambda x: functional.pad(x, (0, 2), value=3.0),
    lambda x: x.mean(2, keepdim=True),
    lambda x: torch.sum(x, dim=1, keepdim=True),
    lambda x: x[:, :1].expand(-1, 4, -1),
    lambda x: functional.avg_pool1d(x, 2, stride=1, padding=1),
    lambda x: functional.max_pool1d(x, 2, 1, 1),
    lambda x: functional.dropout(x, training=False),
]
MEETINGS = [  # two values to one; shapes may have to be broadcast
    lambda a, b: a + b,
    lambda a, b: torch.add(a, b, alpha=5),
    lambda a, b: a.add(other=b, alpha=-3),
    lambda a, b: a - b,
    lambda a, b: torch.sub(a, b, alpha=4),
    lambda a, b: a[:, :1] * 3 + b,
    lambda a, b: a[:, :, :1] - 2 * b,
    lambda a, b: torch.add(b, a[:, :1, :1], alpha=7),
    lambda a, b: a[:, 0, :1, None] * 5 + b * 0.01,
    lambda a, b: a + torch.tanh(b) + a,
    lambda a, b: torch.cat([a, b, a], dim=1),
    lambda a, b: torch.stack((a, b), 1).flatten(1, 2),
    _added_in_place,
]


class Branching(nn.Module):
    """A random graph: every step takes one or two of the values so far and adds one."""

    def __init__(self, shape: tuple[int, int], num_steps: int, generator: torch.Generator) -> None:
        super().__init__()
        self.layers, self.plan = nn.ModuleList(), []
        values = [torch.zeros(2, *shape, dtype=torch.float64)]
        while len(self.plan) < num_steps:
            kind = pick(["layer", "link", "link", "meeting", "meeting"], generator)
            sources = [pick([-1, -2, 0], generator) if len(values) > 1 else 0 for _ in range(2)]
            width = values[sources[0]].shape[-1]
            if kind == "layer":
                step, sources = nn.Linear(width, pick([1, 3, 4], generator)).double(), sources[:1]
                with torch.no_grad():
                    step.weight.copy_(torch.randn(step.weight.shape, generator=generator, dtype=torch.float64))
            else:
                step = pick(LINKS if kind == "link" else MEETINGS, generator)
                sources = sources[: 1 if kind == "link" else 2]
            try:
                value = step(*(values[source] for source in sources))
            except RuntimeError:  # these shapes do not go together
                continue
            if value.ndim == 3 and 0 < value[0].numel() <= 40:
                values.append(value)
                self.plan.append((step, sources))
                self.layers.append(step if kind == "layer" else nn.Identity())

    def forward(self, x):
        values = [x]
        for (step, sources), layer in zip(self.plan, self.layers, strict=True):
            function = layer if isinstance(step, nn.Module) else step
            values.append(function(*(values[source] for source in sources)))
        return values[-1]


def random_branching(seed: int) -> tuple[nn.Module, Tensor, float]:
    """A network whose values meet again, samples and a radius."""
    generator = torch.Generator().manual_seed(seed)
    shape = pick([(1, 3), (2, 3), (3, 1), (4, 4)], generator)
    model = Branching(shape, pick([2, 3, 5, 8], generator), generator)
    return model, torch.randn(4, *shape, generator=generator, dtype=torch.float64), pick([1e-3, 0.3, 3.0], generator)


def assert_sandwiched(lower: Tensor | float, upper: Tensor | float, what: str) -> None:
    """No lower bound is above its certified upper bound, not even by rounding, and none is infinite or nan."""
    low, high = (torch.as_tensor(side, dtype=torch.float64) for side in (lower, upper))
    assert bool(torch.isfinite(low).all() and torch.isfinite(high).all()), f"{what}: {low.tolist()}, {high.tolist()}"
    assert bool((low <= high).all()), f"{what}: met {low.tolist()}, certified {high.tolist()}"
