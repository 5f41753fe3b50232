"""Pictures of Jacobians show the numbers they were given, and say what is violated or not drawn."""

import math

import pytest
import torch

from spherometer.figures.sensitivity import draw_bounds, draw_profile, draw_spectra
from spherometer.values import Estimate


@pytest.fixture
def axes():
    from matplotlib.figure import Figure

    figure = Figure()
    yield figure.subplots()
    figure.draw_without_rendering()  # whatever was drawn can be drawn


def texts(axes):
    return [text.get_text() for text in axes.texts]


def test_spectra_of_samples(axes):
    spectra = torch.tensor([[3.0, 2.0, 0.0], [5.0, 1.0, 1e-9], [4.0, 2.0, 1.0]])
    draw_spectra(spectra, axes)
    *samples, median = axes.lines
    assert len(samples) == 3
    assert median.get_ydata()[:2].tolist() == [4.0, 2.0]
    assert math.isnan(samples[1].get_ydata()[2])  # rounding is no singular value
    assert axes.get_yscale() == "log"


def test_mean_spectrum_with_errors(axes):
    draw_spectra(Estimate(torch.tensor([3.0, 1.0]), torch.tensor([0.1, math.inf]), labels=("σ1", "σ2")), axes)
    assert axes.lines[0].get_ydata().tolist() == [3.0, 1.0]


def test_bounds(axes):
    labels = ("left", "right", "ratio", "violations")
    held = Estimate(torch.tensor([1.0, 1e6, 1e-6, 0.0]), labels=labels)
    broken = Estimate(torch.tensor([10.0, 1.0, 10.0, 2.0]), labels=labels)
    logs = Estimate(
        torch.tensor([-math.inf, math.log(100), -math.inf, 0]),
        labels=("log left", "log right", "log ratio", "violations"),
    )
    draw_bounds({"held": held, "broken": broken, "volumes": logs}, axes)
    lines = [line.get_xdata() for line in axes.lines]
    assert lines[0] == pytest.approx([0, 6])
    assert lines[1] == pytest.approx([1, 0])
    assert lines[2] == pytest.approx([2])
    assert sum("violated" in text for text in texts(axes)) == 1
    assert [label.get_text() for label in axes.get_yticklabels()] == ["held", "broken", "volumes"]


def test_near_sides_share_a_label(axes):
    chain = Estimate(torch.tensor([1.0, 1.1, 1e8, 0.0]), labels=("A", "B", "C", "violations"))
    draw_bounds({"chain": chain}, axes)
    assert texts(axes) == ["A, B", "C"]


def test_profiles(axes):
    first = Estimate(torch.tensor([1.0, 2.0, -math.inf]), 0.1, labels=("a", "b", "c"))
    second = Estimate(torch.tensor([3.0, 2.0, 1.0]), labels=("a", "b", "c"))
    draw_profile({"one": first, "two": second}, axes, label="MLS")
    assert [label.get_text() for label in axes.get_xticklabels()] == ["a", "b", "c"]
    assert math.isnan(axes.lines[0].get_ydata()[2])
    assert axes.get_ylabel() == "MLS"
