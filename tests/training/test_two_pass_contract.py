"""What the optimisers promise: schedulers, checkpoints, mixed precision, statistics, zero gradients, errors."""

import copy
import io
from functools import partial

import pytest
import torch
from optimiser_cases import KINDS, RADII, batch, closure_of, flat, gradient_by_hand, network
from torch import nn
from torch.nn import functional
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

import spherometer as sm
from reference.agreement import assert_close
from spherometer.training import FisherPenalty, Mixup
from spherometer.training.optim.two_pass import Ascent

every_kind = pytest.mark.parametrize("kind", KINDS)


def make(kind, network_, base=torch.optim.SGD, /, **options):
    return KINDS[kind](network_.parameters(), base, **{"rho": RADII[kind], "lr": 0.1} | options)


@every_kind
def test_it_is_an_optimiser_of_torch(kind):
    optimizer = make(kind, network(), momentum=0.9)
    assert isinstance(optimizer, torch.optim.Optimizer)
    assert optimizer.param_groups is optimizer.base.param_groups
    assert (optimizer.param_groups[0]["rho"], optimizer.param_groups[0]["momentum"]) == (RADII[kind], 0.9)
    assert kind in repr(optimizer)


@every_kind
def test_schedulers_change_the_rate_of_the_base(kind):
    model, data = network(), batch()
    optimizer = make(kind, model)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    optimizer.step(closure_of(optimizer, model, [data]))
    schedule.step()
    expected = flat(model.parameters())
    if kind == "SAM":
        expected = expected - 0.05 * gradient_by_hand(kind, model, data, rho=RADII[kind])
    optimizer.step(closure_of(optimizer, model, [data]))
    assert optimizer.base.param_groups[0]["lr"] == 0.05
    if kind == "SAM":
        assert_close(flat(model.parameters()), expected)


@every_kind
@pytest.mark.parametrize("base", [partial(torch.optim.SGD, momentum=0.9), torch.optim.Adam])
def test_a_checkpoint_continues_as_if_nothing_had_happened(kind, base):
    data = batch()

    def steps(model, optimizer, num):
        for _ in range(num):
            optimizer.step(closure_of(optimizer, model, [data]))

    model = network()
    optimizer = make(kind, model, base)
    steps(model, optimizer, 3)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    steps(model, optimizer, 3)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    resumed = network(seed=5)
    resumed.load_state_dict(saved["model"])
    fresh = make(kind, resumed, base, rho=9.0, lr=7.0)
    fresh.load_state_dict(saved["optimizer"])
    assert fresh.param_groups[0]["rho"] == RADII[kind]
    steps(resumed, fresh, 3)
    assert torch.equal(flat(resumed.parameters()), flat(model.parameters()))
    fresh.param_groups[0]["lr"] = 0.0
    assert fresh.base.param_groups[0]["lr"] == 0.0


def test_the_checkpoint_of_a_bare_optimiser_will_do():
    model, data = network(), batch()
    plain = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    plain.step(closure_of(plain, model, [data]))
    optimizer = sm.optim.SAM(model.parameters(), torch.optim.SGD, rho=0.2, lr=0.1, momentum=0.9)
    optimizer.load_state_dict(plain.state_dict())
    assert (optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["rho"]) == (0.3, 0.2)
    optimizer.step(closure_of(optimizer, model, [data]))


@every_kind
def test_copies_are_whole(kind):
    model, data = network(), batch()
    optimizer = make(kind, model, model=model)
    both = copy.deepcopy({"model": model, "optimizer": optimizer})
    for entry in ({"model": model, "optimizer": optimizer}, both):
        entry["optimizer"].step(closure_of(entry["optimizer"], entry["model"], [data]))
    assert torch.equal(flat(model.parameters()), flat(both["model"].parameters()))
    assert both["optimizer"].param_groups is both["optimizer"].base.param_groups


