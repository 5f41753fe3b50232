"""One call from a name to a model."""

from __future__ import annotations

import inspect

from torch import nn

from spherometer.zoo.models.catalogue import ARCHITECTURES, Architecture
from spherometer.zoo.models.external import build_huggingface, build_imported, build_timm
from spherometer.zoo.models.parts import InputShape, ModelError, check_sizes
from spherometer.zoo.names import shorten, suggest
from spherometer.zoo.randomness import seeded


def model_names() -> tuple[str, ...]:
    """The names of the built-in architectures."""
    return tuple(ARCHITECTURES)


def build_model(
    name: str,
    *,
    num_classes: int | None = None,
    input_shape: InputShape | None = None,
    seed: int = 0,
    width: int | None = None,
    depth: int | None = None,
    batchnorm: bool | None = None,
    activation: str | None = None,
    bias: bool | None = None,
) -> nn.Module:
    """A model by name: one of `model_names()`, `timm:NAME`, `hf:NAME`, or `package.module:function`.

    What is left None keeps the default of the architecture. Weights are drawn from `seed`; the global random state is
    the same after as before.

    Example:
        >>> build_model("digits-mlp", width=32)(torch.zeros(1, 1, 8, 8)).shape
        torch.Size([1, 10])
    """
    sizes: dict[str, object] = {"num_classes": num_classes, "input_shape": input_shape, "width": width, "depth": depth}
    switches: dict[str, object] = {"batchnorm": batchnorm, "activation": activation, "bias": bias}
    options = {key: value for key, value in (sizes | switches).items() if value is not None}
    if num_classes is not None:
        check_sizes(num_classes=num_classes)
    with seeded(seed):
        if ":" in name:
            _refuse(name, options, allowed={"num_classes", "input_shape"})
            return _build_external(name, num_classes, input_shape, seed)
        architecture = ARCHITECTURES.get(name.lower().replace("_", "-"))
        if architecture is None and "." in name:
            raise ModelError(f"expected package.module:function for a model of your own, got {shorten(name)!r}")
        if architecture is None:
            raise ModelError(f"no model called {shorten(name)!r}; {suggest(name, ARCHITECTURES)}")
        _refuse(name, options, allowed=_options_of(architecture))
        return architecture.build(**options)


def _build_external(name: str, num_classes: int | None, input_shape: InputShape | None, seed: int) -> nn.Module:
    origin, _, rest = name.partition(":")
    if not origin or not rest:
        raise ModelError(f"expected timm:NAME, hf:NAME or package.module:function, got {shorten(name)!r}")
    if origin == "timm":
        return build_timm(rest, num_classes=num_classes, input_shape=input_shape, seed=seed)
    if origin == "hf":
        return build_huggingface(rest)
    return build_imported(name, num_classes=num_classes, input_shape=input_shape, seed=seed)


def _options_of(architecture: Architecture) -> set[str]:
    return set(inspect.signature(architecture.build).parameters)


def _refuse(name: str, options: dict[str, object], *, allowed: set[str]) -> None:
    wrong = sorted(set(options) - allowed)
    if wrong:
        raise ModelError(f"{name} has no option {', '.join(wrong)}; it has {', '.join(sorted(allowed))}")
