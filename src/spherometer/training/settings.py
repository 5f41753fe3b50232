"""A training in words and numbers: what a configuration file or the command line says, checked before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from spherometer.zoo.names import suggest

LOSSES = ("auto", "cross-entropy", "half-squared-error")
PENALTIES = ("none", "mean-jacobian", "input-jacobian", "gradient-norm", "fisher")
DEFENCES = ("none", "at", "trades")
METHODS = ("plain", "sam", "asam", "ejr", "ejr-v2")
BASES = ("sgd", "adam", "adamw", "rmsprop")
SCHEDULES = ("constant", "cosine", "flat-then-linear", "steps")
RADII = {"sam": 0.05, "asam": 0.5, "ejr": 2.0, "ejr-v2": 2.0}  # of paper C, Table 3, for CIFAR-10
OF_METHODS = {"mu": 0.03, "eta": 0.01, "factor": 0.1}
OF_OBJECTIVES = {"coefficient": 0.01, "squared": True, "scaled": True, "radius": 8 / 255, "beta": 6.0}
USUAL = OF_METHODS | OF_OBJECTIVES  # where a part is used
LARGEST = 2**63 - 1  # that torch, SQLite and JSON agree about


@dataclass(frozen=True)
class DataSettings:
    """What is learned."""

    data: str = "digits"
    """name of a data set, or the path of its files"""
    data_root: Path | None = None
    """where the files of a named data set are"""
    num: int | None = None
    """the first so many training samples"""
    num_test: int | None = None
    """the first so many test samples"""
    balanced: bool = False
    """so many samples with equal shares of every class, the first of each, instead of the first of all"""
    classes: tuple[int, ...] = ()
    """these classes only, numbered anew in this order; all where none are given"""
    standardise: str = "none"
    """none, componentwise, channelwise (L35), imagenet or cifar; inside the model where it is attacked"""
    input_scale: float = 1.0
    """factor of the standardised inputs (L31); inside the model where it is attacked"""


@dataclass(frozen=True)
class ModelSettings:
    """What learns."""

    model: str = "digits-mlp"
    """name of the zoo, or package.module:function"""
    width: int | None = None
    """where another than the usual one is wanted"""
    depth: int | None = None
    """where another than the usual one is wanted"""
    batchnorm: bool | None = None
    """with or without, where the model leaves it open"""
    activation: str | None = None
    """relu, tanh, ..."""
    linearised: bool = False
    """its first-order expansion in the weights instead, which stays in the lazy regime (A section 5)"""


@dataclass(frozen=True)
class ObjectiveSettings:
    """What is to become small."""

    loss: str = "auto"
    """auto, cross-entropy or half-squared-error; auto: by the kind of targets"""
    label_smoothing: float = 0.0
    """degree α, the labels' entropy subtracted (L13)"""
    penalty: str = "none"
    """none, mean-jacobian (simple EJR, L8), input-jacobian (L16), gradient-norm or fisher (L18)"""
    coefficient: float | None = None
    """of the penalty; 0.01 where none is given"""
    squared: bool | None = None
    """of input-jacobian, which A leaves open (A-e9): True for ‖J‖², False for ‖J‖; True where none is given"""
    scaled: bool | None = None
    """of input-jacobian: True with the factor N·C, False as A prints it (A-e9); True where none is given"""
    defence: str = "none"
    """none, at (L19) or trades (L20)"""
    radius: float | None = None
    """of the adversary's ball, on inputs in [0, 1]; 8/255 where none is given"""
    norm: str = "linf"
    """linf or l2"""
    attack_steps: int = 10
    """of the adversary, for each batch"""
    attack_step_size: float | None = None
    """2.5 radius/steps where none is given"""
    attack_batchnorm: str | None = None
    """mode of batch norm while the attack runs, train or eval; train for at (L19), eval for trades (L20) if none"""
    beta: float | None = None
    """of trades; 6 where none is given"""
    marked: str | None = None
    """of trades with ejr: whose logits are regularised (L21), clean or adversarial; adversarial where none is given"""


@dataclass(frozen=True)
class MethodSettings:
    """How it becomes small."""

    method: str = "plain"
    """plain, sam, asam, ejr (L9) or ejr-v2 (L10)"""
    base: str = "sgd"
    """sgd, adam, adamw or rmsprop; it makes the step of every method"""
    learning_rate: float = 0.1
    """at the start"""
    momentum: float = 0.0
    """of sgd and rmsprop"""
    weight_decay: float = 0.0
    """never part of a measured loss"""
    rho: float | None = None
    """radius of the two-pass methods; paper C's where none is given"""
    eta: float | None = None
    """of asam: added to the sizes of the weights it adapts to (L12); 0.01 where none is given"""
    mu: float | None = None
    """of ejr-v2; 0.03 where none is given"""
    schedule: str = "constant"
    """constant, cosine (L29), flat-then-linear (L27), or steps (L28)"""
    milestones: tuple[int, ...] = ()
    """epochs at which steps lower the rate"""
    factor: float | None = None
    """by which steps lower the rate; 0.1 where none is given"""
    average_from: int | None = None
    """average the weights from this epoch on (L26) and evaluate the average"""


