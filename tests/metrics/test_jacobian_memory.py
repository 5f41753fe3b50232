"""Memory of a large measurement, seen by the operating system from a process of its own."""

import subprocess
import sys

import pytest

PROGRAM = """
import resource
import torch
from torch import nn
import spherometer as sm
from spherometer.zoo import build_model

torch.manual_seed(0)
model = build_model("vgg11", num_classes=10, input_shape=(3, 32, 32), seed=0)
problem = sm.Problem(model, nn.CrossEntropyLoss(), (torch.randn({num}, 3, 32, 32), torch.randint(10, ({num},))))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
sm.measure(problem, {names})
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, before * 1024)
"""


def peak_bytes(num: int, names: list[str]) -> int:
    program = PROGRAM.format(num=num, names=names)
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return int(answer.stdout.split()[0])


@pytest.mark.slow
def test_nmls_of_vgg11_on_a_thousand_samples_fits_in_four_gigabytes():
    assert peak_bytes(1000, ["nmls", "mls", "log_volume"]) < 4e9


@pytest.mark.slow
def test_bounds_of_vgg11_fit_too():
    assert peak_bytes(100, ["nmls_bound", "mls_chain"]) < 4e9
