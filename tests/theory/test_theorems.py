"""Theorems 4.3, 5.1 and 6.1 of paper A against dense twins, where they hold and where they do not (T46, T47, A-e6)."""

import math
from functools import partial
from itertools import pairwise

import pytest
import torch
from torch import nn

from spherometer import HalfSquaredError, Problem, measure
from spherometer.metrics import Bench
from spherometer.metrics.sharpening import fit_of
from spherometer.theory import Bound, Cover, Cube, Hypothesis, Sphere, Theorems, TwoClusters, covering_radius
from spherometer.theory.variation import Variation, jacobian_variation


def network(*widths, seed=0, gain=1.0, activation=nn.Tanh):
    generator, layers = torch.Generator().manual_seed(seed), []
    for fan_in, fan_out in pairwise(widths):
        layer = nn.Linear(fan_in, fan_out).double()
        for part in (layer.weight, layer.bias):
            part.data = gain * torch.randn(part.shape, generator=generator, dtype=torch.float64) / fan_in**0.5
        layers += [layer, activation()]
    return nn.Sequential(*layers[:-1])


def jacobians(function, points):
    """(n, C, d)."""
    return torch.func.vmap(torch.func.jacrev(lambda x: function(x[None])[0]))(points).detach()


def on_a_grid(function, centres, num=41):
    """V over balls of an interval or square by brute force: sup ‖J(x) − J(y)‖ over a grid; fine enough to be both."""

    def variation(radius):
        steps = torch.linspace(-1, 1, num, dtype=torch.float64)
        dimension = centres.shape[1]
        offsets = torch.cartesian_prod(*[steps] * dimension).reshape(-1, dimension)
        offsets = radius * offsets[offsets.norm(dim=1) <= 1 + 1e-12]
        points = (centres[:, None] + offsets).flatten(0, 1)
        there = torch.func.vmap(torch.func.jacrev(lambda x: function(x[None])[0]))(points).detach()
        assert 1 in there.shape[1:]  # the norm of a matrix that is a vector is its length
        rows = there.flatten(1).reshape(len(centres), len(offsets), -1)
        found = torch.cdist(rows, rows).flatten(1).amax(1)
        return Variation(found, found, None, torch.zeros(len(centres)), radius)

    return variation


def theorems(
    model, support, num, *, seed=0, loss=None, targets=None, lipschitz=None, uniform=torch.rand, function=None
):
    generator = torch.Generator().manual_seed(seed)
    inputs, more = (uniform(n, support.dimension, generator=generator, dtype=torch.float64) for n in (num, 50))
    targets = (lambda x: model(x).detach()) if targets is None else targets
    problem = Problem(model, loss or HalfSquaredError(), (inputs, targets(inputs)))
    cover = Cover.of_support(support, num, 0.1)
    variation = on_a_grid(function or model, inputs, 41 if inputs.shape[1] == 1 else 9)
    return Theorems(problem, cover, (more, targets(more)), target_lipschitz=lipschitz, variation=variation)


def dense_secant(points, values):
    return max(
        float((values[i] - values[j]).norm() / (points[i] - points[j]).norm())
        for i in range(len(points))
        for j in range(i)
    )


@pytest.mark.parametrize("seed", range(3))
def test_T46_lipschitz_bound_on_an_interval(seed):
    """‖f‖_Lip ≤ max(‖J‖ + V), and both sides are what they are called."""
    model = network(1, 8, 2, seed=seed, gain=3.0)
    found = theorems(model, Cube(1), 40, seed=seed)
    forms = found.lipschitz()
    points = torch.cat([found.train[0], found.test[0]])
    assert forms.corrected.left == pytest.approx(dense_secant(points, model(points).detach()))
    norms = torch.linalg.matrix_norm(jacobians(model, found.train[0]), 2)
    for form, radius in ((forms.printed, found.cover.printed), (forms.corrected, found.cover.corrected)):
        assert form.right == pytest.approx(float((norms + found.variation(radius).upper).max()))
        assert form.holds
        assert form.left > 0.3 * float(norms.max())  # the secants see the slope
    assert forms.corrected.proved
    grid = torch.linspace(0, 1, 501, dtype=torch.float64)[:, None]
    truth = float(torch.linalg.matrix_norm(jacobians(model, grid), 2).max())
    assert forms.corrected.left <= truth * (1 + 1e-9) <= forms.corrected.right


def test_T46_two_clusters_break_the_printed_theorem():
    """A-e6: flat on both pieces of the support, steep between: right side 1e-6, Lipschitz constant 1.11."""
    toy = TwoClusters()
    inputs, more = toy.samples(1000), toy.samples(100, seed=1)
    model = toy.model()
    problem = Problem(model, HalfSquaredError(), (inputs, (inputs > 0).double()))
    cover = Cover.of_support(toy.support, 1000, 0.1)

    found = Theorems(problem, cover, (more, (more > 0).double()))
    forms = found.lipschitz()
    assert cover.corrected < toy.gap  # no ball reaches into the middle
    assert forms.printed.left == pytest.approx(1.11, abs=0.01)
    assert forms.printed.left <= toy.lipschitz * (1 + 1e-9)
    assert forms.printed.right < 1e-5
    assert not forms.printed.holds
    assert forms.printed.proved is False
    assert {h.name: h.holds for h in forms.printed.hypotheses}["support convex"] is False
    assert forms.corrected.right == math.inf  # the corrected theorem claims nothing here
    assert forms.corrected.holds
    assert forms.corrected.proved is False
    assert not found.sharpening().printed.holds
    general = found.generalisation()  # uses segments inside one ball only
    assert general.corrected.holds
    assert float(jacobians(model, inputs).abs().max()) <= toy.steepest * (1 + 1e-9) == pytest.approx(6.1e-7, rel=0.01)


