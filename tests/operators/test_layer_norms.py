"""The matrix of a layer, against columns taken one unit vector at a time."""

import pytest
import torch
from torch import nn

from reference.agreement import assert_close
from spherometer import Problem, eigenvalues
from spherometer.operators.features import features
from spherometer.operators.layer_norms import UnrolledGram, linear_part
from spherometer.operators.trial import try_out

LAYERS = [
    (nn.Linear(4, 3), (4,)),
    (nn.Linear(4, 3), (5, 4)),
    (nn.Conv1d(2, 3, 3, stride=2, padding=1), (2, 7)),
    (nn.Conv2d(2, 3, 3, padding=1), (2, 4, 5)),
    (nn.Conv2d(2, 4, (2, 3), stride=(1, 2), dilation=(2, 1), groups=2), (2, 6, 5)),
    (nn.Conv2d(2, 2, 3, padding="same"), (2, 4, 4)),
    (nn.Conv2d(2, 2, 3, padding=1, padding_mode="circular"), (2, 4, 4)),
    (nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect"), (2, 4, 4)),
    (nn.Conv3d(1, 2, 2, stride=(1, 1, 2)), (1, 3, 3, 4)),
    (nn.ConvTranspose1d(2, 3, 3, stride=2, output_padding=1), (2, 4)),
    (nn.ConvTranspose2d(4, 6, 2, groups=2, dilation=2), (4, 3, 2)),
    (nn.ConvTranspose3d(1, 2, 2, padding=1), (1, 3, 3, 3)),
]


def dense_matrix(layer, shape):
    """Column j is the layer's answer to the unit vector e_j, less its answer to nothing."""
    size = torch.Size(shape).numel()
    with torch.no_grad():
        answers = layer(torch.eye(size, dtype=torch.float64).reshape(size, *shape))
        nothing = layer(torch.zeros(1, *shape, dtype=torch.float64))
    return (answers - nothing).flatten(1).T


@pytest.mark.parametrize(("layer", "shape"), LAYERS, ids=lambda part: type(part).__name__)
def test_gram_and_norm_of_the_unrolled_layer(layer, shape):
    layer = layer.double()
    matrix = dense_matrix(layer, shape)
    gram = UnrolledGram(layer, layer.weight, shape)
    assert_close(gram.dense(), matrix.T @ matrix)
    found = eigenvalues(gram, rtol=1e-6)
    truth = float(torch.linalg.matrix_norm(matrix, 2)) ** 2
    assert abs(float(found.value[0]) - truth) <= float(found.error[0]) + 1e-9 * truth


def test_the_linear_part_has_no_bias():
    layer = nn.Conv2d(1, 1, 2).double()
    assert (
        float(linear_part(layer, layer.weight.detach())(torch.zeros(1, 1, 3, 3, dtype=torch.float64)).abs().sum()) == 0
    )


def test_features_are_what_enters_each_layer_in_any_memory():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(inplace=True), nn.Linear(5, 3)).double()
    inputs = torch.randn(9, 4, dtype=torch.float64)
    for memory in (4e9, 100.0):
        problem = Problem(model, nn.CrossEntropyLoss(), (inputs, torch.zeros(9).long()), memory=memory)
        found = dict(features(problem, try_out(problem, problem.state())))
        assert list(found) == ["0", "2", "outputs"]
        assert_close(found["0"], inputs)
        assert_close(found["2"], model[0](inputs).relu().detach())
        assert_close(found["outputs"], model(inputs).detach())
