"""Memory of a large measurement, seen by the operating system from a process of its own."""

import pytest

from peak_memory import needs_peaks, printed_by

PROGRAM = """
import torch
from torch import nn
import spherometer as sm
from spherometer.zoo import build_model

torch.manual_seed(0)
model = build_model("vgg11", num_classes=10, input_shape=(3, 32, 32), seed=0)
problem = sm.Problem(model, nn.CrossEntropyLoss(), (torch.randn({num}, 3, 32, 32), torch.randint(10, ({num},))))
sm.measure(problem, {names})
print(peak())
"""


@pytest.mark.slow
@needs_peaks
@pytest.mark.parametrize(("num", "names"), [(1000, ["nmls", "mls", "log_volume"]), (100, ["nmls_bound", "mls_chain"])])
def test_measurements_of_vgg11_fit_in_four_gigabytes(num, names):
    (peak,) = printed_by(PROGRAM.format(num=num, names=names))
    assert peak < 4e9
