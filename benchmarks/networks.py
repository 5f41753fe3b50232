"""The networks of the contests, partly trained so that their Hessians have outliers, on CIFAR-10 if it can be found."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn

from benchmarks.contest import console
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


NETWORKS = {  # architecture, and batch that is measured
    "3FCN": ("fcn3-cifar", 1000),
    "6CNN": ("cnn6", 1000),
    "VGG-11": ("vgg11", 128),
    "ResNet-18": ("resnet18", 64),
}
BATCH_SIZE, NUM_RECENT = 64, 10
MAX_STEPS = 5000  # VGG-11 takes more than a thousand on the clusters
STAGES = (1 / 3, 1 / 2, 2 / 3)  # of the images right: a single one has a single spectrum, which may suit a tool


def setting(name: str) -> Setting:
    """A network that gets half of its images right, in eval mode."""
    return settings(name)[STAGES.index(1 / 2)]


@cache
def settings(name: str) -> list[Setting]:
    """One network in eval mode, as it is when the share of each stage is right for the first time."""
    architecture, batch_size = NETWORKS[name]
    inputs, targets, source = images()
    model = build_model(architecture, num_classes=10, input_shape=(3, 32, 32), seed=0)
    measured = nn.CrossEntropyLoss(), inputs[:batch_size], targets[:batch_size], source
    return [Setting(name, stage.eval(), *measured) for stage in _trained(model, inputs, targets)]


@cache
def images() -> tuple[Tensor, Tensor, str]:
    """The first 2,000 training images of CIFAR-10, standardised; without the files, clusters of the same shape."""
    try:
        data = load_data("cifar10", num=2000, standardise="cifar")
    except DataError:
        data = gaussian_clusters(2000, 3072, 10, distance=8.0, spread=1.0, seed=0)
        return data.inputs.view(-1, 3, 32, 32), data.targets, "Gaussian clusters"
    return data.inputs, data.targets, "CIFAR-10"


def _trained(model: nn.Module, inputs: Tensor, targets: Tensor) -> Iterator[nn.Module]:
    """SGD with momentum; a copy of the model as soon as the share of each stage of the last batches' images was right.

    Numbers of steps would not do: the first ones differ from machine to machine, and so do the spectra after them.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    generator = torch.Generator().manual_seed(0)
    right, left = deque[float](maxlen=NUM_RECENT), deque(STAGES)
    model.train()
    for step in range(MAX_STEPS):
        batch = torch.randint(len(inputs), (BATCH_SIZE,), generator=generator)
        outputs = model(inputs[batch])
        optimizer.zero_grad()
        nn.functional.cross_entropy(outputs, targets[batch]).backward()
        optimizer.step()
        right.append(float((outputs.argmax(1) == targets[batch]).float().mean()))
        while len(right) == NUM_RECENT and sum(right) >= NUM_RECENT * left[0]:
            console.print(f"  trained for {step + 1} steps: {left.popleft():.0%} are right", style="dim")
            yield copy.deepcopy(model)
            if not left:
                return
    raise RuntimeError(f"fewer than {left[0]:.0%} of the images are right after {MAX_STEPS} steps")
