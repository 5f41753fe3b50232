"""A recipe: an experiment of a paper as runs, figure and claims, at three scales; a variant is its parent with what
differs.

>>> @recipe("A-F1", "label smoothing tames sharpening", finding="more smoothing, less sharpening", minutes=4)
... def smoothing(scale, *, model="vgg11-bn", learning_rate=0.08):
...     return Experiment(runs, claims, figure)
>>> variant("A-F7", smoothing, learning_rate=0.04)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Literal, get_args

from spherometer.recipes.claims import AnyClaim
from spherometer.recipes.results import Results, Run
from spherometer.zoo.names import suggest

Scale = Literal["smoke", "laptop", "paper"]
SCALES: tuple[Scale, ...] = get_args(Scale)
SMOKE = "smoke: a few steps on few samples, to try the machinery; nothing it says is about the paper"
AUTHORS = {"A": " here; its authors took about 3,500 GPU hours for all of paper A"}  # A App B


@dataclass(frozen=True)
class Table:
    """Numbers of the paper beside ours, or ours that the figure does not show."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, eq=False)
class Experiment:
    """What a recipe comes to at one scale.

    Args:
        claims: the sentences of the paper as tests, fixed here before anything runs.
        figure: the picture from the finished runs, as `figures.panels` describes it.
        departures: what differs from the paper, and what its text leaves open and was chosen here.
        then: runs that can only be planned when the first ones are done (the same number of steps as another run).
        table: the paper's numbers beside ours, or ours that the figure does not show.
    """

    runs: Sequence[Run]
    claims: Sequence[AnyClaim]
    figure: Callable[[Results], Any]
    departures: Sequence[str] = ()
    then: Callable[[Results], Sequence[Run]] | None = None
    table: Callable[[Results], Table] | None = None


@dataclass(frozen=True, eq=False)
class Recipe:
    """An experiment by its id and its idea; `minutes` is about how long its laptop scale takes on two cores."""

    id: str
    idea: str
    finding: str
    minutes: float
    build: Callable[[Scale], Experiment]
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def paper(self) -> str:
        """The letter of its paper, or TH for our evaluation of the theory."""
        return self.id.partition("-")[0]

    def time(self, scale: Scale) -> str:
        """How long it takes, as far as is known."""
        if not self.minutes:
            return "seconds"  # nothing is trained
        known = {"smoke": "seconds to a minute", "laptop": f"about {self.minutes:g} min on two cores"}
        return known.get(scale, f"not known, nobody has run it{AUTHORS.get(self.paper, '')}")

    def at(self, scale: str) -> Experiment:
        """The experiment at a scale; of smoke's departures only those are told that are the paper scale's too."""
        if scale not in SCALES:
            raise ValueError(f"no scale is called {scale!r}; {suggest(scale, SCALES)}")
        experiment = self.build(scale)
        if scale != "smoke":
            return experiment
        kept = set(self.build("paper").departures)
        return replace(experiment, departures=[SMOKE, *(told for told in experiment.departures if told in kept)])


_RECIPES: dict[str, Recipe] = {}
Build = Callable[..., Experiment]


def recipe(name: str, idea: str, *, finding: str, minutes: float) -> Callable[[Build], Build]:
    """Put a function `(scale, **options) -> Experiment` into the catalogue."""

    def register(build: Build) -> Build:
        _add(Recipe(name, idea, finding, minutes, build))
        return build

    return register


def variant(
    name: str,
    parent: Build,
    idea: str | None = None,
    /,
    *,
    finding: str | None = None,
    minutes: float | None = None,
    **options: Any,
) -> None:
    """The parent again with other options; what is not said is the parent's."""
    known = next(entry for entry in _RECIPES.values() if entry.build is parent)
    _add(
        Recipe(
            name,
            idea or known.idea,
            finding or known.finding,
            known.minutes if minutes is None else minutes,
            partial(parent, **options),
            options,
        )
    )


def recipes() -> dict[str, Recipe]:
    """The catalogue by id, paper after paper."""
    package = import_module("spherometer.recipes.papers")
    for module in sorted(entry.name for entry in iter_modules(package.__path__)):
        import_module(f"{package.__name__}.{module}")
    return dict(sorted(_RECIPES.items(), key=lambda entry: place(entry[0])))


def find_recipe(name: str) -> Recipe:
    """The recipe of an id, in any spelling of its letters."""
    known = recipes()
    if name.upper() not in known:
        raise ValueError(f"no recipe is called {name!r}; {suggest(name.upper(), known)}; `spherometer recipes` has all")
    return known[name.upper()]


def at_scale(scale: Scale, *, smoke: Any, laptop: Any, paper: Any) -> Any:
    """The one of three values that belongs to the scale.

    Example:
        >>> at_scale("laptop", smoke=20, laptop=1000, paper=100_000)
        1000
    """
    return {"smoke": smoke, "laptop": laptop, "paper": paper}[scale]


def _add(entry: Recipe) -> None:
    if entry.id in _RECIPES:
        raise ValueError(f"expected a new id of a recipe, got {entry.id} twice")
    _RECIPES[entry.id] = entry


def place(name: str) -> tuple[Any, ...]:
    """A-F2 before A-F10, figures before tables."""
    paper, _, rest = name.partition("-")
    letters = rest.rstrip("0123456789")
    return paper, letters, int(rest[len(letters) :] or 0)
