"""The loop against a bare one, its seeds, its ghost batches, its stops, and its going on after an interruption."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from torch import nn

from spherometer.problems import HalfSquaredError, NonFiniteError
from spherometer.training import (
    PGD,
    AccuracyReached,
    AdversarialTraining,
    CropAndFlip,
    IterateAverage,
    LossBelow,
    MeanJacobianPenalty,
    Mixup,
    Penalised,
    Plain,
    Training,
    evaluate,
    load_checkpoint,
    save_checkpoint,
)
from spherometer.training.optim import ASAM, EJR, SAM, EJRv2, logits
from spherometer.training.schedules import cosine, multi_step
from spherometer.zoo import build_model, load_data

LOSS = nn.CrossEntropyLoss()
DATA = load_data("digits", num=100).tensors


class Small(nn.Module):
    """Batch norm, dropout and convolutions in one small model."""

    def __init__(self, seed=0):
        super().__init__()
        self.inner = build_model("digits-cnn", width=3, batchnorm=True, seed=seed)
        self.dropout = nn.Dropout(0.2)

    def forward(self, inputs):
        return self.inner(self.dropout(inputs))


def sgd(model, lr=0.1):
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=1e-3)


def plain_training(model=None, **options):
    model = build_model("digits-mlp", width=8, seed=1) if model is None else model
    return Training(model, sgd(model), DATA, Plain(LOSS), **options)


def weights(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def assert_same(one, other):
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), name


def test_it_is_the_bare_loop():
    training = plain_training(batch_size=32)
    twin = build_model("digits-mlp", width=8, seed=1)
    optimizer, losses, seen = sgd(twin), [], []
    from spherometer.estimators.randomness import child_stream

    for epoch in range(2):
        order = torch.randperm(100, generator=child_stream(0, f"epoch {epoch}"))
        for chosen in order.split(32):
            optimizer.zero_grad()
            loss = LOSS(twin(DATA[0][chosen]), DATA[1][chosen])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            seen.append(len(chosen))
    steps = list(training.run(8))
    assert seen == [32, 32, 32, 4] * 2
    assert [step.loss for step in steps] == losses
    assert [step.number for step in steps] == list(range(1, 9))
    assert training.steps_per_epoch == 4
    assert_same(weights(training.model), weights(twin))


def test_full_batch_descent_and_its_ghost_batches_are_the_same():
    """T45: without batch norm the mean over ghost batches, by size, is the whole gradient."""
    runs = []
    for ghost_size in (None, 100, 30):
        model = build_model("digits-mlp", width=8, seed=1).double()
        data = DATA[0].double(), DATA[1]
        training = Training(model, sgd(model), data, Plain(LOSS), ghost_size=ghost_size)
        runs.append(([step.loss for step in training.run(5)], weights(model)))
    for losses, found in runs[1:]:
        assert losses == pytest.approx(runs[0][0], rel=1e-12)
        for name, value in found.items():
            torch.testing.assert_close(value, runs[0][1][name], rtol=1e-11, atol=1e-13)


def test_ghost_batches_and_a_penalty_on_the_square_of_a_mean():
    runs = []
    for ghost_size in (None, 30):
        model = build_model("digits-mlp", width=8, seed=1).double()
        penalty = MeanJacobianPenalty(0.1, generator=torch.Generator().manual_seed(0))
        data = DATA[0].double(), DATA[1]
        training = Training(model, sgd(model), data, Penalised(LOSS, [penalty]), ghost_size=ghost_size)
        runs.append([step.loss for step in training.run(4)])
    assert runs[1] == pytest.approx(runs[0], rel=1e-9)


def test_batch_norm_sees_ghost_batches():
    whole, ghosts = (plain_training(Small(), ghost_size=size) for size in (None, 25))
    for training in (whole, ghosts):
        list(training.run(1))
    assert int(whole.model.inner[1].num_batches_tracked) == 1
    assert int(ghosts.model.inner[1].num_batches_tracked) == 4


def test_the_seed_decides_and_the_global_state_stays():
    state = torch.random.get_rng_state()
    runs = {}
    for name, seed in (("one", 0), ("same", 0), ("other", 1)):
        torch.manual_seed(hash(name) % 1000)
        training = plain_training(Small(), batch_size=20, transforms=[CropAndFlip(padding=1)], seed=seed)
        before = torch.random.get_rng_state()
        runs[name] = [step.loss for step in training.run(6)]
        assert torch.equal(torch.random.get_rng_state(), before)
    assert runs["one"] == runs["same"]
    assert runs["one"] != runs["other"]
    torch.random.set_rng_state(state)


def test_the_global_state_stays_where_a_step_fails():
    def fail(outputs, targets):
        raise RuntimeError(f"stop after {torch.rand(())}")

    model, before = Small(), torch.random.get_rng_state()
    with pytest.raises(RuntimeError, match="stop"):
        Training(model, sgd(model), DATA, Plain(fail)).step()
    assert torch.equal(torch.random.get_rng_state(), before)


def test_gradients_from_before_the_step_are_forgotten():
    fresh, stained = plain_training(), plain_training()
    for weight in stained.model.parameters():
        weight.grad = torch.ones_like(weight)
    for training in (fresh, stained):
        list(training.run(2))
    assert_same(weights(fresh.model), weights(stained.model))


@pytest.mark.parametrize(("kind", "num_gradients"), [(SAM, 2), (EJR, 1), (EJRv2, 1)])
def test_the_loss_is_differentiated_only_where_its_gradient_is_wanted(kind, num_gradients):
    """The way up of EJR is that of the logits; without the loss's gradient there its step is that of a full closure."""
    gradients = []

    def loss(outputs, targets):
        value = LOSS(outputs, targets)
        value.register_hook(gradients.append)
        return value

    model, twin = (build_model("digits-mlp", width=8, seed=1) for _ in range(2))
    ours, theirs = (kind(each.parameters(), torch.optim.SGD, rho=0.1, lr=0.1) for each in (model, twin))
    list(Training(model, ours, DATA, Plain(loss)).run(1))
    assert len(gradients) == num_gradients

    def closure():
        theirs.zero_grad()
        value = LOSS(logits(twin(DATA[0])), DATA[1])
        value.backward()
        return value

    theirs.step(closure)
    assert_same(weights(model), weights(twin))


