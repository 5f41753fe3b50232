"""Data sets and models by name: `load_data("digits")`, `build_model("resnet20")`, `load_weights(model, path)`."""

from spherometer.zoo import datasets, models
from spherometer.zoo.datasets import *  # noqa: F403
from spherometer.zoo.models import *  # noqa: F403

__all__ = [*datasets.__all__, *models.__all__]
