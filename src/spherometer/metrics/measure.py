"""Measure a set of named quantities of a problem, sharing the work between them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from rich.table import Table
from rich.text import Text
from scipy.special import stdtrit

from spherometer.estimators import Nearby
from spherometer.metrics.bench import Bench
from spherometer.metrics.registry import Metric, parse
from spherometer.problems import Problem
from spherometer.problems.batches import Chosen, num_samples, take
from spherometer.values import Estimate, Status, format_with_error


@dataclass(frozen=True)
class Measurement:
    """One quantity as it was measured: the metric, its options and the estimate."""

    metric: Metric
    options: dict[str, Any]
    estimate: Estimate

    @property
    def value(self) -> Any:
        """The number, or a tensor of numbers with `estimate.labels`."""
        return self.estimate.value

    @property
    def error(self) -> Any:
        """One standard error or a certified bound: `estimate.kind` says which."""
        return self.estimate.error

    @property
    def status(self) -> Status:
        """Whether the estimate reached the accuracy that was asked for."""
        return self.estimate.status

    def __float__(self) -> float:
        return float(self.estimate)

    def __repr__(self) -> str:
        return f"{self.metric.name} = {self.estimate!r}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON: `paper` is where the quantity comes from, `source` where its error comes from."""
        described = {key: getattr(self.metric, key) for key in ("name", "symbol", "formula", "unit")}
        options = self.metric.options | self.options
        return described | {"paper": self.metric.source, "options": options} | self.estimate.to_dict()