def test_dropout_masks_change_from_step_to_step_and_not_between_the_passes_of_a_step():
    model, masks = Small(), []
    model.dropout.register_forward_hook(lambda m, i, o: masks.append((o == 0) & (i[0] != 0)))
    optimizer = SAM(model.parameters(), torch.optim.SGD, rho=0.05, lr=0.1, model=model)
    list(Training(model, optimizer, DATA, Plain(LOSS)).run(2))
    assert torch.equal(masks[0], masks[1])
    assert not torch.equal(masks[1], masks[2])


def test_the_schedule_is_one_of_epochs():
    training = plain_training(batch_size=50, schedule=multi_step([1, 3], 0.1))
    rates = [step.learning_rate for step in training.run(8)]
    assert rates == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.01, 0.01, 0.001, 0.001])


def test_transforms_are_applied_in_order():
    seen = []

    def halve(inputs, targets, generator):
        seen.append(float(inputs.max()))
        return inputs / 2, targets

    list(plain_training(transforms=[halve, halve]).run(1))
    assert seen == [1.0, 0.5]
    mixed = Training(
        build_model("digits-mlp", width=8), sgd(model := build_model("digits-mlp", width=8)), DATA, Plain(LOSS), 20,
        transforms=[Mixup(1.0, num_classes=10)],
    )  # fmt: skip
    del model
    assert len(list(mixed.run(3))) == 3


def test_divergence_is_told_with_its_step_and_the_rate():
    model = nn.Linear(1, 1)
    data = torch.full((2, 1), 1e10), torch.zeros(2, 1)
    training = Training(model, torch.optim.SGD(model.parameters(), lr=1e10), data, Plain(HalfSquaredError()))
    with pytest.raises(NonFiniteError, match=r"training diverged at step \d+: the loss is .*; lower the learning rate"):
        list(training.run(20))


def test_weights_that_are_not_finite_are_not_saved(tmp_path):
    training = plain_training()
    with torch.no_grad():
        next(training.model.parameters()).fill_(float("nan"))
    with pytest.raises(NonFiniteError, match=r"1.weight is not finite"):
        save_checkpoint(training, tmp_path)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"batch_size": 0}, "expected batch_size of at least 1, got 0"),
        ({"ghost_size": -2}, "expected ghost_size of at least 1, got -2"),
    ],
)
def test_impossible_options(options, match):
    with pytest.raises(ValueError, match=match):
        plain_training(**options)
    with pytest.raises(ValueError, match="num_steps of at least 0"):
        list(plain_training().run(-1))
    model = nn.Linear(1, 1)
    with pytest.raises(ValueError, match="expected one target per input, got 3 inputs and 2 targets"):
        Training(model, sgd(model), (torch.zeros(3, 1), torch.zeros(2, 1)), Plain(LOSS))


# Stop rules


