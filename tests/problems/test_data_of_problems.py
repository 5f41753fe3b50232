"""Every form of data gives the same matrix, and data that cannot be replayed is refused."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler, TensorDataset

import spherometer as sm
from reference.agreement import assert_close
from reference.cases import random_block
from spherometer import EmpiricalFisher, Fisher, GaussNewton, Hessian, Problem

INPUTS = torch.randn(11, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
TARGETS = torch.randint(2, (11,), generator=torch.Generator().manual_seed(1))
LOSS = nn.CrossEntropyLoss()
KINDS = [Hessian, GaussNewton, Fisher, EmpiricalFisher]


def small() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_layers_that_are_unfrozen_later_do_not_change_what_was_chosen(dtype):
    model = small().to(dtype)
    model[0].requires_grad_(False)
    problem = Problem(model, LOSS, (INPUTS.to(dtype), TARGETS))
    model[0].requires_grad_(True)
    assert problem.sample(3).names == problem.in_dtype(torch.float64).names == problem.names == ("2.weight", "2.bias")
    top = sm.eigenvalues(Hessian(problem)).value
    model[0].requires_grad_(False)
    assert float(top) == pytest.approx(float(sm.eigenvalues(Hessian(problem)).value), rel=1e-4)


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = small()

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.inner(left) + self.inner(right.sin())


class Pair(NamedTuple):
    inputs: Tensor
    labels: Tensor


class Named(Dataset):
    def __len__(self) -> int:
        return len(INPUTS)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"image": INPUTS[index], "label": TARGETS[index]}


def loader(**options) -> DataLoader:
    return DataLoader(TensorDataset(INPUTS, TARGETS), batch_size=4, **options)


def use_names(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    return model(batch["image"]), batch["label"]


FORMS = {
    "pair": ((INPUTS, TARGETS), None),
    "list of ragged batches": (
        [(INPUTS[:5], TARGETS[:5]), (INPUTS[5:6], TARGETS[5:6]), (INPUTS[6:], TARGETS[6:])],
        None,
    ),
    "list of lists": ([[INPUTS[:5], TARGETS[:5]], [INPUTS[5:], TARGETS[5:]]], None),
    "loader": (loader(), None),
    "named tuple": ([Pair(INPUTS[:5], TARGETS[:5]), Pair(INPUTS[5:], TARGETS[5:])], None),
    "one dict": ({"image": INPUTS, "label": TARGETS}, use_names),
    "list of dicts": (
        [{"image": INPUTS[:7], "label": TARGETS[:7]}, {"image": INPUTS[7:], "label": TARGETS[7:]}],
        use_names,
    ),
    "loader of dicts": (DataLoader(Named(), batch_size=3), use_names),
    "inputs in a tuple": (((INPUTS,), TARGETS), None),
    "inputs in a dict": (({"input": INPUTS}, TARGETS), None),
    "float32 data": ((INPUTS.float().double(), TARGETS), None),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_form_of_data_gives_the_same_matrix(form, kind):
    data, forward = FORMS[form]
    problem = Problem(small(), LOSS, data, forward=forward)
    exact = form != "float32 data"
    whole = Problem(small(), LOSS, (INPUTS, TARGETS))
    vectors = random_block(whole.num_parameters)
    assert_close(kind(problem) @ vectors, kind(whole) @ vectors, 1e-12 if exact else 1e-6)
    assert problem.num_terms == 11


def test_samples_of_named_tuples_can_be_drawn():
    batches = [Pair(INPUTS[:5], TARGETS[:5]), Pair(INPUTS[5:], TARGETS[5:])]
    found, truth = (
        float(sm.measure(Problem(small(), LOSS, data), "gradient_ratio:batch_size=3")["gradient_ratio:batch_size=3"])
        for data in (batches, (INPUTS, TARGETS))
    )
    assert found == pytest.approx(truth, rel=1e-10)


@pytest.mark.parametrize("form", ["tuple", "dict"])
def test_several_inputs(form):
    left, right = INPUTS, INPUTS.flip(0)
    inputs = (left, right) if form == "tuple" else {"right": right, "left": left}
    problem = Problem(TwoInputs(), LOSS, (inputs, TARGETS))
    own = Problem(
        TwoInputs(), LOSS, [{"a": left, "b": right, "y": TARGETS}], forward=lambda m, x: (m(x["a"], x["b"]), x["y"])
    )
    vectors = random_block(problem.num_parameters)
    assert_close(Hessian(problem) @ vectors, Hessian(own) @ vectors)


def test_a_sample_of_a_problem_is_the_problem_on_fewer_samples():
    problem = Problem(small(), LOSS, loader())
    vectors = random_block(problem.num_parameters)
    few = Problem(small(), LOSS, (INPUTS[:3], TARGETS[:3]))
    assert_close(Hessian(problem.sample(3)) @ vectors, Hessian(few) @ vectors)
    assert_close(Hessian(problem.restricted((INPUTS[:3], TARGETS[:3]))) @ vectors, Hessian(few) @ vectors)


def test_data_are_moved_to_the_dtype_of_the_model():
    problem = Problem(small(), LOSS, (INPUTS.float(), TARGETS))
    assert problem.precision == torch.float64
    assert (Hessian(problem) @ random_block(problem.num_parameters)).dtype == torch.float64
    single = Problem(small().float(), LOSS, (INPUTS, TARGETS))
    assert (Hessian(single) @ random_block(single.num_parameters)).dtype == torch.float32


def test_batches_made_in_inference_mode_can_be_measured():
    """As in a validation hook of Lightning, where the loader's batches are inference tensors."""
    truth = Problem(small(), LOSS, (INPUTS, TARGETS))
    vectors = random_block(truth.num_parameters)
    with torch.inference_mode():
        data = (INPUTS.clone(), TARGETS.clone())
        products = Hessian(Problem(small(), LOSS, data)) @ vectors
        through_loader = Hessian(Problem(small(), LOSS, loader())) @ vectors
    assert_close(products, Hessian(truth) @ vectors)
    assert_close(through_loader, Hessian(truth) @ vectors)
    assert_close(Hessian(Problem(small(), LOSS, data)) @ vectors, Hessian(truth) @ vectors)


