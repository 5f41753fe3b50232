"""Every kind of loss: Hessian, Gauss-Newton and empirical Fisher against dense twins, also in ragged batches."""

from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from reference.agreement import FINITE_DIFFERENCES, assert_close
from reference.cases import random_block
from reference.twins import Twin
from spherometer import EmpiricalFisher, Fisher, GaussNewton, HalfSquaredError, Hessian, Problem, measure
from spherometer.problems import Likelihood, likelihood_of
from spherometer.problems.losses import num_slopes
from spherometer.training import SmoothedCrossEntropy

CLASSES = 3
WEIGHTS = torch.tensor([0.5, 1.0, 3.0], dtype=torch.float64)
RAGGED = (0, 3, 4, 9)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def classes(*shape: int) -> Tensor:
    return torch.randint(CLASSES, shape, generator=torch.Generator().manual_seed(1))


def dense_model() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, CLASSES)).double()
    for k, parameter in enumerate(model.parameters()):
        parameter.data = draw(*parameter.shape, seed=10 + k)
    return model


class Positions(nn.Module):
    """(n, T, 4) -> (n, C, T): the layout cross-entropy wants for sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = dense_model()

    def forward(self, inputs: Tensor) -> Tensor:
        return self.inner(inputs).movedim(-1, 1)


def some_ignored(targets: Tensor) -> Tensor:
    targets = targets.clone()
    targets.view(-1)[::3] = -100
    return targets


def attract_and_repel(outputs: Tensor, targets: Tensor) -> Tensor:
    """Samples see each other: a softmax over all pairs."""
    similarity = outputs @ outputs.T
    return (similarity.logsumexp(1) - similarity[:, 0]).mean() + 0.0 * targets.sum()


def logistic(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.softplus(-(2 * targets - 1) * outputs).sum(1).mean()


FLAT, SEQUENCES = (draw(9, 4), classes(9)), (draw(9, 2, 4), classes(9, 2))
BINARY = (FLAT[0], (draw(9, CLASSES) > 0).double())
SOFT = draw(9, CLASSES, seed=4).softmax(1)
LOSSES = {
    "cross-entropy": (dense_model, nn.CrossEntropyLoss(), FLAT),
    "function": (dense_model, functional.cross_entropy, FLAT),
    "label smoothing": (dense_model, nn.CrossEntropyLoss(label_smoothing=0.2), FLAT),
    "partial": (dense_model, partial(functional.cross_entropy, label_smoothing=0.2), FLAT),
    "class weights": (dense_model, nn.CrossEntropyLoss(weight=WEIGHTS), FLAT),
    "partial class weights": (dense_model, partial(functional.cross_entropy, weight=WEIGHTS), FLAT),
    "class weights and smoothing": (dense_model, nn.CrossEntropyLoss(weight=WEIGHTS, label_smoothing=0.1), FLAT),
    "ignored": (dense_model, nn.CrossEntropyLoss(), (FLAT[0], some_ignored(FLAT[1]))),
    "ignore_index": (dense_model, nn.CrossEntropyLoss(ignore_index=1), FLAT),
    "ignored and weighted": (dense_model, nn.CrossEntropyLoss(weight=WEIGHTS, ignore_index=0), FLAT),
    "soft targets": (dense_model, nn.CrossEntropyLoss(), (FLAT[0], SOFT)),
    "positions": (Positions, nn.CrossEntropyLoss(), SEQUENCES),
    "ignored positions": (Positions, nn.CrossEntropyLoss(), (SEQUENCES[0], some_ignored(SEQUENCES[1]))),
    "weighted positions": (Positions, nn.CrossEntropyLoss(weight=WEIGHTS), SEQUENCES),
    "negative log-likelihood": (lambda: nn.Sequential(dense_model(), nn.LogSoftmax(1)), nn.NLLLoss(), FLAT),
    "mean squared error": (dense_model, nn.MSELoss(), (FLAT[0], draw(9, CLASSES))),
    "half squared error": (dense_model, HalfSquaredError(), (FLAT[0], draw(9, CLASSES))),
    "half squared error of classes": (dense_model, HalfSquaredError(), FLAT),
    "squared error of positions": (Positions, nn.MSELoss(), (SEQUENCES[0], draw(9, CLASSES, 2))),
    "half squared error of positions": (Positions, HalfSquaredError(), (SEQUENCES[0], draw(9, CLASSES, 2))),
    "binary": (dense_model, nn.BCEWithLogitsLoss(), BINARY),
    "binary weights": (dense_model, nn.BCEWithLogitsLoss(pos_weight=WEIGHTS), BINARY),
    "plain function": (dense_model, logistic, BINARY),
    "huber": (dense_model, nn.HuberLoss(), (FLAT[0], draw(9, CLASSES))),
}  # fmt: skip
CONTRASTIVE = (dense_model, attract_and_repel, FLAT)

every_loss = pytest.mark.parametrize("name", LOSSES)


def make(name: str, *, ragged: bool = False, **options) -> Problem:
    model, loss, (inputs, targets) = CONTRASTIVE if name == "contrastive" else LOSSES[name]
    batches = [(inputs[start:stop], targets[start:stop]) for start, stop in pairwise(RAGGED)]
    return Problem(model(), loss, batches if ragged else (inputs, targets), **options)


def twin_of(name: str) -> Twin:
    model, loss, (inputs, targets) = CONTRASTIVE if name == "contrastive" else LOSSES[name]
    return Twin(model(), loss, inputs, targets)


def weighted_empirical_fisher(twin: Twin) -> Tensor:
    """Σ w g g' / Σ w with one gradient for each counted term, a term of class weight w counted w times."""
    point = twin.weights.clone().requires_grad_()
    outputs = twin.outputs(point)
    if isinstance(twin.loss, nn.CrossEntropyLoss | nn.NLLLoss) or "cross_entropy" in repr(twin.loss):
        labels = not twin.targets.is_floating_point()
        outputs = outputs.movedim(1, -1).reshape(-1, CLASSES)
        targets = twin.targets.reshape(-1) if labels else twin.targets
    else:
        labels, targets = False, twin.targets
    keywords = getattr(twin.loss, "keywords", {})
    weight = keywords.get("weight", getattr(twin.loss, "weight", None))
    total, size = 0.0, 0.0
    for output, target in zip(outputs, targets, strict=True):
        if labels and int(target) == getattr(twin.loss, "ignore_index", -100):
            continue
        share = float(weight[target]) if labels and weight is not None else 1.0
        term = twin.loss(output[None], target[None])
        (gradient,) = torch.autograd.grad(term, point, retain_graph=True)
        total, size = total + share * torch.outer(gradient, gradient), size + share
    return total / size


