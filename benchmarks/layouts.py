"""One Hessian product with images in either memory layout: the numbers behind `operators.layout`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

import spherometer as sm
from benchmarks.contest import Row, console
from benchmarks.networks import setting
from benchmarks.products import product_times
from spherometer.operators.layout import quicker_layout

CASES = (("6CNN", "eval"), ("VGG-11", "eval"), ("ResNet-18", "train"), ("ResNet-18", "eval"))
LAYOUTS = {"channels first": torch.contiguous_format, "channels last": torch.channels_last}
ROUNDS, SAMPLES = 7, 64


def rows(*, quick: bool) -> Iterator[Row]:
    """Both layouts in turn on kept graphs; the one that the rule takes is named and sets the unit of time."""
    for name, mode in CASES[:1] if quick else CASES:
        times, chosen = _times(name, mode)
        for layout, seconds in sorted(times.items(), key=lambda entry: entry[0] != chosen):
            label = f"{layout}{' (the rule)' if layout == chosen else ''}"
            ratio = seconds / times[chosen]
            wanted = "" if layout == chosen else "≥ 1"
            yield Row("one Hessian product", f"{name}, batch norm {mode}", label, "1", seconds, ratio, "", "", wanted)


def _times(name: str, mode: str) -> tuple[dict[str, float], str]:
    one = setting(name)
    data = one.inputs[:SAMPLES], one.targets[:SAMPLES]
    operators = {}
    for label, layout in LAYOUTS.items():
        operator = sm.Hessian(sm.Problem(one.model, one.loss, data, batchnorm=mode))
        operator.plan = replace(operator.plan, layout=layout)
        operators[label] = operator
    by_rule = quicker_layout(sm.Problem(one.model, one.loss, data, batchnorm=mode))
    console.print(f"  layouts, {name}, batch norm {mode}", style="dim")
    rule = "channels last" if by_rule is torch.channels_last else "channels first"
    return product_times(operators, ROUNDS), rule
