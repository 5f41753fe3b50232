"""Named parameters to one flat vector and back: the only place where the two meet."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

AT_ONCE = 1 << 18  # entries in double precision


def selected_names(model: nn.Module, patterns: str | Sequence[str]) -> tuple[str, ...]:
    """Names of the trainable parameters that match a pattern, tied weights once, in the model's order."""
    wanted = (patterns,) if isinstance(patterns, str) else tuple(patterns)
    every = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    for pattern in wanted:
        if pattern not in ("*",) and not any(_matches(name, pattern) for name in every):
            near = difflib.get_close_matches(pattern, every, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"the names are {_few(list(every))}"
            raise ValueError(f"no parameter of the model matches {pattern!r}: {hint}")
    matching = [name for name in every if any(_matches(name, pattern) for pattern in wanted)]
    chosen = tuple(name for name in matching if every[name])
    if not chosen:
        reason = "all that match are frozen (requires_grad=False)" if matching else "the model has none"
        raise ValueError(f"expected at least one trainable parameter for {', '.join(wanted)!r}, got none: {reason}")
    return chosen


def flatten(tensors: Sequence[Tensor], out: Tensor | None = None) -> Tensor:
    """One vector of all entries, tensor after tensor, each in row-major order."""
    if out is None:
        return torch.cat([tensor.reshape(-1) for tensor in tensors])
    for place, tensor in zip(unflatten(out, tensors), tensors, strict=True):
        place.copy_(tensor)  # at once, also where the tensor lies in another order
    return out


def unflatten(vector: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """The tensors of which `vector` is the flat form, as views of it."""
    pieces = vector.split([tensor.numel() for tensor in like])
    return [piece.view(tensor.shape) for piece, tensor in zip(pieces, like, strict=True)]


def double_dot(first: Tensor, second: Tensor) -> Tensor:
    """Σ ab in double precision, some entries at a time: they then stay near the processor."""
    pieces = zip(first.reshape(-1).split(AT_ONCE), second.reshape(-1).split(AT_ONCE), strict=True)
    return torch.stack([torch.dot(a.double(), b.double()) for a, b in pieces]).sum()


def _matches(name: str, pattern: str) -> bool:
    """A pattern is a glob over the whole name, or a module's name, which stands for all that is inside it."""
    return fnmatchcase(name, pattern) or name.startswith(pattern + ".")


def _few(names: list[str]) -> str:
    return ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")