def test_groups_may_be_added_later():
    model, data = network(), batch()
    optimizer = sm.optim.SAM(model[0].parameters(), torch.optim.SGD, rho=0.2, lr=0.1)
    optimizer.add_param_group({"params": model[2].parameters(), "lr": 0.0, "rho": 0.4})
    assert [group["rho"] for group in optimizer.base.param_groups] == [0.2, 0.4]
    before = flat(model[2].parameters())
    optimizer.step(closure_of(optimizer, model, [data]))
    assert torch.equal(flat(model[2].parameters()), before)


@every_kind
@pytest.mark.parametrize("momentum", [0.1, None])
def test_running_statistics_see_each_batch_once(kind, momentum):
    model, data = network(batchnorm=True), batch()
    model[1].momentum = momentum
    twin = copy.deepcopy(model)
    twin(data[0])
    optimizer = make(kind, model, model=model)
    optimizer.step(closure_of(optimizer, model, [data]))
    for (name, ours), (_, theirs) in zip(model.named_buffers(), twin.named_buffers(), strict=True):
        assert torch.equal(ours, theirs), name


def test_without_the_model_statistics_are_updated_twice():
    model, data = network(batchnorm=True), batch()
    optimizer = make("SAM", model)
    optimizer.step(closure_of(optimizer, model, [data]))
    assert int(model[1].num_batches_tracked) == 2


def test_frozen_statistics_survive_replaced_and_broken_buffers():
    model = network(batchnorm=True)
    model.register_buffer("other", torch.ones(2))
    model.register_buffer("nothing", None)
    kept, before = model.other, copy.deepcopy(model.state_dict())

    @sm.optim.frozen_statistics(model)
    def fail():
        model(torch.full((3, 4), float("nan")).double())
        model.other = torch.zeros(2)
        model.nothing = torch.zeros(2)
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail()
    assert model.other is kept
    assert model.nothing is None
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_frozen_statistics_of_modules_in_several_places_and_in_none():
    norm = nn.BatchNorm1d(4)
    model = nn.Sequential(norm, nn.Linear(4, 4), norm).double()
    model.register_module("absent", None)
    before = copy.deepcopy(model.state_dict())
    with sm.optim.frozen_statistics(model):
        norm(batch()[0])
        assert int(norm.num_batches_tracked) == 1
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@every_kind
@pytest.mark.parametrize("size", [0.0, 1e-30, 1e-20])
def test_no_gradient_no_way_up(kind, size):
    """A zero gradient, and one whose square underflows, leave finite weights and take an ordinary step."""
    model, data = network(dtype=torch.float32), batch(dtype=torch.float32)
    optimizer = make(kind, model)
    before = flat(model.parameters())

    def closure():
        optimizer.zero_grad()
        loss = size * sm.optim.logits(size * model(data[0])).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert_close(flat(model.parameters()), before)


@pytest.mark.parametrize("norm", [0.0, 1e-45, float("inf"), float("nan")])
def test_a_norm_that_gives_no_length_moves_nothing(norm):
    class Odd(sm.optim.TwoPass):
        def _first_pass(self, closure, weights, scale):
            return Ascent(closure(), [torch.ones_like(weight) for weight in weights], torch.tensor(norm))

    model, data, seen = network(dtype=torch.float32), batch(dtype=torch.float32), []
    model.register_forward_pre_hook(lambda *_: seen.append(flat(model.parameters())))
    optimizer = Odd(model.parameters(), torch.optim.SGD, rho=0.3, model=model, lr=0.1)
    optimizer.step(closure_of(optimizer, model, [data]))
    assert torch.equal(seen[1], seen[0])


def test_parameters_without_gradient_stay():
    model, data = network(), batch()
    spare = nn.Parameter(torch.ones(2).double())
    frozen = nn.Parameter(torch.ones(2).double(), requires_grad=False)
    for kind in KINDS.values():
        optimizer = kind([*model.parameters(), spare, frozen], torch.optim.SGD, lr=0.1)
        optimizer.step(closure_of(optimizer, model, [data]))
        assert torch.equal(spare, torch.ones(2).double())
        assert torch.equal(frozen, torch.ones(2).double())