@pytest.mark.parametrize("loss", ["squares", "cross-entropy"])
def test_T47_sharpening_on_a_convex_support(loss):
    """Thm 5.1 at weights that do not fit at all and at weights that fit: the bound climbs, and holds in all cases."""
    teacher = network(1, 6, 3, seed=5, gain=4.0)
    lefts = []
    for share in (0.0, 0.9, 1.0):
        model = network(1, 6, 3, seed=5, gain=4.0)
        for mine in model.parameters():
            mine.data *= share
        if loss == "squares":
            found = theorems(model, Cube(1), 30, targets=lambda x: teacher(x).detach())
        else:
            found = theorems(
                model,
                Cube(1),
                30,
                loss=nn.CrossEntropyLoss(),
                targets=lambda x: teacher(x).softmax(1).detach(),
                function=lambda x, model=model: model(x).softmax(1),
            )
        forms = found.sharpening()
        for form in (forms.printed, forms.corrected):
            assert form.holds
            assert {h.name: h.holds for h in form.hypotheses}["cost grows quadratically"]
        assert forms.printed.left <= forms.corrected.left
        lefts.append(forms.corrected.left)
        metric = measure(found.problem, "sharpening_bound")["sharpening_bound"]
        assert metric.value[0] == pytest.approx(forms.printed.left, abs=1e-9)
        assert metric.value[1] == pytest.approx(forms.corrected.left, abs=1e-9)
    assert lefts[0] < lefts[1] < lefts[2]
    assert lefts[0] <= 0 < lefts[2]


def test_T47_generalisation_bound_against_its_formula():
    """Thm 6.1: mean held-out error ≤ δ(‖f*‖ + max(‖J‖ + V)), plus the residual where there is one."""
    model = network(2, 6, 1, seed=1)
    for shift in (0.0, 0.2):
        found = theorems(model, Cube(2), 60, targets=lambda x, shift=shift: model(x).detach() + shift, lipschitz=0.7)
        forms = found.generalisation()
        norms = torch.linalg.matrix_norm(jacobians(model, found.train[0]), 2)
        slopes = norms + found.variation(found.cover.corrected).upper
        assert forms.corrected.left == pytest.approx(shift, abs=1e-12)
        assert forms.corrected.right == pytest.approx(shift + found.cover.corrected * (0.7 + float(slopes.max())))
        at_printed = found.cover.printed * (0.7 + float((norms + found.variation(found.cover.printed).upper).max()))
        assert forms.printed.right == pytest.approx(at_printed)
        names = {h.name: h.holds for h in forms.printed.hypotheses}
        assert names["interpolation reached"] is (shift == 0)
        assert forms.corrected.proved
        assert forms.corrected.holds


def test_T47_sphere_is_not_convex_and_costs_a_detour():
    """Half a great circle is π/2 times its chord: the corrected right side of 4.3 grows by that."""

    def uniform(num, dimension, *, generator, dtype):
        points = torch.randn(num, dimension + 1, generator=generator, dtype=dtype)
        return points / points.norm(dim=1, keepdim=True)

    model = network(2, 5, 1, seed=2)
    found = theorems(model, Sphere(1), 60, uniform=uniform)
    forms = found.lipschitz()
    norms = torch.linalg.matrix_norm(jacobians(model, found.train[0]), 2)
    slopes = norms + found.variation(found.cover.corrected).upper
    assert forms.corrected.right == pytest.approx(math.pi / 2 * float(slopes.max()))
    assert forms.corrected.proved
    assert {h.name: h.holds for h in forms.printed.hypotheses}["support convex"] is False


def test_unknown_support_is_said_to_be_unknown():
    model = network(2, 5, 1, seed=2)
    generator = torch.Generator().manual_seed(0)
    inputs, more = (torch.rand(n, 2, generator=generator, dtype=torch.float64) for n in (40, 30))
    problem = Problem(model, HalfSquaredError(), (inputs, model(inputs).detach()))
    cover = Cover.of_probes(covering_radius(inputs, more))
    plain = partial(jacobian_variation, model, inputs, certified=False)
    found = Theorems(problem, cover, (more, model(more).detach()), variation=plain)
    for forms in (found.lipschitz(), found.sharpening(), found.generalisation()):
        assert forms.printed.proved is None
        assert forms.corrected.right == math.inf
        assert math.isfinite(forms.printed.seen)
    target = next(h for h in found.generalisation().printed.hypotheses if "target" in h.name)
    points = torch.cat([inputs, more])
    assert target.holds is None
    assert f"{dense_secant(points, model(points).detach()):.4g}" in target.reason
    assert set(found.to_dict()) == {"lipschitz", "sharpening", "generalisation"}