@dataclass(frozen=True)
class LoopSettings:
    """How long, and in what pieces."""

    epochs: int | None = None
    """passes over the data"""
    steps: int | None = None
    """updates, where no epochs are given"""
    batch_size: int | None = None
    """samples in a step; all where none is given: gradient descent"""
    ghost_size: int | None = None
    """samples that are computed at a time; gradients are averaged (L23)"""
    augment: float = 0.0
    """probability of crop and flip per sample (L15)"""
    padding: int = 4
    """of the crop"""
    mixup: float | None = None
    """β; 0 is a valid one (L14)"""
    mixup_per: str | None = None
    """batch or sample: one share of the mixture for all, or one for each (L14); batch where none is given"""
    stop_accuracy: float | None = None
    """stop at this training accuracy (L34)"""
    stop_loss: float | None = None
    """stop when the mean of the last ten training losses is below (L34)"""
    stop_every: int = 100
    """steps between two looks of a stop rule"""
    evaluate_every: int | None = None
    """steps between two rows; where none is given an epoch, or a hundredth of the run if that is more"""
    checkpoint_every: int | None = None
    """steps between two checkpoints; as rows where none is given"""
    seed: int = 0
    """of weights, batches, and everything else that is random"""


@dataclass(frozen=True)
class MeasurementSettings:
    """What is looked at, besides losses and accuracies."""

    track: tuple[str, ...] = ()
    """quantities measured as it goes, names of `spherometer metrics`"""
    track_batch_statistics: tuple[str, ...] = ()
    """the same with batch norm in training mode, written as batch/NAME"""
    track_every: int = 10
    """steps between two measurements"""
    track_within: tuple[int, ...] = ()
    """pairs of steps; measured only between them (and at the very start), where given"""
    track_num: int | None = None
    """measured on so many training samples, drawn once; all where none is given"""
    track_example: tuple[str, ...] = ()
    """quantities of the first training sample alone, at the same steps, written as example/NAME"""
    measure: tuple[str, ...] = ()
    """quantities measured at the end, written as final_NAME"""
    measure_batch_statistics: tuple[str, ...] = ()
    """the same with batch norm in training mode, written as final_batch_NAME"""
    measure_num: int | None = None
    """measured on so many training samples, drawn once; all where none is given"""
    spectrum: int = 0
    """steps of the Lanczos quadrature of the Hessian's spectral density at the end; 0 for none"""
    batch_spectrum: int = 0
    """the same with batch norm in training mode, kept as batch_spectrum_nodes and batch_spectrum_weights"""
    trajectory: int | None = None
    """steps between two kept places of the weights, randomly projected (L30)"""
    autoattack: int = 0
    """so many test samples of a defended model judged by AutoAttack at the end (L22); 0 for none"""


@dataclass(frozen=True)
class Settings:
    """All of it: six tables of a TOML file, or options of one flat list; names are unique across the tables."""

    data: DataSettings = field(default_factory=DataSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    objective: ObjectiveSettings = field(default_factory=ObjectiveSettings)
    method: MethodSettings = field(default_factory=MethodSettings)
    loop: LoopSettings = field(default_factory=LoopSettings)
    measurement: MeasurementSettings = field(default_factory=MeasurementSettings)

    @classmethod
    def of(cls, tables: Mapping[str, Mapping[str, Any]]) -> Settings:
        """From nested dictionaries that say what differs from the defaults; `differences()` back again.

        Example:
            >>> Settings.of({"method": {"learning_rate": 0.04}, "loop": {"steps": 100}})
        """
        usual, known = cls(), names_by_table()
        for table, entries in tables.items():
            if table not in known:
                raise ValueError(f"no table of settings is called {table!r}; {suggest(table, known)}")
            for name in entries:
                if name not in known[table]:
                    raise ValueError(f"{table} has no setting {name!r}; {suggest(name, known[table])}")
        return replace(
            usual,
            **{
                table: replace(
                    getattr(usual, table),
                    **{name: tuple(value) if isinstance(value, list) else value for name, value in entries.items()},
                )
                for table, entries in tables.items()
            },
        )

    def checked(self) -> Settings:
        """Itself, or a ValueError of one line about the first thing that cannot be."""
        from spherometer.training.checks import check

        check(self)
        return self

    def differences(self) -> dict[str, dict[str, Any]]:
        """What differs from the defaults: the identity of a run, which a later setting with a default leaves alone."""
        usual, told = Settings().plain(), self.plain()
        changed = {
            table: {name: value for name, value in entries.items() if value != usual[table][name]}
            for table, entries in told.items()
        }
        return {table: entries for table, entries in changed.items() if entries}

    def plain(self) -> dict[str, Any]:
        """Nested dictionaries for a manifest; where the data lie is not part of what decides the numbers."""
        told = asdict(self)
        told["data"].pop("data_root")
        return told

    def usual(self, name: str) -> float:
        """A number of `USUAL` as given, or its usual value."""
        given = getattr(self.method if name in OF_METHODS else self.objective, name)
        return USUAL[name] if given is None else given

    @property
    def rho(self) -> float:
        """The radius that is used."""
        chosen = self.method.rho
        return RADII.get(self.method.method, 0.0) if chosen is None else chosen


def names_by_table() -> dict[str, list[str]]:
    """`{"data": ["data", "num", ...], ...}`: what a configuration file may say."""
    usual = Settings()
    return {table.name: [entry.name for entry in fields(getattr(usual, table.name))] for table in fields(usual)}
