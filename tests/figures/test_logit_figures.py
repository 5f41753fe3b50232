import pytest
import torch
from matplotlib.figure import Figure

from spherometer.figures.decomposition import draw_concentration, draw_factors, draw_histogram, draw_layers
from spherometer.figures.logits import draw_class_cosines, draw_impurity, draw_impurity_matrix, draw_secular_function
from spherometer.values import Estimate


@pytest.fixture
def axes():
    return Figure().subplots()


def rendered(axes):
    """Draws it for good: layout and text errors show up only then."""
    axes.figure.canvas.draw()
    return axes


def test_heat_map_shows_the_matrix_with_white_at_zero(axes):
    matrix = torch.tensor([[0.5, 0.1], [-0.4, 0.0]])
    draw_impurity_matrix(Estimate(matrix), axes)
    image = rendered(axes).images[0]
    assert torch.allclose(torch.as_tensor(image.get_array().data).float(), matrix)
    assert image.get_clim() == (-0.5, 0.5)


def test_undefined_classes_are_masked(axes):
    draw_class_cosines(torch.tensor([[1.0, torch.nan], [torch.nan, torch.nan]]), axes, ["cat", "dog"])
    array = rendered(axes).images[0].get_array()
    assert array.mask.tolist() == [[False, True], [True, True]]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["cat", "dog"]


def test_impurities_lie_between_the_drawn_bounds(axes):
    p = torch.randn(200, 5, generator=torch.Generator().manual_seed(0)).softmax(1)
    draw_impurity(p, axes)
    points = torch.as_tensor(rendered(axes).collections[-1].get_offsets().data)
    largest, impurity = points.T
    gini = 2 * largest * (1 - largest)
    assert bool((impurity <= gini.minimum(largest) + 1e-9).all())
    assert bool((impurity >= gini / 2 - 1e-9).all())


def test_secular_line_breaks_at_the_poles(axes):
    draw_secular_function(torch.tensor([0.5, 0.3, 0.2, 0.0]), axes)
    heights = torch.as_tensor(rendered(axes).lines[0].get_ydata())
    assert int(heights.isnan().sum()) == 3  # a zero probability makes no pole


def test_layers_and_factors(axes):
    shares = Estimate(torch.tensor([2.0, 1.0]), torch.tensor([0.1, 0.1]), labels=("first", "last"))
    draw_layers(shares, axes)
    assert [bar.get_width() for bar in rendered(axes).patches] == [2.0, 1.0]
    other = Figure().subplots()
    suffix = Estimate(torch.tensor([torch.nan, 1.0]), labels=("first", "last"))
    draw_factors(shares, Estimate(0.5), suffix, suffix, other)
    assert len(rendered(other).lines) == 4


def test_undefined_bars_say_so(axes):
    draw_concentration(Estimate(torch.tensor([0.9, torch.nan]), labels=("class 0 (n=3)", "class 1 (n=0)")), axes)
    assert [text.get_text() for text in rendered(axes).texts] == ["never predicted"]


def test_histogram_bars_stand_at_the_bins(axes):
    draw_histogram(Estimate(torch.tensor([0.25, 0.75]), labels=("0.25", "0.75")), axes, label="cos²")
    assert [bar.get_height() for bar in rendered(axes).patches] == [0.25, 0.75]