@pytest.mark.parametrize("name", [*LOSSES, "contrastive"])
def test_hessian_and_gauss_newton_agree_with_dense_twins(name):
    problem, twin = make(name), twin_of(name)
    vectors = random_block(problem.num_parameters)
    products = Hessian(problem) @ vectors
    assert_close(products, twin.hessian @ vectors)
    assert_close(products[:, 0], twin.finite_difference_product(vectors[:, 0]), FINITE_DIFFERENCES)
    assert_close(GaussNewton(problem) @ vectors, twin.gauss_newton @ vectors)
    assert problem.loss_at() == pytest.approx(float(twin.mean_loss(twin.weights)), rel=1e-12)


@every_loss
def test_empirical_fisher_agrees_with_a_loop_over_terms(name):
    problem, truth = make(name), weighted_empirical_fisher(twin_of(name))
    vectors = random_block(problem.num_parameters)
    assert_close(EmpiricalFisher(problem) @ vectors, truth @ vectors)


@every_loss
@pytest.mark.parametrize("kind", [Hessian, GaussNewton, EmpiricalFisher])
def test_ragged_batches_change_nothing(name, kind):
    whole, ragged = make(name), make(name, ragged=True)
    vectors = random_block(whole.num_parameters)
    assert_close(kind(ragged) @ vectors, kind(whole) @ vectors, 1e-12)
    assert_close(kind(ragged).gradient(), kind(whole).gradient(), 1e-12)
    assert ragged.num_terms == pytest.approx(whole.num_terms)
    assert ragged.loss_at() == pytest.approx(whole.loss_at(), rel=1e-13)


@every_loss
@pytest.mark.parametrize("kind", [Hessian, GaussNewton, EmpiricalFisher])
def test_pieces_of_one_sample_change_nothing(name, kind):
    """A memory limit that no graph meets: every sample is built alone, and again for each product."""
    whole, operator = make(name), kind(make(name, memory=1.0))
    vector = random_block(whole.num_parameters)[:, 0]
    assert_close(operator @ vector, kind(whole) @ vector, 1e-12)
    assert operator.plan.piece_size == 1
    assert not operator._kept