class Shuffled:
    """A loader of one's own that shuffles inside a single batch."""

    def __init__(self) -> None:
        self.passes = 0

    def __iter__(self):
        self.passes += 1
        order = torch.randperm(11, generator=torch.Generator().manual_seed(self.passes))
        yield INPUTS[order], TARGETS[order]


class LaterChange:
    """Only the second batch changes, and only in later passes."""

    def __init__(self) -> None:
        self.passes = 0

    def __iter__(self):
        self.passes += 1
        yield INPUTS[:4], TARGETS[:4]
        yield INPUTS[4:] + self.passes, TARGETS[4:]


class Augmented(Dataset):
    def __len__(self) -> int:
        return len(INPUTS)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return INPUTS[index] + torch.randn(3, dtype=torch.float64), TARGETS[index]


class Stream(IterableDataset):
    def __iter__(self):
        return iter(zip(INPUTS, TARGETS, strict=True))


def test_a_shuffling_loader_is_refused():
    with pytest.raises(
        ValueError, match=r"a DataLoader that shuffles: use shuffle=False, or freeze one order with list"
    ):
        Problem(small(), LOSS, loader(shuffle=True))


def test_a_shuffling_batch_sampler_is_refused():
    sampler = BatchSampler(RandomSampler(range(11)), batch_size=4, drop_last=False)
    with pytest.raises(ValueError, match=r"shuffles|changed between passes \(batch 0\)"):
        Problem(small(), LOSS, DataLoader(TensorDataset(INPUTS, TARGETS), batch_sampler=sampler))


def test_augmentation_is_refused():
    with pytest.raises(ValueError, match=r"data changed between passes \(batch 0\).*augmentation off"):
        Problem(small(), LOSS, DataLoader(Augmented(), batch_size=4))


def test_a_new_order_in_one_batch_is_refused():
    with pytest.raises(ValueError, match=r"data changed between passes \(batch 0\)"):
        Problem(small(), LOSS, Shuffled())


def test_a_later_batch_that_changes_is_refused_by_its_number():
    operator = Hessian(Problem(small(), LOSS, LaterChange()))
    vectors = random_block(operator.shape[0])
    with pytest.raises(ValueError, match=r"data changed between passes \(batch 1\)"):
        _ = operator @ vectors, operator @ vectors