@every_kind
def test_weights_are_put_back_when_the_second_pass_fails(kind):
    model, data = network(), batch()
    before = flat(model.parameters())
    optimizer = make(kind, model, model=model)
    closure, calls = closure_of(optimizer, model, [data]), []

    def failing():
        calls.append(flat(model.parameters()))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return closure()

    with pytest.raises(KeyboardInterrupt):
        optimizer.step(failing)
    assert not torch.equal(calls[1], before)
    assert torch.equal(flat(model.parameters()), before)
    assert sm.optim.logits(data[0]) is data[0]


@every_kind
def test_a_scaler_changes_nothing_but_overflow(kind):
    """float32 gradients scaled by 2^12: the same step; infinite ones: no step and a smaller scale."""
    data = batch(dtype=torch.float32)
    model, twin = network(dtype=torch.float32), network(dtype=torch.float32)
    optimizer, plain = make(kind, model), make(kind, twin)
    scaler, factor = torch.amp.GradScaler("cpu", init_scale=2.0**12), 1.0

    def closure():
        optimizer.zero_grad()
        with torch.autocast("cpu", enabled=False):
            loss = functional.cross_entropy(sm.optim.logits(model(data[0])), data[1])
        scaler.scale(factor * loss).backward()
        return loss

    loss = optimizer.step(closure, scaler=scaler)
    scaler.update()
    expected = plain.step(closure_of(plain, twin, [data]))
    assert_close(loss.detach(), expected, 1e-6)
    assert_close(flat(model.parameters()), flat(twin.parameters()), 1e-6)
    before = flat(model.parameters())
    factor = float("inf")
    optimizer.step(closure, scaler=scaler)
    scaler.update()
    assert torch.equal(flat(model.parameters()), before)
    assert scaler.get_scale() == 2.0**11


@every_kind
def test_half_precision_activations(kind):
    model, data = network(dtype=torch.float32), batch(dtype=torch.float32)
    optimizer = make(kind, model)

    def closure():
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = functional.cross_entropy(sm.optim.logits(model(data[0])), data[1])
        loss.backward()
        return loss

    twin = network(dtype=torch.float32)
    plain = make(kind, twin)
    plain.step(closure_of(plain, twin, [data]))
    optimizer.step(closure)
    assert_close(flat(model.parameters()), flat(twin.parameters()), 1e-2)


def test_clipping_goes_into_a_hook_of_the_base():
    model, data = network(), batch()
    gradient = gradient_by_hand("SAM", model, data, rho=0.3)
    expected = flat(model.parameters()) - 0.1 * 1e-3 * gradient / gradient.norm()
    optimizer = make("SAM", model)
    optimizer.base.register_step_pre_hook(lambda *_: nn.utils.clip_grad_norm_(model.parameters(), 1e-3) and None)
    optimizer.step(closure_of(optimizer, model, [data]))
    assert_close(flat(model.parameters()), expected, 1e-6)


@every_kind
def test_hooks_of_the_optimiser_itself_are_called(kind):
    model, data, called = network(), batch(), []
    optimizer = make(kind, model)
    optimizer.step(closure_of(optimizer, model, [data]))
    hooks = [
        optimizer.register_step_pre_hook(lambda *_: called.append("before")),
        optimizer.register_step_post_hook(lambda *_: called.append("after")),
        register_optimizer_step_pre_hook(lambda who, *_: called.append("before all") if who is optimizer else None),
        register_optimizer_step_post_hook(lambda who, *_: called.append("after all") if who is optimizer else None),
    ]
    for hook in hooks:
        optimizer.step(closure_of(optimizer, model, [data]))
        hook.remove()
    optimizer.step(closure_of(optimizer, model, [data]))
    assert [called.count(each) for each in ("before", "after", "before all", "after all")] == [1, 2, 3, 4]


@every_kind
def test_the_profiler_sees_its_steps(kind):
    model, data = network(), batch()
    optimizer = make(kind, model)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        optimizer.step(closure_of(optimizer, model, [data]))
    labels = {event.key for event in profile.key_averages()}
    assert {f"Optimizer.step#{kind}.step", "Optimizer.step#SGD.step"} <= labels