def test_a_loss_between_samples_is_never_cut():
    whole, cut = make("contrastive"), make("contrastive", memory=1.0)
    assert not whole.splittable
    assert make("cross-entropy").splittable
    assert len(list(cut.pieces(1))) == 1
    vectors = random_block(whole.num_parameters)
    assert_close(Hessian(cut) @ vectors, Hessian(whole) @ vectors)


@pytest.mark.parametrize(
    "name", ["cross-entropy", "label smoothing", "ignored", "ignore_index", "positions", "ignored positions"]
)
def test_exact_fisher_equals_gauss_newton_for_cross_entropy(name):
    problem = make(name)
    vectors = random_block(problem.num_parameters)
    assert_close(Fisher(problem) @ vectors, GaussNewton(problem) @ vectors)


@pytest.mark.parametrize("name", [name for name in LOSSES if "squared" in name])
def test_exact_fisher_equals_gauss_newton_for_squared_error(name):
    problem = make(name)
    vectors = random_block(problem.num_parameters)
    assert_close(Fisher(problem) @ vectors, GaussNewton(problem) @ vectors)


@pytest.mark.parametrize("name", [name for name in LOSSES if "squared" not in name and "positions" not in name])
def test_exact_trace_is_right_or_unknown_for_every_loss(name):
    problem, twin = make(name), twin_of(name)
    exact = GaussNewton(problem).exact_trace()
    known = name in {"cross-entropy", "function", "label smoothing", "partial", "soft targets"}
    assert (exact is not None) == known
    if known:
        assert exact == pytest.approx(float(twin.gauss_newton.trace()))


def test_exact_trace_of_sequences_flattened_into_rows_is_unknown():
    """Rows of the outputs are tokens, but a layer's gradient sums over the tokens of a sample: no ghost norm."""

    class Rows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = dense_model()

        def forward(self, inputs: Tensor) -> Tensor:
            return self.inner(inputs).flatten(0, 1)

    def forward(model, batch):
        return model(batch[0]), batch[1].flatten()

    problem = Problem(Rows(), nn.CrossEntropyLoss(), SEQUENCES, forward=forward)
    assert problem.splittable
    assert GaussNewton(problem).exact_trace() is None
    truth = twin_of("positions").gauss_newton
    assert_close(GaussNewton(problem).dense(), truth)


