"""Measurements as a table that is whole on 80 columns: names and numbers are never cut, remarks wrap."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text
from torch import Tensor

from spherometer.metrics import Measurements
from spherometer.values import Estimate, format_with_error


def measurement_table(measurements: Measurements) -> Table:
    """One row for each quantity: value with error bar, where the uncertainty comes from, what it cost."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, caption=conventions_line(measurements), caption_justify="left")
    table.add_column("quantity", style="bold", no_wrap=True)
    table.add_column("value", no_wrap=True)
    table.add_column("uncertainty", ratio=1)
    table.add_column("cost", justify="right", no_wrap=True)
    for name, entry in measurements.items():
        estimate = entry.estimate
        value = Text("\n".join(value_lines(estimate)))
        table.add_row(Text(name.replace(":", "\n  ")), value, _remarks(estimate), _cost(estimate))
    return table


def value_lines(estimate: Estimate) -> list[str]:
    """`12.26 ± 0.02`, one line for each entry of a vector, with its label in front."""
    if not isinstance(estimate.value, Tensor) or not estimate.value.ndim:
        return [format_with_error(estimate.value, estimate.error)]
    values = estimate.value.flatten().tolist()
    errors = estimate.error.flatten().tolist() if isinstance(estimate.error, Tensor) else [estimate.error] * len(values)
    numbers = [format_with_error(value, error) for value, error in zip(values, errors, strict=True)]
    if len(estimate.labels) != len(numbers):
        return numbers
    width = max(map(len, estimate.labels), default=0)
    return [f"{label:<{width}}  {number}" for label, number in zip(estimate.labels, numbers, strict=True)]


def remark_lines(estimate: Estimate) -> list[str]:
    """Where the uncertainty comes from, the interval over data, and what was noted; non-convergence is told apart."""
    origin = "exact" if estimate.source == "exact" else f"{estimate.kind}, {estimate.source}"
    interval = "95 % over data: {:.4g} to {:.4g}".format(*estimate.interval) if estimate.interval else ""
    return [line for line in (origin, interval, estimate.note) if line]


def conventions_line(measurements: Measurements) -> Text:
    """The conventions that decide what the numbers mean, in a sentence."""
    told = measurements.conventions
    return Text(
        f"{told['loss']}, mean over {told['terms']:g} terms; {told['parameters']:,} parameters; "
        f"batch norm {told['batchnorm']}, dropout {told['dropout']}; {told['dtype']}; seed {told['seed']}",
        style="dim",
    )


def _cost(estimate: Estimate) -> str:
    products = f"{estimate.products} products\n" if estimate.products else ""
    return f"{products}{estimate.seconds:.2f} s"


def _remarks(estimate: Estimate) -> Text:
    text = Text("\n".join(remark_lines(estimate)))
    if not estimate.status:
        text.append(f"\nNOT CONVERGED: {estimate.status.message}", style="bold red")
    return text
