"""The catalogue of named quantities: each with its symbol, formula, unit, source and cost."""

from __future__ import annotations

import ast
import difflib
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from spherometer.metrics.bench import Bench
from spherometer.values import Estimate

Function = Callable[..., Estimate]


@dataclass(frozen=True)
class Metric:
    """A named quantity with one meaning: what it is, where it comes from, what it costs, how it is measured."""

    name: str
    symbol: str
    formula: str
    unit: str
    source: str
    cost: str
    function: Function
    needs: frozenset[str] = frozenset()  # places whose Jacobians it asks the bench for

    @property
    def summary(self) -> str:
        """The first sentence of its documentation."""
        return (inspect.getdoc(self.function) or "").split("\n")[0]

    @property
    def options(self) -> dict[str, Any]:
        """Names of its options and their defaults."""
        parameters = list(inspect.signature(self.function).parameters.values())[1:]
        return {entry.name: entry.default for entry in parameters}

    def __call__(self, bench: Bench, **options: Any) -> Estimate:
        """Measure it on a bench."""
        return self.function(bench, **options)


_REGISTRY: dict[str, Metric] = {}


def metric(
    *, symbol: str, formula: str, source: str, cost: str, unit: str = "loss", needs: Iterable[str] = ()
) -> Callable[[Function], Function]:
    """Enter a function (bench, *, options) -> Estimate into the catalogue under its own name.

    Args:
        needs: places ("input", "layers", "weights", "weight_gram") whose Jacobians it takes from `bench.sensitivity`.
    """

    def register(function: Function) -> Function:
        name = function.__name__
        assert name not in _REGISTRY, f"two metrics are called {name}"
        _REGISTRY[name] = Metric(name, symbol, formula, unit, source, cost, function, frozenset(needs))
        return function

    return register


def metrics() -> dict[str, Metric]:
    """The catalogue, by name.

    Example:
        >>> metrics()["sharpness"].formula
        'largest eigenvalue of H'
    """
    return dict(_REGISTRY)


def parse(request: str) -> tuple[Metric, dict[str, Any]]:
    """A metric and its options from `name` or `name:option=value:option=value`."""
    if not isinstance(request, str):
        raise TypeError(f"expected the name of a metric, got {request!r}: `spherometer metrics` lists them all")
    name, *settings = request.strip().split(":")
    if name not in _REGISTRY:
        near = difflib.get_close_matches(name, _REGISTRY, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else "`spherometer metrics` lists them all"
        raise ValueError(f"no metric is called {name!r}: {hint}")
    chosen = _REGISTRY[name]
    return chosen, dict(_parse_setting(chosen, setting) for setting in settings)


def _parse_setting(chosen: Metric, setting: str) -> tuple[str, Any]:
    key, equals, text = setting.partition("=")
    if not equals or key not in chosen.options:
        known = ", ".join(f"{name}={default}" for name, default in chosen.options.items()) or "none"
        raise ValueError(f"expected an option of {chosen.name!r} as name=value (it has: {known}), got {setting!r}")
    try:
        value = ast.literal_eval(text.capitalize() if text in ("true", "false", "none") else text)
    except (ValueError, SyntaxError):
        value = text
    return key, _checked(chosen, key, value)


def _checked(chosen: Metric, key: str, value: Any) -> Any:
    """The value, in the kind of number its default is."""
    default = chosen.options[key]
    if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if default is not None and default is not inspect.Parameter.empty and type(value) is not type(default):
        kind = type(default).__name__
        raise ValueError(f"expected option {key!r} of {chosen.name!r} as {kind} (such as {default!r}), got {value!r}")
    return value