def test_the_loss_rule_by_hand():
    rule = LossBelow(0.5, lambda outputs, targets: outputs.mean(), every=10, window=3)
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    answers = []
    for number in range(0, 61, 5):
        level = {10: 2.0, 20: 1.2, 30: 0.2, 40: 0.2, 50: 0.2}.get(number, 0.0)
        answers.append(rule(number, model, (torch.full((4, 1), level), torch.zeros(4, dtype=torch.long))))
    assert answers.index(True) == 50 // 5  # (1.2 + .2 + .2)/3 is above, (.2 + .2 + .2)/3 below
    assert rule.recent == pytest.approx([0.2, 0.2, 0.0])


def test_training_stops_at_an_accuracy():
    training = plain_training(stop=AccuracyReached(0.9, every=5))
    steps = list(training.run(500))
    assert len(steps) % 5 == 0
    assert len(steps) < 500
    assert evaluate(training.model, DATA, LOSS).accuracy >= 0.9
    assert list(training.run(500)) == []  # it stays so


def test_a_stopped_training_stays_so_however_often_it_is_resumed(tmp_path):
    """Asked twice at its last step, the rule would count the loss there twice: (2 + 0.2)/2 < 1.5 < (2 + 2)/2."""
    levels = iter([3.0, 0.2, 2.0, 2.0, 2.0])

    def stopping():
        return plain_training(stop=LossBelow(1.5, lambda outputs, targets: outputs.new_tensor(next(levels)), 1, 2))

    first = stopping()
    assert len(list(first.run(50))) == 3
    assert list(first.run(50)) == []
    save_checkpoint(first, tmp_path)
    second = stopping()
    load_checkpoint(second, tmp_path)
    assert list(second.run(50)) == []
    assert second.stop.recent == pytest.approx([0.2, 2.0])


def test_a_checkpoint_of_before_the_rule_was_asked_asks_it(tmp_path):
    first, second = (plain_training(stop=LossBelow(1e-9, LOSS, every=2, window=3)) for _ in range(2))
    for step in first.run(8):
        if step.number == 4:
            save_checkpoint(first, tmp_path)
    load_checkpoint(second, tmp_path)
    list(second.run(8))
    assert second.stop.recent == first.stop.recent
    assert len(first.stop.recent) == 3


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: LossBelow(0.0, LOSS), "positive threshold"),
        (lambda: LossBelow(0.1, LOSS, window=0), "window of at least 1"),
        (lambda: AccuracyReached(1.5), "accuracy above 0 and up to 1"),
        (lambda: AccuracyReached(0.5, every=0), "every of at least 1"),
    ],
)
def test_impossible_rules(make, match):
    with pytest.raises(ValueError, match=match):
        make()


def test_an_accuracy_needs_classes():
    rule = AccuracyReached(0.5, every=1)
    with pytest.raises(ValueError, match="use LossBelow"):
        rule(1, nn.Linear(1, 1), (torch.zeros(2, 1), torch.zeros(2, 1)))


def test_evaluation_leaves_no_trace():
    model = Small()
    model.train()
    before = weights(model)
    first, second = evaluate(model, DATA, LOSS, batch_size=7), evaluate(model, DATA, LOSS)
    assert first.loss == pytest.approx(second.loss, rel=1e-6)
    assert first.accuracy == second.accuracy
    assert model.training
    assert_same(before, weights(model))
    values = evaluate(nn.Linear(1, 1), (torch.zeros(3, 1), torch.zeros(3, 1)), nn.MSELoss())
    assert values.accuracy is None


def test_accuracy_is_a_share_of_all_answers_that_count():
    model = nn.Identity()
    model.register_parameter("unused", nn.Parameter(torch.zeros(1)))
    outputs = torch.eye(3)[[0, 1, 2, 0, 1, 2]].reshape(2, 3, 3).movedim(2, 1)  # (sample, class, place)
    targets = torch.tensor([[0, 1, 0], [-100, 1, 2]])
    assert evaluate(model, (outputs, targets), LOSS).accuracy == pytest.approx(4 / 5)
    ignoring = nn.CrossEntropyLoss(ignore_index=1)
    assert evaluate(model, (outputs, targets.clamp_min(0)), ignoring, batch_size=1).accuracy == pytest.approx(3 / 4)


# Checkpoints


def two_pass(kind):
    return lambda model: kind(model.parameters(), torch.optim.SGD, rho=0.1, lr=0.05, momentum=0.9, model=model)


METHODS = {
    "sgd": sgd,
    "adamw": lambda model: torch.optim.AdamW(model.parameters(), lr=0.01),
    "sam": two_pass(SAM),
    "asam": two_pass(ASAM),
    "ejr": two_pass(EJR),
    "ejr v2": two_pass(EJRv2),
}