class Measurements(Mapping[str, Measurement]):
    """The measurements of one call, by the name they were asked for; prints as a table."""

    def __init__(self, entries: dict[str, Measurement], conventions: dict[str, Any]) -> None:
        self._entries, self.conventions = entries, conventions

    def __getitem__(self, name: str) -> Measurement:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON: the conventions, then each measurement."""
        return {
            "conventions": self.conventions,
            "measurements": {name: entry.to_dict() for name, entry in self.items()},
        }

    def __rich__(self) -> Table:
        table = Table(title=_headline(self.conventions), title_justify="left", title_style="dim")
        table.add_column("metric", style="bold")
        for column in ("symbol", "value", "uncertainty", "products", "seconds"):
            table.add_column(column, justify="left" if column in ("symbol", "uncertainty") else "right")
        for name, entry in self.items():
            estimate = entry.estimate
            cost = (str(estimate.products), f"{estimate.seconds:.2f}")
            table.add_row(name, entry.metric.symbol, _shown(estimate), _uncertainty(estimate), *cost)
        return table

    def __repr__(self) -> str:
        from rich.console import Console

        console = Console(width=110, color_system=None)
        with console.capture() as captured:
            console.print(self)
        return captured.get().rstrip()


def measure(
    problem: Problem,
    names: str | Iterable[str],
    *,
    seed: int = 0,
    data_groups: int | None = None,
    progress: Callable[[str], None] | None = None,
) -> Measurements:
    """Measure named quantities of a problem.

    Args:
        names: one or several of the catalogue `metrics()`, with options as "name:option=value".
        data_groups: leave out one group of data after the other and give a 95 % interval over data samples
            (delete-a-group jackknife; whole batches are the unit where samples see each other). Costs that many
            measurements more.
        progress: told the name of each metric as its turn comes.

    Example:
        >>> m = measure(problem, ["sharpness", "hessian_trace"], seed=0)
        >>> m["sharpness"].value, m["sharpness"].error
    """
    requests = {name: parse(name) for name in ([names] if isinstance(names, str) else names)}
    bench = bench_for(problem, requests, seed=seed)
    estimates = measured_on(bench, requests, progress)
    if data_groups is not None:
        estimates = _with_intervals(bench, requests, estimates, data_groups, progress)
    entries = {name: Measurement(*requests[name], estimates[name]) for name in requests}
    return Measurements(entries, conventions(problem, seed, num_terms=bench.num_terms))


def conventions(problem: Problem, seed: int, *, num_terms: float | None = None) -> dict[str, Any]:
    """How the numbers were taken, in words that can be compared a year later; terms are counted if not known."""
    return {
        "loss": type(problem.loss).__name__ if isinstance(problem.loss, torch.nn.Module) else _name(problem.loss),
        "terms": problem.num_terms if num_terms is None else num_terms,
        "parameters": problem.num_parameters,
        "selected": problem.parameters if isinstance(problem.parameters, str) else list(problem.parameters),
        "batchnorm": problem.batchnorm,
        "dropout": "off" if problem.dropout is None else f"replayed from seed {problem.dropout}",
        "dtype": str(problem.precision).removeprefix("torch."),
        "device": str(problem.device),
        "seed": seed,
    }


Requests = Mapping[str, tuple[Metric, dict[str, Any]]]


def bench_for(
    problem: Problem, requests: Requests, *, seed: int = 0, starts: Mapping[str, Nearby] | None = None
) -> Bench:
    """A bench that knows which Jacobians these metrics will ask for."""
    if not requests:
        raise ValueError("expected at least one metric, got none: `metrics()` lists them")
    places = frozenset[str]().union(*(chosen.needs for chosen, _ in requests.values()))
    return Bench(problem, seed=seed, starts=starts, places=places)


def measured_on(bench: Bench, requests: Requests, progress: Callable[[str], None] | None = None) -> dict[str, Estimate]:
    """The estimate of each request, in turn, with the time it took."""
    estimates = {}
    for name, (chosen, options) in requests.items():
        if progress:
            progress(name)
        began = time.perf_counter()
        estimate = chosen(bench, **options)
        estimates[name] = replace(estimate, seconds=time.perf_counter() - began)
    return estimates


def _with_intervals(
    bench: Bench, requests: Requests, estimates: dict[str, Estimate], num: int, progress: Any
) -> dict[str, Estimate]:
    scalars = {name: request for name, request in requests.items() if _is_scalar(estimates[name])}
    values: dict[str, list[float]] = {name: [] for name in scalars}
    for number, data in enumerate(_without_each_group(bench.problem, num), start=1):
        tell = (lambda name, number=number: progress(f"{name} without data group {number}/{num}")) if progress else None
        part_bench = Bench(bench.problem.restricted(data), seed=bench.seed, starts=bench.nearby, places=bench.places)
        part = measured_on(part_bench, scalars, tell)
        for name, estimate in part.items():
            values[name].append(float(estimate.value))
    left_out = {name: torch.tensor(found, dtype=torch.float64) for name, found in values.items()}
    return estimates | {name: _jackknifed(estimates[name], left_out[name]) for name in scalars}


def _jackknifed(estimate: Estimate, left_out: torch.Tensor) -> Estimate:
    """value ± t √((G−1)/G Σ(θ_(g) − mean)²) over the values θ_(g) without group g (Efron 1982)."""
    num = len(left_out)
    deviation = float((left_out - left_out.mean()).square().sum() * (num - 1) / num) ** 0.5
    reach = float(stdtrit(num - 1, 0.975)) * deviation
    return replace(estimate, interval=(float(estimate.value) - reach, float(estimate.value) + reach))


def _without_each_group(problem: Problem, num: int) -> Iterator[Chosen]:
    batches = list(problem.batches)
    if len(batches) < num:
        batches = _cut(problem, batches, num)
    if num < 2:
        raise ValueError(f"expected at least 2 data_groups, got {num}: one after the other is left out")
    if num > len(batches):
        raise ValueError(
            f"expected data_groups of at most {len(batches)}, the number of samples, got {num}: samples that see each "
            "other (batch norm in train mode) count as one for each batch"
        )
    groups = torch.arange(len(batches)).tensor_split(num)
    for group in groups:
        left_out = set(group.tolist())
        yield Chosen((k, batch) for k, batch in enumerate(batches) if k not in left_out)


def _cut(problem: Problem, batches: list[Any], num: int) -> list[Any]:
    sizes = [num_samples(batch) or 0 for batch in batches]
    if not problem.splittable or 0 in sizes:
        return batches
    step = max(1, sum(sizes) // num)
    return [
        take(batch, start, min(start + step, size))
        for batch, size in zip(batches, sizes, strict=True)
        for start in range(0, size, step)
    ]


def _is_scalar(estimate: Estimate) -> bool:
    return not isinstance(estimate.value, torch.Tensor) or estimate.value.numel() == 1


def _shown(estimate: Estimate) -> Text:
    if not estimate.labels:
        return Text(format_with_error(estimate.value, estimate.error))
    assert isinstance(estimate.value, torch.Tensor)
    errors = estimate.error if isinstance(estimate.error, torch.Tensor) else torch.zeros_like(estimate.value)
    rows = zip(estimate.labels, estimate.value.tolist(), errors.tolist(), strict=True)
    return Text("\n".join(f"{label}  {format_with_error(value, error)}" for label, value, error in rows))


def _uncertainty(estimate: Estimate) -> Text:
    words = "exact" if estimate.source == "exact" else f"{estimate.kind}, {estimate.source}"
    if estimate.interval:
        words += "\n95 % over data: {:.4g} … {:.4g}".format(*estimate.interval)
    if estimate.note:
        words += f"\n{estimate.note}"
    text = Text(words)
    if not estimate.status:
        text.append(f"\nNOT CONVERGED: {estimate.status.message}", style="bold red")
    return text


def _headline(described: dict[str, Any]) -> str:
    return (
        f"{described['loss']} over {described['terms']:g} terms, {described['parameters']:,} parameters, "
        f"batch norm {described['batchnorm']}, dropout {described['dropout']}, {described['dtype']}"
    )


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", type(function).__name__))
