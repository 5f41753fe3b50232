"""`spherometer bound`: what paper A proves about a fitted model, evaluated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro

from spherometer.commands.kinds import Count, CountOrAuto, FileOrNone, FolderOrNone, Seed, StepsOrAuto, choice


@dataclass(frozen=True)
class Bound:
    """Evaluate the theorems of paper A on a fitted model: both sides, and which hypotheses hold.

    Theorem 4.3 bounds the Lipschitz constant of the model by its Jacobians at the samples and their variation V on
    balls around them; 5.1 says how steep a model must be to fit its targets; 6.1 bounds the error on unseen samples.
    Each is shown as printed and corrected. On cube and sphere radius and target are known; elsewhere the balls reach
    the held-out samples. Without --weights a small network is trained first.
    """

    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="[DATA]")] = "digits"
    """cube, sphere, digits, mnist, fashion-mnist, cifar10, cifar100, or a file (.npz, idx, CIFAR)"""
    dimension: CountOrAuto = None
    """of cube or sphere; auto: 2"""
    num: Count = 200
    """training samples"""
    held_out: Count = 500
    """samples that are not trained on: they probe the covering and the error"""
    epsilon: Annotated[float, tyro.conf.arg(metavar="P")] = 0.1
    """probability with which a radius may fail, between 0 and 1"""
    model: Annotated[str, tyro.conf.arg(metavar="MODEL")] = "digits-mlp"
    """name of the zoo, package.module:function that returns a model, timm:NAME or hf:NAME"""
    weights: FileOrNone = None
    """safetensors file or torch state dict; pickled code is never run"""
    data_root: FolderOrNone = None
    """where the files of a named data set are"""
    loss: Annotated[str, choice("auto", "cross-entropy", "half-squared-error", "mse")] = "auto"
    """auto: cross-entropy for classes, half-squared-error for values"""
    steps: StepsOrAuto = None
    """of training on all samples by Adam; auto: 2000, and none where weights are given"""
    semidefinite: bool = False
    """the tightest certificate of the Lipschitz constant, for small networks without branches; minutes (extra sdp)"""
    threads: CountOrAuto = None
    """processor threads"""
    seed: Seed = 0
    """of samples, fresh weights and searches"""
    json: bool = False
    """print JSON instead of tables"""

    def run(self) -> int:
        """Train where asked to, evaluate, print; 1 if a theorem whose hypotheses all hold does not."""
        from spherometer.commands.bounded import evaluate, report
        from spherometer.commands.machine import threads
        from spherometer.commands.output import progress, show, show_json

        with threads(self.threads), progress("reading model and data") as tell:
            found = evaluate(self, tell)
        if self.json:
            show_json(found.to_dict())
        else:
            show(*report(found))
        return 0 if found.survey.sound else 1