def whole_training(method, objective="plain"):
    model, generator = Small(), torch.Generator().manual_seed(7)
    objectives = {
        "plain": Plain(LOSS),
        "penalised": Penalised(LOSS, [MeanJacobianPenalty(0.01, generator=generator)]),
        "adversarial": AdversarialTraining(PGD(0.1, num_steps=2), generator),
    }
    return Training(
        model,
        METHODS[method](model),
        DATA,
        objectives[objective],
        batch_size=30,
        ghost_size=20,
        transforms=[] if objective == "adversarial" else [CropAndFlip(padding=1), Mixup(0.5, num_classes=10)],
        schedule=cosine(4),
        average=IterateAverage(model, start=1),
        stop=LossBelow(1e-9, LOSS, every=3, window=2),
        generators=[generator],
        seed=5,
    )


@pytest.mark.parametrize(("method", "objective"), [(m, "plain") for m in METHODS] + [
    ("sgd", "penalised"), ("sgd", "adversarial"), ("ejr", "adversarial")])  # fmt: skip
def test_going_on_gives_the_numbers_of_an_undisturbed_run(tmp_path, method, objective):
    whole = whole_training(method, objective)
    expected = list(whole.run(11))
    first = whole_training(method, objective)
    found = []
    for step in first.run(11):
        found.append(step)
        if step.number == 6:  # in the middle of the second epoch
            save_checkpoint(first, tmp_path)
        if step.number == 8:
            break
    second = whole_training(method, objective)
    assert load_checkpoint(second, tmp_path) is not None
    found = found[:6] + list(second.run(11))
    assert found == expected
    assert_same(weights(whole.model), weights(second.model))
    assert_same(whole.average.state_dict(), second.average.state_dict())
    assert whole.stop.recent == second.stop.recent


def test_only_the_last_checkpoint_is_kept_and_none_is_half_written(tmp_path):
    training = plain_training(batch_size=50)
    assert load_checkpoint(training, tmp_path) is None
    for step in training.run(3):
        save_checkpoint(training, tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == [f"step-{step.number:09d}"]
    save_checkpoint(training, tmp_path)  # the same step once more
    assert {path.name for path in next(tmp_path.iterdir()).iterdir()} == {"weights.safetensors", "state.pt"}
    (tmp_path / ".step-000000099.1").mkdir()  # what a killed process leaves
    again = plain_training(batch_size=50)
    assert load_checkpoint(again, tmp_path) is not None
    assert again.number == 3
    save_checkpoint(again, tmp_path)
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("calls", range(4))
def test_saving_a_step_again_never_leaves_the_folder_without_a_checkpoint(tmp_path, monkeypatch, calls):
    """Killed before each of the moves and removals in turn."""
    training = plain_training(batch_size=50)
    list(training.run(3))
    save_checkpoint(training, tmp_path, {"which": "old"})
    left = iter(range(calls))

    def mortal(work):
        def working(source, *given, **options):
            if Path(source).parent == tmp_path and next(left, None) is None:
                raise KeyboardInterrupt
            return work(source, *given, **options)

        return working

    for module, name in ((os, "replace"), (shutil, "rmtree")):
        monkeypatch.setattr(module, name, mortal(getattr(module, name)))
    killed = False
    try:
        save_checkpoint(training, tmp_path, {"which": "new"})
    except KeyboardInterrupt:
        killed = True
    monkeypatch.undo()
    assert killed == (calls < 3)
    assert load_checkpoint(plain_training(batch_size=50), tmp_path) == {"which": "old" if calls < 2 else "new"}
    save_checkpoint(training, tmp_path, {"which": "last"})
    assert load_checkpoint(plain_training(batch_size=50), tmp_path) == {"which": "last"}
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000003"]


def test_a_damaged_or_foreign_checkpoint_is_refused(tmp_path):
    from spherometer.records import RecordError

    training = plain_training()
    path = save_checkpoint(training, tmp_path)
    (path / "state.pt").write_bytes(b"not a checkpoint")
    with pytest.raises(RecordError, match=r"state.pt: cannot be read"):
        load_checkpoint(training, tmp_path)
    torch.save({"number": subprocess.run}, path / "state.pt")
    with pytest.raises(RecordError, match=r"state.pt: cannot be read"):
        load_checkpoint(training, tmp_path)


def test_the_bar_is_silent_without_a_terminal(capsys):
    from spherometer.training.progress import watched

    assert len(list(watched(plain_training(), 3))) == 3
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""
