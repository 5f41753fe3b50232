"""Data sets as tensors: the embedded digits, the files people have, and synthetic families."""

from spherometer.zoo.datasets.dataset import DataError, Dataset, MissingDataError
from spherometer.zoo.datasets.load import dataset_names, load_data
from spherometer.zoo.datasets.standardisation import (
    Standardisation,
    channelwise,
    componentwise,
    given,
    rescale_inputs,
    scale_inputs,
)
from spherometer.zoo.datasets.subsets import balanced, first, random_subset, select_classes, split
from spherometer.zoo.datasets.synthetic import (
    coordinate_points,
    gaussian_clusters,
    pushforward,
    uniform_cube,
    uniform_sphere,
)

__all__ = [
    "DataError",
    "Dataset",
    "MissingDataError",
    "Standardisation",
    "balanced",
    "channelwise",
    "componentwise",
    "coordinate_points",
    "dataset_names",
    "first",
    "gaussian_clusters",
    "given",
    "load_data",
    "pushforward",
    "random_subset",
    "rescale_inputs",
    "scale_inputs",
    "select_classes",
    "split",
    "uniform_cube",
    "uniform_sphere",
]
