"""Random small networks with balls; no certificate may be below what was met: `test_lipschitz` breaks the check."""

from __future__ import annotations

import torch
from torch import Tensor, nn

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


def assert_sandwiched(lower: Tensor | float, upper: Tensor | float, what: str) -> None:
    """No lower bound is above its certified upper bound, not even by rounding, and none is infinite or nan."""
    low, high = (torch.as_tensor(side, dtype=torch.float64) for side in (lower, upper))
    assert bool(torch.isfinite(low).all() and torch.isfinite(high).all()), f"{what}: {low.tolist()}, {high.tolist()}"
    assert bool((low <= high).all()), f"{what}: met {low.tolist()}, certified {high.tolist()}"