def test_exact_trace_with_time_first_is_unknown_even_when_time_and_samples_agree():
    class TimeFirst(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = dense_model()

        def forward(self, inputs: Tensor) -> Tensor:
            return self.inner(inputs.transpose(0, 1)).mean(0)

    problem = Problem(TimeFirst(), nn.CrossEntropyLoss(), (draw(5, 5, 4), classes(5)))
    assert GaussNewton(problem).exact_trace() is None


def test_a_batch_without_counted_tokens_counts_nothing():
    inputs, targets = SEQUENCES
    ignored = targets.clone()
    ignored[3:6] = -100
    kept = torch.cat([torch.arange(3), torch.arange(6, 9)])
    batches = [(inputs[k : k + 3], ignored[k : k + 3]) for k in (0, 3, 6)]
    full = Problem(Positions(), nn.CrossEntropyLoss(), (inputs[kept], targets[kept]))
    vectors = random_block(full.num_parameters)
    for data in (batches, [batches[1], batches[0], batches[2]], (inputs, ignored)):
        problem = Problem(Positions(), nn.CrossEntropyLoss(), data)
        assert problem.num_terms == 12
        for kind in (Hessian, GaussNewton, Fisher, EmpiricalFisher):
            assert_close(kind(problem) @ vectors, kind(full) @ vectors)
        assert (Fisher(problem, samples=2) @ vectors).isfinite().all()
        assert_close(problem.gradient_at(), full.gradient_at())
        assert problem.loss_at() == pytest.approx(full.loss_at())
    cut = Problem(Positions(), nn.CrossEntropyLoss(), (inputs, ignored), memory=1.0)
    assert_close(Hessian(cut) @ vectors, Hessian(full) @ vectors)


def test_tensors_of_the_loss_follow_the_dtype_of_the_measurement():
    model, inputs = dense_model().float(), FLAT[0].float()
    weights = WEIGHTS.float()
    for loss in (nn.CrossEntropyLoss(weight=weights), partial(functional.cross_entropy, weight=weights)):
        problem = Problem(model, loss, (inputs, FLAT[1]), dtype=torch.float64)
        double = Problem(model.double(), nn.CrossEntropyLoss(weight=WEIGHTS), (inputs.double(), FLAT[1]))
        vectors = random_block(problem.num_parameters)
        assert_close(Hessian(problem) @ vectors, Hessian(double) @ vectors)
        assert_close(GaussNewton(problem) @ vectors, GaussNewton(double) @ vectors)
        model.float()
    assert loss.keywords["weight"].dtype == torch.float32


def test_rounding_of_class_weights_does_not_keep_a_batch_together():
    weight = torch.tensor([0.1, 0.7, 0.3, 0.2, 0.9])
    inputs = torch.randn(12, 4, generator=torch.Generator().manual_seed(0))
    model = nn.Linear(4, 5)
    for shift in range(20):
        targets = (torch.arange(12) * 7 + shift * torch.arange(12) ** 2) % 5
        assert Problem(model, nn.CrossEntropyLoss(weight=weight), (inputs, targets)).splittable


def test_own_count_of_terms():
    """A loss that says nothing of its terms: the count is given by hand."""

    def tokens(outputs, targets):
        return functional.cross_entropy(outputs, targets)

    inputs, targets = SEQUENCES
    ignored = some_ignored(targets)
    batches = [(inputs[:3], ignored[:3]), (inputs[3:], ignored[3:])]
    problem = Problem(Positions(), tokens, batches, count=lambda outputs, targets: float((targets != -100).sum()))
    full = Problem(Positions(), nn.CrossEntropyLoss(), (inputs, ignored))
    vectors = random_block(full.num_parameters)
    assert_close(Hessian(problem) @ vectors, Hessian(full) @ vectors)
    with pytest.raises(ValueError, match="does not say how many terms its mean runs over"):
        Problem(Positions(), tokens, batches)


class Focal(nn.CrossEntropyLoss):
    """(1 − p_y)² times cross-entropy: a subclass in name only."""

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        terms = functional.cross_entropy(outputs, targets, reduction="none")
        return ((1 - (-terms).exp()).square() * terms).mean()


class LogCosh(nn.MSELoss):
    """log cosh(f − y), quadratic only near zero."""

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return torch.log(torch.cosh(outputs - targets)).mean()


class Scaled(nn.CrossEntropyLoss):
    """Cross-entropy with another constructor, but torch's own forward."""

    def __init__(self) -> None:
        super().__init__(label_smoothing=0.1)


SUBCLASSES = {"focal": (Focal(), FLAT[1]), "log cosh": (LogCosh(), draw(9, CLASSES))}


@pytest.mark.parametrize("name", SUBCLASSES)
def test_a_subclass_with_its_own_forward_is_not_taken_for_its_parent(name):
    loss, targets = SUBCLASSES[name]
    problem, twin = Problem(dense_model(), loss, (FLAT[0], targets)), Twin(dense_model(), loss, FLAT[0], targets)
    assert likelihood_of(loss, twin.outputs(twin.weights)) is None
    assert GaussNewton(problem).exact_trace() is None
    found = measure(problem, "gauss_newton_trace")["gauss_newton_trace"]
    assert float(found) == pytest.approx(float(twin.gauss_newton.trace()), rel=1e-9)
    with pytest.raises(ValueError, match="has no known closed form"):
        measure(problem, "tangent_kernel_spectrum")


def test_a_forward_set_on_the_instance_is_another_loss_too():
    loss = nn.CrossEntropyLoss()
    loss.forward = lambda outputs, targets: 2 * functional.cross_entropy(outputs, targets)
    assert likelihood_of(loss, draw(2, CLASSES)) is None


def test_subclasses_that_keep_the_curvature_of_their_parent_are_recognised():
    for loss in (Scaled(), SmoothedCrossEntropy(0.2)):
        assert likelihood_of(loss, draw(2, CLASSES)) == Likelihood("categorical")
        assert GaussNewton(Problem(dense_model(), loss, FLAT)).exact_trace() is not None


def test_a_subclass_does_not_say_what_it_does_with_ignored_classes():
    with pytest.raises(ValueError, match=r"hold the class number 1 .* does not say how many terms"):
        Problem(dense_model(), Focal(ignore_index=1), FLAT)


def test_squared_error_with_weights_is_no_likelihood():
    assert likelihood_of(partial(functional.mse_loss, weight=torch.ones(2, 3)), draw(2, 3)) is None


class PerPosition(nn.Module):
    """(n, T, 4) -> (n, T)."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 1).double()
        self.inner.weight.data, self.inner.bias.data = draw(1, 4, seed=7), draw(1, seed=8)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.inner(inputs).squeeze(-1)


ELEMENT_MEANS = [
    nn.MSELoss(), nn.L1Loss(), nn.SmoothL1Loss(), nn.HuberLoss(), nn.BCEWithLogitsLoss(), nn.PoissonNLLLoss(),
    nn.SoftMarginLoss(), nn.KLDivLoss(), functional.l1_loss, partial(functional.huber_loss, delta=0.5),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:reduction:UserWarning")  # torch advises batchmean
@pytest.mark.parametrize("loss", ELEMENT_MEANS, ids=lambda loss: getattr(loss, "__name__", type(loss).__name__))
def test_means_over_elements_count_the_elements_of_sequences_of_any_length(loss):
    inputs = [draw(2, length, 4, seed=length) for length in (3, 10)]
    targets = [(draw(2, length, seed=20 + length) > 0).double() for length in (3, 10)]
    problem, model = Problem(PerPosition(), loss, list(zip(inputs, targets, strict=True))), PerPosition()
    outputs = torch.cat([model(part).flatten() for part in inputs])
    truth = loss(outputs, torch.cat([part.flatten() for part in targets]))
    assert problem.loss_at() == pytest.approx(truth.item(), rel=1e-12)
    assert problem.num_terms == 26
    assert problem.splittable
    assert_close(
        problem.gradient_at(), torch.cat([g.flatten() for g in torch.autograd.grad(truth, model.parameters())])
    )


def test_binary_cross_entropy_of_chances_counts_elements():
    model = nn.Sequential(dense_model(), nn.Sigmoid())
    assert Problem(model, nn.BCELoss(), BINARY).num_terms == 9 * CLASSES


@pytest.mark.filterwarnings("ignore:reduction:UserWarning")  # torch advises batchmean
def test_a_mean_over_the_batch_counts_samples():
    model = nn.Sequential(dense_model(), nn.LogSoftmax(1))
    assert Problem(model, nn.KLDivLoss(reduction="batchmean"), (FLAT[0], SOFT)).num_terms == 9
    assert Problem(model, nn.KLDivLoss(), (FLAT[0], SOFT)).num_terms == 27


def test_targets_that_torch_would_broadcast_are_refused_for_every_mean_over_elements():
    with pytest.raises(ValueError, match="l1_loss expected targets of the outputs' shape"):
        Problem(dense_model(), nn.L1Loss(), (FLAT[0], draw(9, 1)))


def test_a_loss_that_cannot_be_hashed_is_a_loss():
    @dataclass
    class Quadratic:
        scale: float

        def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
            return self.scale * (outputs - targets).square().mean()

    assert Problem(dense_model(), Quadratic(2.0), (FLAT[0], draw(9, CLASSES))).num_terms == 9


def test_the_number_of_slopes_does_not_depend_on_class_weights():
    ignored, outputs = some_ignored(SEQUENCES[1]), draw(9, CLASSES, 2)
    for weight in (None, WEIGHTS, torch.ones(3).double()):
        assert num_slopes(nn.CrossEntropyLoss(weight=weight), outputs, ignored) == 12
        assert num_slopes(nn.CrossEntropyLoss(weight=weight), outputs, SEQUENCES[1]) == 18
    assert num_slopes(nn.MSELoss(), outputs, outputs) == 9


@pytest.mark.parametrize("kind", [Hessian, GaussNewton, Fisher, EmpiricalFisher])
@pytest.mark.parametrize("ignored", [-100, 0])
def test_a_count_of_ones_own_weighs_batches_and_nothing_else(kind, ignored):
    model, loss = (
        nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double(),
        nn.CrossEntropyLoss(ignore_index=ignored),
    )
    inputs = torch.randn(10, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    targets = torch.arange(10) % 3
    batches = [(inputs[:6], targets[:6]), (inputs[6:], targets[6:])]
    found = kind(Problem(model, loss, batches, count=lambda _, chosen: 3.0 if len(chosen) == 6 else 5.0)).dense()
    first, second = (kind(Problem(model, loss, [batch])).dense() for batch in batches)
    torch.testing.assert_close(found, (3 * first + 5 * second) / 8)
