"""Standardisation as the first layer of a model, so that attacks and Jacobians see the inputs as they are."""

from __future__ import annotations

from torch import Tensor, nn

from spherometer.zoo.datasets.standardisation import Standardisation


class Standardised(nn.Module):
    """x -> model((x − mean)/std): mean and std are buffers, saved and moved with the weights.

    Example:
        >>> model = Standardised(build_model("resnet20"), channelwise(load_data("cifar10")))
    """

    mean: Tensor
    std: Tensor

    def __init__(self, model: nn.Module, rule: Standardisation) -> None:
        super().__init__()
        self.register_buffer("mean", rule.mean.clone())
        self.register_buffer("std", rule.std.clone())
        self.model = model

    def forward(self, inputs: Tensor) -> Tensor:
        """The model's outputs for unstandardised inputs."""
        outputs: Tensor = self.model((inputs - self.mean) / self.std)
        return outputs
