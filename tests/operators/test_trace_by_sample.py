"""Signs of its own for every sample: unbiased for each kind of layer, honest about its spread, and far better."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import spherometer as sm
from spherometer.estimators.matrices import SymmetricMatrix
from spherometer.estimators.randomness import child_stream

DOUBLE = torch.float64


class Tokens(nn.Module):
    """Linear maps at several places of a sample, a layer norm, and a way around."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 4)
        self.last = nn.Linear(4, 2)

    def forward(self, inputs):
        """(n, places, 3) -> (n, 2)."""
        hidden = torch.tanh(self.first(inputs))
        hidden = hidden + torch.nn.functional.gelu(self.second(self.norm(hidden)))
        return self.last(4 * hidden.mean(1))


def images(*layers):
    return nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(2)), (60, 2, 5, 5)


CASES = {
    "dense": (nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)), (60, 4)),
    "without bias": (nn.Sequential(nn.Linear(4, 5, bias=False), nn.Softplus(), nn.Linear(5, 2, bias=False)), (60, 4)),
    "tokens": (Tokens(), (60, 3, 3)),
    "convolution": images(nn.Conv2d(2, 4, 3, padding=1, stride=2), nn.Tanh()),
    "groups": images(nn.Conv2d(2, 4, 3, groups=2), nn.SiLU()),
    "batch norm": images(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Tanh()),
    "group norm": images(nn.Conv2d(2, 4, 2), nn.GroupNorm(2, 4), nn.Sigmoid()),
}


def problem_of(name: str, **options) -> sm.Problem:
    model, shape = CASES[name]
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(shape, generator=generator, dtype=DOUBLE)
    model = model.to(DOUBLE)
    model(inputs)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(0.3 * torch.randn(weight.shape, generator=generator, dtype=DOUBLE))
    targets = torch.randint(2, (len(inputs),), generator=generator)
    return sm.Problem(model, nn.CrossEntropyLoss(), (inputs, targets), **options)


def z_score(problem: sm.Problem, number: int = 200) -> float:
    """How many standard errors the mean of the samples is from the trace of the dense Hessian."""
    hessian = sm.Hessian(problem)
    assert hessian.knows_samples
    truth = float((hessian @ torch.eye(problem.num_parameters, dtype=DOUBLE)).trace())
    samples = SymmetricMatrix(hessian).trace_samples(number, child_stream(0, "test"))
    return (samples.mean() - truth) / (samples.std(ddof=1) / math.sqrt(number))


@pytest.mark.parametrize("name", CASES)
def test_samples_have_the_trace_as_their_mean(name):
    assert abs(z_score(problem_of(name))) < 3.5


@pytest.mark.parametrize("pattern", ["0.weight", "0.bias", "2.*"])
def test_a_block_has_its_own_trace(pattern):
    assert abs(z_score(problem_of("dense", parameters=pattern))) < 3.5


def test_the_score_notices_a_wrong_nudge(monkeypatch):
    from spherometer.operators import squares

    right = squares.MatrixLayer.nudge
    monkeypatch.setattr(squares.MatrixLayer, "nudge", lambda layer, signs: 1.1 * right(layer, signs))
    assert abs(z_score(problem_of("dense"))) > 3.5


def test_pieces_and_batches_count_by_their_terms():
    whole = problem_of("dense")
    inputs, targets = whole.data
    ragged = sm.Problem(whole.model, whole.loss, [(inputs[:40], targets[:40]), (inputs[40:], targets[40:])])
    assert abs(z_score(ragged)) < 3.5
    small = sm.Problem(whole.model, whole.loss, whole.data, memory=1.0)
    assert abs(z_score(small)) < 3.5


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(6, 2), nn.Tanh()),
        nn.Sequential(nn.ConvTranspose1d(2, 2, 2), nn.Tanh(), nn.Flatten(), nn.Linear(8, 2)),
    ],
)
def test_where_there_is_no_form_plain_probes_are_taken(model):
    model = model.to(DOUBLE)
    embeds = isinstance(model[0], nn.Embedding)
    inputs = torch.tensor([[0, 1], [2, 2], [4, 3]]) if embeds else torch.randn(3, 2, 3, dtype=DOUBLE)
    problem = sm.Problem(model, nn.CrossEntropyLoss(), (inputs, torch.tensor([0, 1, 0])))
    assert not sm.Hessian(problem).knows_samples
    assert float(sm.trace(sm.Hessian(problem)).value) == pytest.approx(
        float((sm.Hessian(problem) @ torch.eye(problem.num_parameters, dtype=DOUBLE)).trace())
    )


def test_samples_that_see_each_other_are_not_told_apart():
    assert not sm.Hessian(problem_of("batch norm", batchnorm="train")).knows_samples


def test_the_error_bar_is_honest_and_short():
    """Over fixed seeds the errors have the spread that is stated; and 2 % take few products."""
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4)).to(DOUBLE)
    inputs = torch.randn(200, 20, generator=generator, dtype=DOUBLE)
    targets = torch.randint(4, (200,), generator=generator)
    hessian = sm.Hessian(sm.Problem(model, nn.CrossEntropyLoss(), (inputs, targets)))
    truth = float((hessian @ torch.eye(hessian.shape[0], dtype=DOUBLE)).trace())
    found = [sm.trace(hessian, seed=seed) for seed in range(30)]
    scores = torch.tensor([(float(one.value) - truth) / float(one.error) for one in found])
    assert max(one.products for one in found) <= 120
    assert all(float(one.error) < 0.02 * abs(float(one.value)) for one in found)
    assert 0.6 < float(scores.square().mean().sqrt()) < 1.4
