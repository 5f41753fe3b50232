"""`spherometer measure`: a model, weights and data by name; a table or JSON of named quantities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import tyro

from spherometer.commands.kinds import (
    Bytes,
    CountOrAll,
    CountOrAuto,
    CountOrNone,
    FileOrNone,
    FolderOrNone,
    Seed,
    choice,
)

DEFAULT_METRICS = "loss,gradient_norm,sharpness,smallest_eigenvalue,gauss_newton_norm,hessian_trace"


@dataclass(frozen=True)
class Measure:
    """Measure named quantities of a model on data, each with its error bar and its cost."""

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """name of the zoo, package.module:function that returns a model, timm:NAME or hf:NAME"""
    weights: FileOrNone = None
    """safetensors file or torch state dict; pickled code is never run"""
    data: Annotated[str, tyro.conf.arg(metavar="DATA")] = "digits"
    """digits, mnist, fashion-mnist, cifar10, cifar100, or a file (.npz, idx, CIFAR)"""
    data_root: FolderOrNone = None
    """where the files of a named data set are"""
    split: Annotated[str, choice("train", "test")] = "train"
    """which part of a named data set"""
    num: CountOrAll = None
    """the first so many samples, in file order"""
    standardise: Annotated[str, choice("none", "channelwise", "componentwise", "imagenet", "cifar")] = "none"
    """inputs of [0, 1], or with zero mean and unit spread"""
    loss: Annotated[str, choice("auto", "cross-entropy", "half-squared-error", "mse")] = "auto"
    """auto: cross-entropy for classes, half-squared-error for values"""
    batchnorm: Annotated[str, choice("eval", "train")] = "eval"
    """running statistics, or those of each batch"""
    batch_size: CountOrAll = None
    """samples that see each other in batch norm; memory is looked after by --memory"""
    parameters: Annotated[tuple[str, ...], tyro.conf.arg(metavar="PATTERN ...")] = ("*",)
    """only parameters with these names, such as 'layer1.*'"""
    metrics: Annotated[str, tyro.conf.arg(metavar="A,B:OPTION=VALUE,...")] = DEFAULT_METRICS
    """names from `spherometer metrics`, with options"""
    data_groups: CountOrNone = None
    """add 95 % intervals over the choice of data, by leaving out one of so many groups at a time"""
    dtype: Annotated[str, choice("float32", "float64")] = "float32"
    """precision of the measurement"""
    memory: Bytes = 4e9
    """limit for kept graphs and bases; beyond it things are computed again"""
    keep_memory: bool = False
    """let the process keep freed memory: faster for large batches, on systems with glibc"""
    threads: CountOrAuto = None
    """processor threads"""
    seed: Seed = 0
    """of fresh weights and random vectors"""
    json: bool = False
    """print JSON instead of a table"""

    def run(self) -> int:
        """Measure and print."""
        from spherometer.commands.machine import keep_freed_memory, threads
        from spherometer.commands.output import progress, show, show_json
        from spherometer.commands.subject import checked_metrics, make_problem
        from spherometer.commands.tables import measurement_table
        from spherometer.metrics import measure

        names = checked_metrics(self.metrics)
        if self.keep_memory:
            keep_freed_memory()
        with threads(self.threads), progress("reading model and data") as tell:
            problem, origin = make_problem(self)
            found = measure(problem, names, seed=self.seed, data_groups=self.data_groups, progress=tell)
        if self.json:
            show_json({"spherometer": _version(), **origin, **found.to_dict()})
        else:
            show(_headline(origin), measurement_table(found))
        return 0


def _version() -> str:
    from spherometer import __version__

    return __version__


def _headline(origin: dict[str, Any]) -> str:
    weights = f"weights of {origin['weights']}" if origin["weights"] else "fresh weights"
    return f"{origin['model']} ({weights}) on {origin['data']}"
