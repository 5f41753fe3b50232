"""Which modules count as linear maps."""

import pytest
import torch
from torch import nn

from spherometer import Problem
from spherometer.metrics import measure
from spherometer.operators.listening import is_linear_map


class Conv1D(nn.Module):
    """A user's own, which shares its name with that of Hugging Face and has no weight itself."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Conv1d(2, 3, 2)

    def forward(self, inputs):
        return self.inner(inputs)


def test_a_module_is_not_taken_for_another_by_its_name():
    model = nn.Sequential(Conv1D(), nn.Flatten(), nn.Linear(9, 3)).double()
    assert not is_linear_map(model[0])
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(5, 2, 4, generator=generator, dtype=torch.float64)
    problem = Problem(model, nn.CrossEntropyLoss(), (inputs, torch.arange(5) % 3))
    found = measure(problem, ["mls", "layer_mls"])
    assert found["layer_mls"].estimate.labels == ("0.inner", "2")
    assert float(found["mls"]) > 0


def test_kinds_of_the_conv1d_of_hugging_face_are_linear_maps():
    foreign = pytest.importorskip("transformers.pytorch_utils").Conv1D

    class Narrow(foreign):
        pass

    assert is_linear_map(foreign(3, 2))
    assert is_linear_map(Narrow(3, 2))
