"""One contest: the tools take turns, so that a busy moment of the machine hits them all."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from rich.console import Console

console = Console(stderr=True)


@dataclass(frozen=True)
class Outcome:
    """What a tool answered, how many products it took (when that is known), and the error it stated (if it did)."""

    value: float
    products: int | None = None
    stated: float | None = None


@dataclass(frozen=True)
class Row:
    """A tool's line in a contest; the ratio is its time over ours, in the same run."""

    quantity: str
    network: str
    tool: str
    products: str
    seconds: float
    ratio: float
    error: str
    stated: str
    target: str = ""


def contest(
    quantity: str,
    network: str,
    tools: dict[str, Callable[[int], Outcome]],
    *,
    truth: float | None,
    repeats: int = 3,
    once: Collection[str] = (),
    targets: dict[str, str] | None = None,
) -> list[Row]:
    """Run every tool `repeats` times in turn with seeds 0, 1, ...; the first tool is ours and sets the unit of time.

    Args:
        once: tools so far behind that a single run, with the first seed, tells it.
    """
    times: dict[str, list[float]] = {tool: [] for tool in tools}
    outcomes: dict[str, list[Outcome]] = {tool: [] for tool in tools}
    for seed in range(repeats):
        for tool, run in tools.items():
            if seed and tool in once:
                continue
            gc.collect()
            began = time.perf_counter()
            outcomes[tool].append(run(seed))
            times[tool].append(time.perf_counter() - began)
            console.print(f"  {quantity}, {network}: {tool} {times[tool][-1]:.2f} s", style="dim")
    ours = statistics.median(next(iter(times.values())))
    return [
        Row(
            quantity,
            network,
            tool,
            _products(outcomes[tool]),
            statistics.median(times[tool]),
            statistics.median(times[tool]) / ours,
            "" if truth is None else f"{max(abs(o.value / truth - 1) for o in outcomes[tool]):.0e}",
            _stated(outcomes[tool]),
            (targets or {}).get(tool, ""),
        )
        for tool in tools
    ]


def _products(outcomes: list[Outcome]) -> str:
    counts = [outcome.products for outcome in outcomes if outcome.products is not None]
    return f"{statistics.median(counts):g}" if counts else ""


def _stated(outcomes: list[Outcome]) -> str:
    stated = [outcome.stated / abs(outcome.value) for outcome in outcomes if outcome.stated is not None]
    return f"{max(stated):.0e}" if stated else "none"
