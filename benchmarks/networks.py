"""The networks of the contests, partly trained so that their Hessians have outliers, on CIFAR-10 if it can be found."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn

from spherometer.zoo import DataError, build_model, gaussian_clusters, load_data


@dataclass(frozen=True)
class Setting:
    """A partly trained model, its loss and the batch it is measured on."""

    name: str
    model: nn.Module
    loss: nn.Module
    inputs: Tensor
    targets: Tensor
    data: str


# Architecture, batch that is measured, and steps of training after which the Hessian has outliers: VGG-11 without batch
# norm stands on a plateau until step 60, with eigenvalues as far below zero as above.
NETWORKS = {
    "3FCN": ("fcn3-cifar", 1000, 150),
    "6CNN": ("cnn6", 1000, 150),
    "VGG-11": ("vgg11", 128, 100),
    "ResNet-18": ("resnet18", 64, 30),
}


@cache
def setting(name: str, *, activation: str | None = None) -> Setting:
    """A network after some steps of SGD with momentum, in eval mode."""
    architecture, batch_size, num_steps = NETWORKS[name]
    inputs, targets, source = images()
    options = {} if activation is None else {"activation": activation}
    model = build_model(architecture, num_classes=10, input_shape=(3, 32, 32), seed=0, **options)
    _train(model, inputs, targets, num_steps)
    return Setting(name, model.eval(), nn.CrossEntropyLoss(), inputs[:batch_size], targets[:batch_size], source)


@cache
def images() -> tuple[Tensor, Tensor, str]:
    """The first 2,000 training images of CIFAR-10, standardised; without the files, clusters of the same shape."""
    try:
        data = load_data("cifar10", num=2000, standardise="cifar")
    except DataError:
        data = gaussian_clusters(2000, 3072, 10, distance=8.0, spread=1.0, seed=0)
        return data.inputs.view(-1, 3, 32, 32), data.targets, "Gaussian clusters"
    return data.inputs, data.targets, "CIFAR-10"


def _train(model: nn.Module, inputs: Tensor, targets: Tensor, num_steps: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    generator = torch.Generator().manual_seed(0)
    model.train()
    for _ in range(num_steps):
        batch = torch.randint(len(inputs), (64,), generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs[batch]), targets[batch]).backward()
        optimizer.step()