def test_a_stream_is_replayed():
    problem = Problem(small(), LOSS, DataLoader(Stream(), batch_size=4))
    whole = Problem(small(), LOSS, (INPUTS, TARGETS))
    vectors = random_block(problem.num_parameters)
    operator = Hessian(problem)
    assert_close(operator @ vectors, Hessian(whole) @ vectors)
    assert_close(operator @ vectors, Hessian(whole) @ vectors)


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        ((batch for batch in [(INPUTS, TARGETS)]), TypeError, r"got generator, which cannot be read more than once"),
        (INPUTS, TypeError, r"expected data as \(inputs, targets\).*got one tensor"),
        (3, TypeError, r"expected data as \(inputs, targets\).*got int"),
        ([], ValueError, r"at least one batch, got an empty list"),
        ((INPUTS, TARGETS, TARGETS), ValueError, r"a pair \(inputs, targets\), got a tuple of 3"),
        (((INPUTS, TARGETS), (INPUTS, TARGETS)), ValueError, r"got a pair of pairs: put batches into a list"),
        ((INPUTS[:5], TARGETS), ValueError, r"as many inputs as targets, got 5 inputs and 11 targets"),
        ([(INPUTS[:5], TARGETS)], ValueError, r"as many inputs as targets, got 5 inputs and 11 targets"),
        ((INPUTS[:0], TARGETS[:0]), ValueError, r"at least one sample, got none"),
        ([(INPUTS[:0], TARGETS[:0])], ValueError, r"at least one sample, got none"),
        (DataLoader(TensorDataset(INPUTS[:0], TARGETS[:0])), ValueError, r"at least one batch, got none"),
        ([{"image": INPUTS, "label": TARGETS}], ValueError, r"form \(inputs, targets\), got dict: say how.*forward="),
        ([INPUTS, TARGETS], ValueError, r"form \(inputs, targets\), got Tensor: say how"),
        ((INPUTS, TARGETS + 1), ValueError, r"class numbers from 0 to 1 \(the model has 2 outputs\), got 1 to 2"),
        ((INPUTS, TARGETS - 1), ValueError, r"class numbers from 0 to 1 .* got -1 to 0: check the labels"),
        ((INPUTS * torch.nan, TARGETS), ArithmeticError, r"the loss is nan on batch 0"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_unusable_data_is_refused(data, error, message):
    with pytest.raises(error, match=message):
        Problem(small(), LOSS, data)


@pytest.mark.parametrize("data", ["list", "loader"])
def test_a_bad_number_is_refused_with_the_batch_it_is_in(data):
    inputs = INPUTS.clone()
    inputs[9, 0] = torch.nan
    batches = [(inputs[k : k + 4], TARGETS[k : k + 4]) for k in (0, 4, 8)]
    problem = Problem(
        small(), LOSS, batches if data == "list" else DataLoader(TensorDataset(inputs, TARGETS), batch_size=4)
    )
    for _ in range(2):  # the second attempt says the same
        with pytest.raises(ArithmeticError, match="the loss is nan on batch 2"):
            _ = Hessian(problem) @ random_block(problem.num_parameters)
        with pytest.raises(ArithmeticError, match="the loss is nan on batch 2"):
            problem.loss_at()


def test_data_in_which_everything_is_ignored_is_refused():
    problem = Problem(small(), LOSS, (INPUTS, torch.full_like(TARGETS, -100)))
    for attempt in (
        problem.loss_at,
        problem.gradient_at,
        lambda: problem.num_terms,
        Hessian(problem).dense,
        Hessian(problem).gradient,
    ):
        with pytest.raises(ValueError, match="at least one loss term, got 0: are all targets ignored"):
            attempt()


def test_targets_that_would_be_broadcast_are_refused():
    model = nn.Sequential(small(), nn.Linear(2, 1)).double()
    with pytest.raises(ValueError, match=r"targets of the outputs' shape \(8, 1\), got \(8,\): torch would broadcast"):
        Problem(model, nn.MSELoss(), (INPUTS, TARGETS.double()))