def test_Q4_growth_constants_are_true_and_largest():
    """c ≥ α‖z − y‖² on 2000 draws for each cost; within 1 % of equality somewhere."""
    generator = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(2000, 2, generator=generator, dtype=torch.float64)
    logits[:500] *= 0.02  # near p = q = ½, where KL is tight
    aims = (4 * torch.randn(2000, 2, generator=generator, dtype=torch.float64)).softmax(1)
    aims[:500] = (0.02 * torch.randn(500, 2, generator=generator, dtype=torch.float64)).softmax(1)
    for loss, growth in ((nn.CrossEntropyLoss(), 1.0), (HalfSquaredError(), 0.5), (nn.MSELoss(), 0.5)):
        fit = fit_of(Bench(Problem(nn.Linear(2, 2).double(), loss, (logits, aims)), places=frozenset()))
        assert fit.growth == growth
        assert bool((fit.costs >= growth * fit.residuals.square() - 1e-12).all())
        assert float((growth * fit.residuals.square() / fit.costs).max()) > 0.99
    wide = Problem(nn.Linear(2, 8).double(), nn.MSELoss(), (logits, torch.zeros(2000, 8, dtype=torch.float64)))
    assert fit_of(Bench(wide, places=frozenset())).growth == 1 / 8


def test_fit_reads_smoothed_labels_off_the_loss():
    inputs, classes = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)).double(), torch.arange(6) % 3
    model = network(4, 3)
    loss = nn.CrossEntropyLoss(label_smoothing=0.3)
    fit = fit_of(Bench(Problem(model, loss, (inputs, classes)), places=frozenset()))
    aims = 0.7 * nn.functional.one_hot(classes, 3).double() + 0.1
    torch.testing.assert_close(fit.targets, aims, rtol=0, atol=1e-12)
    divergence = (aims * (aims.log() - model(inputs).log_softmax(1))).sum(1)
    torch.testing.assert_close(fit.costs, divergence.detach())
    hard = fit_of(Bench(Problem(model, HalfSquaredError(), (inputs, classes)), places=frozenset()))
    torch.testing.assert_close(hard.targets, nn.functional.one_hot(classes, 3).double(), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "loss",
    [nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]).double()), lambda f, y: (f - f.detach() + 1).mean()],
)
def test_costs_without_a_known_constant_are_refused(loss):
    problem = Problem(network(4, 3), loss, (torch.randn(6, 4).double(), torch.arange(6) % 3))
    with pytest.raises(ValueError, match="growth constant"):
        measure(problem, "sharpening_bound")


def test_a_bound_can_fail_and_says_so():
    lost = Bound("T", "printed", "a ≤ b", 2.0, 1.0, 0.5, (Hypothesis("h", False, "why"), Hypothesis("k", None, "who")))
    assert not lost.holds
    assert lost.proved is False
    assert lost.ratio == 2
    assert "h: FAILS (why)" in str(lost)
    assert "2 > 1" in str(lost)
    assert Bound("T", "printed", "a ≤ b", 0.0, 0.0, 0.0).holds
    assert Bound("T", "printed", "a ≤ b", 1.0, 0.0, 0.0).ratio == math.inf


def test_bad_arguments_get_one_clear_line():
    model = network(1, 2)
    problem = Problem(model, HalfSquaredError(), (torch.rand(5, 1).double(), torch.rand(5, 2).double()))
    cover = Cover.of_support(Cube(1), 5, 0.1)
    with pytest.raises(ValueError, match="held_out must hold at least 1"):
        Theorems(problem, cover, (torch.empty(0, 1), torch.empty(0, 2)))
    with pytest.raises(ValueError, match="target_lipschitz"):
        Theorems(problem, cover, problem.batches[0], target_lipschitz=-1.0)


@pytest.mark.parametrize("softmaxed", [False, True])
def test_variation_comes_from_the_model_where_none_is_given(softmaxed):
    """V by the library's own search and certificate lies around that of the grid, in the space of the cost."""
    model = network(1, 6, 2, seed=3, gain=2.0)
    options = {"loss": nn.CrossEntropyLoss(), "targets": lambda x: model(x).softmax(1).detach()} if softmaxed else {}
    function = (lambda x: model(x).softmax(1)) if softmaxed else model
    twin = theorems(model, Cube(1), 30, function=function, **options)
    found = Theorems(twin.problem, twin.cover, twin.held_out)
    below, above = found.steepness(found.cover.corrected)
    truth = twin.steepness(twin.cover.corrected)[0]
    torch.testing.assert_close(below.norms, truth.norms)
    assert bool((below.variation <= truth.variation * 1.02 + 1e-9).all())
    assert bool((above.variation >= truth.variation - 1e-9).all())
    assert float(below.variation.max()) > 0.7 * float(truth.variation.max())
    assert found.lipschitz().corrected.seen <= twin.lipschitz().corrected.right * 1.02
