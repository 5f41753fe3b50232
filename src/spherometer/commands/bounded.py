"""From the options of `bound` to a survey of its theorems, and that as tables."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text
from torch import Tensor, nn

from spherometer.commands.errors import describe
from spherometer.commands.subject import LOSSES
from spherometer.operators import DerivativeError
from spherometer.problems import Problem
from spherometer.theory import Cube, Sphere, Support, arguments
from spherometer.theory.statement import Bound as Statement
from spherometer.theory.statement import Hypothesis
from spherometer.theory.surveys import Survey, survey
from spherometer.training import Plain, Training
from spherometer.values import format_with_error
from spherometer.zoo import Dataset, build_model, load_data, load_weights, split, uniform_cube, uniform_sphere
from spherometer.zoo.datasets.dataset import UnknownDataError

if TYPE_CHECKING:
    from spherometer.commands.bound import Bound

DEFAULT_STEPS = 2000
LEARNING_RATE = 3e-3
LEAST = 20  # samples, held-out ones included: the dimension looks at ten neighbours of each
FAMILIES = {"cube": (uniform_cube, Cube), "sphere": (uniform_sphere, Sphere)}
Tell = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Bounded:
    """A survey, and what it is of."""

    headline: str
    steps: int
    train_loss: float
    survey: Survey

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        from spherometer import __version__

        told = {"spherometer": __version__, "subject": self.headline, "steps": self.steps, "loss": self.train_loss}
        return told | self.survey.to_dict()


@dataclass(frozen=True)
class Ground:
    """Samples, held-out samples, and what is known about where they come from."""

    train: Dataset
    held_out: Dataset
    support: Support | None = None
    target_lipschitz: float | None = None


def evaluate(options: Bound, tell: Tell) -> Bounded:
    """Read, train, survey."""
    arguments.probability("epsilon", options.epsilon)
    ground = _ground(options)
    data = ground.train
    if len(data) + len(ground.held_out) < LEAST:
        raise ValueError(
            f"--num and --held-out: expected at least {LEAST} samples together, so that they have a dimension"
        )
    model = build_model(options.model, num_classes=data.num_classes, input_shape=data.input_shape, seed=options.seed)
    if options.weights is not None:
        load_weights(model, options.weights)
    steps = options.steps if options.steps is not None else (0 if options.weights else DEFAULT_STEPS)
    name = options.loss
    if name == "auto":
        name = "half-squared-error" if data.is_regression else "cross-entropy"
    problem = _problem(options.model, model, name, data)
    _train(problem, steps, options.seed, tell)
    tell("evaluating the theorems")
    found = survey(
        problem.in_dtype(torch.float64),
        (ground.held_out.inputs, _targets(ground.held_out, name)),
        support=ground.support,
        epsilon=options.epsilon,
        target_lipschitz=ground.target_lipschitz,
        semidefinite=options.semidefinite,
    )
    trained = f"{steps} steps of Adam" if steps else f"weights of {options.weights.name if options.weights else 'seed'}"
    return Bounded(
        f"{options.model} ({trained}) on {repr(data)[len('Dataset(') : -1]}", steps, problem.loss_at(), found
    )


def wave(inputs: Tensor) -> Tensor:
    """f*(x) = sin(π Σ_k x_k / √n): the Lipschitz constant is π."""
    return (math.pi * inputs.sum(1) / inputs.shape[1] ** 0.5).sin()


def _ground(options: Bound) -> Ground:
    if options.data not in FAMILIES:
        if options.dimension is not None:
            raise ValueError(f"--dimension: that of {options.data} is what it is; cube and sphere can be given one")
        whole = _named(options.data, options.data_root)
        if options.num >= len(whole):
            raise ValueError(
                f"--num: expected fewer than the {len(whole)} samples of {whole.name}, so that some are held out, "
                f"got {options.num}"
            )
        train, rest = split(whole, options.num, seed=options.seed)
        kept = torch.arange(min(options.held_out, len(rest)))
        return Ground(train, rest.take(kept, f"{len(kept)} held out"))
    draw, support = FAMILIES[options.data]
    dimension = options.dimension or 2
    both = draw(options.num + options.held_out, dimension, seed=options.seed, target=wave)
    train, held_out = torch.arange(len(both)).split([options.num, options.held_out])
    return Ground(both.take(train, "f* = sin"), both.take(held_out, "held out"), support(dimension), math.pi)


def _named(name: str, root: Path | None) -> Dataset:
    try:
        return load_data(name, root=root)
    except UnknownDataError as error:
        raise UnknownDataError(name, [*FAMILIES, *error.known]) from None


def _problem(model_name: str, model: nn.Module, loss: str, data: Dataset) -> Problem:
    try:
        return Problem(model, LOSSES[loss](), (data.inputs, _targets(data, loss)))
    except (ValueError, FloatingPointError, DerivativeError):
        raise
    except Exception as error:  # the model may be anybody's
        raise ValueError(f"{model_name} cannot be used with {loss} on {data.name}: {describe(error)}") from error


def _targets(data: Dataset, loss: str) -> Tensor:
    if loss == "cross-entropy" and data.is_regression:
        raise ValueError(f"{data.name}: cross-entropy needs classes, got values: use --loss half-squared-error")
    if loss == "mse" and not data.is_regression:
        return nn.functional.one_hot(data.targets, data.num_classes).float()
    return data.targets


def _train(problem: Problem, steps: int, seed: int, tell: Tell) -> None:
    """All samples in each step; the learning rate falls to nothing, so that the fit comes to rest."""
    if not steps:
        return
    optimizer = torch.optim.Adam(problem.model.parameters(), lr=LEARNING_RATE)
    training = Training(
        problem.model,
        optimizer,
        problem.batches[0],
        Plain(problem.loss),
        schedule=lambda epoch: 0.5 * (1 + math.cos(math.pi * epoch / steps)),
        seed=seed,
    )
    for step in training.run(steps):
        if step.number % 100 == 0:
            tell(f"training: step {step.number} of {steps}, loss {step.loss:.3g}")
    problem.model.eval()


def report(found: Bounded) -> list[Any]:
    """Headline, ingredients, theorems, hypotheses."""
    told = found.survey
    return [f"{found.headline}; loss {found.train_loss:.3g}", _ingredients(told), _theorems(told), _hypotheses(told)]


def _ingredients(told: Survey) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_header=False)
    table.add_column("quantity", style="bold", no_wrap=True)
    table.add_column("value", ratio=1)
    if told.radii is not None:
        table.add_row(f"radius δ, N = {told.num_samples}, ε = {told.epsilon:g}", str(told.radii))
    table.add_row("covering radius", str(told.covering).removeprefix("covering radius "))
    for name, estimate in told.dimensions.items():
        table.add_row(f"dimension, {name}", format_with_error(estimate.value, estimate.error))
    table.add_row(f"Lipschitz constant ({told.space})", str(told.lipschitz.lower))
    table.add_row("", str(told.lipschitz.upper or "no certified upper bound for this model"))
    table.add_row("variation V of the Jacobian", "{:.4g} ≤ V ≤ {:.4g}".format(*told.variation))
    return table


def _theorems(told: Survey) -> Table:
    caption = Text("right: with V certified from above; seen: with V as it was met, from below", style="dim")
    table = Table(box=SIMPLE_HEAD, pad_edge=False, caption=caption, caption_justify="left")
    for name in ("theorem", "left", "", "right", "seen", "hypotheses"):
        table.add_column(name, no_wrap=True)
    for bound in _bounds(told):
        verdict = {True: "all hold", False: "not all hold", None: "not all known"}[bound.proved]
        right, seen = (f"{side:.4g}" if math.isfinite(side) else "no claim" for side in (bound.right, bound.seen))
        left = format_with_error(bound.left, bound.left_error) if bound.left_error else f"{bound.left:.4g}"
        table.add_row(_short(bound), left, "≤" if bound.holds else ">", right, seen, verdict)
    return table


def _hypotheses(told: Survey) -> Table:
    """Every hypothesis once, the doubtful ones first, with the forms that want it."""
    users: dict[Hypothesis, list[Statement]] = {}
    for bound in _bounds(told):
        for hypothesis in bound.hypotheses:
            users.setdefault(hypothesis, []).append(bound)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("", no_wrap=True)
    table.add_column("hypothesis: reason", ratio=1)
    table.add_column("wanted by", no_wrap=True)
    words = {False: "FAILS", None: "not known", True: "holds"}
    for verdict, word in words.items():
        for hypothesis, bounds in users.items():
            if hypothesis.holds is verdict:
                table.add_row(word, f"{hypothesis.name}: {hypothesis.reason}", _wanted_by(bounds))
    return table


def _wanted_by(bounds: list[Statement]) -> str:
    """`4.3, 5.1 printed`; without a form where both want it."""
    printed, corrected = (
        [bound.theorem.split()[-1] for bound in bounds if bound.form == form] for form in ("printed", "corrected")
    )
    if printed == corrected:
        return ", ".join(printed)
    named = [
        f"{', '.join(numbers)} {form}" for numbers, form in ((printed, "printed"), (corrected, "corrected")) if numbers
    ]
    return "\n".join(named)


def _bounds(told: Survey) -> list[Statement]:
    return [bound for forms in told.theorems.values() for bound in (forms.printed, forms.corrected)]


def _short(bound: Statement) -> str:
    return f"{bound.theorem.replace('Theorem ', '')} {bound.form}"
