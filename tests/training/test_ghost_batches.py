"""A step in pieces is the step of the whole batch: penalties, two passes, adversaries, class weights, dropout."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional

from reference.agreement import assert_close
from spherometer.problems import Problem
from spherometer.training import (
    PGD,
    AdversarialTraining,
    FisherPenalty,
    GradientNormPenalty,
    InputJacobianPenalty,
    MeanJacobianPenalty,
    Penalised,
    Plain,
    Trades,
    Training,
    evaluate,
    optim,
)

LOSS = nn.CrossEntropyLoss()
WEIGHTED = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0, 0.2]).double())
IGNORING = nn.CrossEntropyLoss(ignore_index=2)
INPUTS = torch.rand(12, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
TARGETS = torch.tensor([2, 2, 2, 2, 2, 0, 1, 0, 1, 1, 2, 0])  # all of the first ghost batch may be ignored
DATA = INPUTS, TARGETS
OTHER = INPUTS, torch.tensor([0, 1, 2, 1, 0, 0, 1, 2, 1, 1, 2, 0])


def network(dropout=0.0):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Dropout(dropout), nn.Linear(7, 3)).double()


def seeded():
    return torch.Generator().manual_seed(0)


def one_step(objective, ghost_size, *, optimizer="SGD", dropout=0.0, data=DATA):
    """Loss and weights of one step."""
    model = network(dropout)
    if optimizer == "SGD":
        chosen = torch.optim.SGD(model.parameters(), lr=0.1)
    else:
        chosen = getattr(optim, optimizer)(model.parameters(), torch.optim.SGD, rho=0.5, model=model, lr=0.1)
    (step,) = Training(model, chosen, data, objective, ghost_size=ghost_size).run(1)
    moved = torch.cat([weight.detach().flatten() for weight in model.parameters()])
    return torch.tensor(step.loss, dtype=torch.float64), moved


def assert_same_step(make, **options):
    for found, expected in zip(one_step(make(), 5, **options), one_step(make(), None, **options), strict=True):
        assert_close(found, expected)


PENALTIES = {
    "gradient norm": lambda: GradientNormPenalty(1.0, loss=LOSS),
    "mean Jacobian": lambda: MeanJacobianPenalty(1.0, generator=seeded()),
    "Fisher": lambda: FisherPenalty(1.0, generator=seeded()),
    "input Jacobian, norm": lambda: InputJacobianPenalty(1.0, generator=seeded(), squared=False),
}


@pytest.mark.parametrize("optimizer", ["SAM", "ASAM", "EJR", "EJRv2"])
@pytest.mark.parametrize("name", PENALTIES)
def test_both_passes_of_a_step_look_at_all_pieces(name, optimizer):
    """The gradient at θ̂ is that of the penalty there, not of its expansion at θ."""
    assert_same_step(lambda: Penalised(LOSS, [PENALTIES[name]()]), optimizer=optimizer)


@pytest.mark.parametrize("squared", [True, False])
def test_the_graphs_of_ghost_batches_do_not_pile_up(squared):
    model, kept, alive = network(), [], []

    def count(*passed):
        kept.append(weakref.ref(passed[-1]))
        alive.append(sum(reference() is not None for reference in kept))

    model.register_forward_hook(count)
    penalty = InputJacobianPenalty(1.0, generator=seeded(), squared=squared)
    terms = penalty.over(model, list(zip(INPUTS.split(2), TARGETS.split(2), strict=True)))
    assert len(terms) == 6
    assert len(alive) == (1 if squared else 6)
    assert max(alive) <= 3


def test_penalties_see_the_dropout_masks_of_the_step():
    (loss, moved), (twice_loss, twice_moved) = (
        one_step(Penalised(LOSS, [GradientNormPenalty(strength, loss=LOSS)] * num), 5, dropout=0.5)
        for strength, num in ((2.0, 1), (1.0, 2))
    )
    assert_close(twice_loss, loss)
    assert_close(twice_moved, moved)


@pytest.mark.parametrize("loss", [WEIGHTED, IGNORING], ids=["class weights", "ignored targets"])
@pytest.mark.parametrize("optimizer", ["SGD", "SAM", "EJR"])
def test_pieces_count_by_the_terms_of_the_loss(loss, optimizer):
    assert_same_step(lambda: Plain(loss), optimizer=optimizer)
    assert_same_step(
        lambda: Penalised(loss, [GradientNormPenalty(1.0, loss=loss), MeanJacobianPenalty(1.0, generator=seeded())]),
        optimizer=optimizer,
    )


@pytest.mark.parametrize("make", [AdversarialTraining, Trades])
def test_pieces_of_an_adversarial_batch_count_by_the_terms_of_the_loss(make):
    """In a ball so small that it does not matter where the attack begins."""
    attack = PGD(1e-9, num_steps=1)
    whole, pieces = (one_step(make(attack, seeded(), loss=WEIGHTED), size, data=OTHER) for size in (None, 5))
    for found, expected in zip(pieces, whole, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)


def test_a_plain_function_that_ignores_targets_is_not_guessed_at():
    def ignoring(outputs, targets):
        return functional.cross_entropy(outputs, targets, ignore_index=-100)

    data = INPUTS, torch.where(TARGETS == 2, -100, TARGETS)
    assert one_step(Plain(ignoring), None, data=data)[0] > 0
    with pytest.raises(ValueError, match="does not say how many terms"):
        one_step(Plain(ignoring), 5, data=data)


@pytest.mark.parametrize("loss", [WEIGHTED, IGNORING], ids=["class weights", "ignored targets"])
def test_evaluation_in_batches_is_that_of_the_whole(loss):
    model = network()
    whole = Problem(model, loss, DATA).loss_at()
    assert evaluate(model, DATA, loss, batch_size=5).loss == pytest.approx(whole, rel=1e-12)
    assert evaluate(model, DATA, loss).loss == pytest.approx(whole, rel=1e-12)