@every_kind
def test_the_global_random_state_is_not_touched(kind):
    model, data = network(), batch()
    before = torch.get_rng_state()
    optimizer = make(kind, model)
    optimizer.step(closure_of(optimizer, model, [data]))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: sm.optim.SAM(p, torch.optim.SGD, rho=-1.0, lr=0.1), "rho of at least 0, got -1"),
        (lambda p: sm.optim.SAM(p, torch.optim.SGD, rho=float("nan"), lr=0.1), "rho of at least 0, got nan"),
        (lambda p: sm.optim.SAM([{"params": p, "rho": -2.0}], torch.optim.SGD, lr=0.1), "got -2"),
        (lambda p: sm.optim.ASAM(p, torch.optim.SGD, eta=-1.0, lr=0.1), "eta of at least 0"),
        (lambda p: sm.optim.EJRv2(p, torch.optim.SGD, mu=-1.0, lr=0.1), "mu of at least 0"),
        (lambda p: sm.optim.SAM(p, torch.optim.SGD, lr=-1.0), "learning rate"),
        (lambda p: sm.optim.SAM([], torch.optim.SGD, lr=0.1), "empty parameter list"),
    ],
)
def test_impossible_numbers(call, message):
    with pytest.raises(ValueError, match=f"(?i){message}"):
        call(list(network().parameters()))


def test_words_for_numbers():
    weights, sgd, seed = list(network().parameters()), torch.optim.SGD, torch.Generator()
    for name, call in {
        "a radius rho": lambda word: sm.optim.SAM(weights, sgd, rho=word, lr=0.1),
        "eta": lambda word: sm.optim.ASAM(weights, sgd, eta=word, lr=0.1),
        "mu": lambda word: sm.optim.EJRv2(weights, sgd, mu=word, lr=0.1),
        "a coefficient": lambda word: FisherPenalty(word, generator=seed),
        "beta": Mixup,
    }.items():
        with pytest.raises(TypeError, match=f"expected {name} of at least 0, got 'a'"):
            call("a")


def test_wrong_use():
    model, data = network(), batch()
    with pytest.raises(TypeError, match="expected the class of an optimiser"):
        sm.optim.SAM(model.parameters(), torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(TypeError, match="LBFGS calls the closure itself"):
        sm.optim.SAM(model.parameters(), torch.optim.LBFGS)
    with pytest.raises(TypeError, match=r"SAM\.step expected a closure"):
        make("SAM", model).step()
    with pytest.raises(ValueError, match="minimise the negative loss"):
        sm.optim.SAM(model.parameters(), torch.optim.SGD, lr=0.1, maximize=True)
    table = nn.Embedding(5, 3, sparse=True)
    for kind in (sm.optim.SAM, sm.optim.ASAM, sm.optim.EJR, sm.optim.EJRv2):
        optimizer = kind(table.parameters(), torch.optim.SGD, lr=0.1)
        with pytest.raises(TypeError, match="sparse=False"):
            optimizer.step(closure_of(optimizer, table, [(torch.arange(3), torch.arange(3))]))
    optimizer = make("EJR", model)

    def silent():
        loss = functional.cross_entropy(model(data[0]), data[1])
        loss.backward()
        return loss

    before = flat(model.parameters())
    with pytest.raises(RuntimeError, match=r"write logits = sm\.optim\.logits"):
        optimizer.step(silent)
    assert torch.equal(flat(model.parameters()), before)

    def uneven():
        return sm.optim.logits(model(data[0])).sum() + sm.optim.logits(model[0](data[0])).sum()

    with pytest.raises(ValueError, match="expected 3 logits as in the first call"):
        optimizer.step(uneven)

    def flattened():
        return sm.optim.logits(model(data[0]).sum(1)).sum()

    with pytest.raises(ValueError, match=r"expected outputs of shape \(samples, ..., logits\), got \(8,\)"):
        optimizer.step(flattened)
