"""Architectures of the papers by name, models from elsewhere, and trained weights."""

from spherometer.zoo.models.build import build_model, model_names
from spherometer.zoo.models.catalogue import ARCHITECTURES, Architecture
from spherometer.zoo.models.coordinate import pretrain_on_sine
from spherometer.zoo.models.external import find_timm_weights
from spherometer.zoo.models.linearised import Linearised
from spherometer.zoo.models.parts import ModelError
from spherometer.zoo.models.rescaling import rescale_layers
from spherometer.zoo.models.standardised import Standardised
from spherometer.zoo.models.weights import MissingWeightsError, WeightsError, load_weights

__all__ = [
    "ARCHITECTURES",
    "Architecture",
    "Linearised",
    "MissingWeightsError",
    "ModelError",
    "Standardised",
    "WeightsError",
    "build_model",
    "find_timm_weights",
    "load_weights",
    "model_names",
    "pretrain_on_sine",
    "rescale_layers",
]
