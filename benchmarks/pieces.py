"""One Hessian product with the graph in one piece and in several: the numbers behind `operators.memory`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import spherometer as sm
from benchmarks.contest import Row, console
from benchmarks.networks import setting
from benchmarks.products import product_times

ROUNDS = 5


def rows(*, quick: bool) -> Iterator[Row]:
    """The pieces of the rule set the unit of time; the others are the whole, or its quarters where that is the rule."""
    for name in ["6CNN"] if quick else ["6CNN", "VGG-11", "ResNet-18"]:
        console.print(f"  pieces, {name}", style="dim")
        one = setting(name)
        num, operator = len(one.inputs), sm.Hessian(sm.Problem(one.model, one.loss, (one.inputs, one.targets)))
        by_rule = min(num, operator.plan.piece_size or num)
        operators = {f"pieces of {by_rule} (the rule)": operator}
        other = num if by_rule < num else num // 4
        operators[f"pieces of {other}"] = cut = sm.Hessian(operator.problem)
        cut.plan = replace(cut.plan, piece_size=other)
        times = product_times(operators, ROUNDS)
        unit = next(iter(times.values()))
        for label, seconds in times.items():
            wanted = "" if "rule" in label else "≥ 1"
            yield Row(
                "one Hessian product", f"{name}, {num} samples", label, "1", seconds, seconds / unit, "", "", wanted
            )
