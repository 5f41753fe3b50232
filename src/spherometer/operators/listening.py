"""Hearing every linear map of a model while it runs: what enters it, and what comes out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.conv import _ConvNd
from torch.overrides import TorchFunctionMode

_PROJECTIONS = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")


@dataclass(frozen=True)
class Heard:
    """One call of a linear map that is about to happen."""

    name: str  # the module's path; "fc#2" is its second use in a forward pass
    module: nn.Module
    weight: Tensor
    inputs: Tensor


Listener = Callable[[Heard], Callable[[Tensor], None]]  # told of a call; its answer is told the output


def is_linear_map(module: nn.Module) -> bool:
    """Whether a module multiplies its input by a weight: Linear, any convolution, or Hugging Face's Conv1D."""
    kinds = type(module).__mro__
    foreign = any(kind.__name__ == "Conv1D" and kind.__module__.startswith("transformers.") for kind in kinds)
    return isinstance(module, nn.Linear | _ConvNd) or foreign


def unheard(model: nn.Module) -> list[str]:
    """Modules that multiply by weights in ways we cannot hear: recurrent cells, bilinear maps."""
    kinds = nn.RNNBase | nn.RNNCellBase | nn.Bilinear
    found = [(name, module) for name, module in model.named_modules() if isinstance(module, kinds)]
    return [f"{name or 'the model'} ({type(module).__name__})" for name, module in found]


@contextmanager
def listening(model: nn.Module, listener: Listener) -> Iterator[None]:
    """Tell the listener of every call of a linear map, those inside nn.MultiheadAttention included.

    It has to be the innermost mode: `with recorder, listening(...)`, so that others see inside attention too.
    """
    heard = _Names(listener)
    with ExitStack() as stack:
        for name, module in model.named_modules():
            if is_linear_map(module):
                before, after = _hooks(name, heard)
                stack.callback(module.register_forward_pre_hook(before, with_kwargs=True).remove)
                stack.callback(module.register_forward_hook(after).remove)
        heads = {name: module for name, module in model.named_modules() if isinstance(module, nn.MultiheadAttention)}
        if heads:
            inside = stack.enter_context(_InsideAttention(heads, heard))
            for module in heads.values():
                stack.callback(module.register_forward_pre_hook(inside.begin, with_kwargs=True).remove)
        yield


class _Names:
    """Numbers the uses of each map."""

    def __init__(self, listener: Listener) -> None:
        self.listener, self.times = listener, dict[str, int]()

    def __call__(self, name: str, module: nn.Module, weight: Tensor, inputs: Tensor) -> Callable[[Tensor], None]:
        times = self.times[name] = self.times.get(name, 0) + 1
        return self.listener(Heard(name if times == 1 else f"{name}#{times}", module, weight, inputs))


def _hooks(name: str, heard: _Names) -> Any:
    pending: list[Callable[[Tensor], None]] = []

    def before(module: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        pending.append(heard(name, module, module.weight, arguments[0] if arguments else options["input"]))  # type: ignore[arg-type]

    def after(module: nn.Module, arguments: Any, output: Tensor) -> None:  # noqa: ARG001
        pending.pop()(output)

    return before, after


class _InsideAttention(TorchFunctionMode):
    """torch calls the projections of nn.MultiheadAttention as functions, inside one function that modes see as a whole.

    That function is run by its own code with the switch off by which it hands itself to a mode. What enters its first
    projections is what the module was given, not the transposed copies inside: skip connections start there.
    """

    def __init__(self, heads: dict[str, nn.MultiheadAttention], heard: _Names) -> None:
        super().__init__()
        self.heads, self.heard, self.given, self.depth = heads, heard, list[Tensor](), 0

    def begin(self, module: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:  # noqa: ARG002
        """Remember query, key and value, in the order in which they are projected."""
        named = [options[key] for key in ("query", "key", "value") if key in options]
        self.given = [*arguments[:3], *named][:3]

    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        """Go inside attention, and tell of its linear maps."""
        options = options or {}
        if function is functional.multi_head_attention_forward:
            self.depth += 1
            try:
                with self:
                    return _BODY(*arguments, **options)
            finally:
                self.depth -= 1
        owner = self._owner(arguments[1]) if self.depth and function is functional.linear else None
        if owner is None:
            return function(*arguments, **options)
        outermost = not owner[0].endswith("out_proj") and self.given
        done = self.heard(*owner, arguments[1], self.given.pop(0) if outermost else arguments[0])
        output = function(*arguments, **options)
        done(output)
        return output

    def _owner(self, weight: Tensor) -> tuple[str, nn.Module] | None:
        """Name and module of a projection, from its weight or a part of it."""
        for name, module in self.heads.items():
            for key in _PROJECTIONS:
                if _is_part(weight, getattr(module, key)):
                    return f"{name}.{key.removesuffix('_weight')}".lstrip("."), module
            if _is_part(weight, module.out_proj.weight):
                return f"{name}.out_proj".lstrip("."), module.out_proj
        return None


def _is_part(part: Tensor, whole: Tensor | None) -> bool:
    return whole is not None and 0 <= part.data_ptr() - whole.data_ptr() < whole.nbytes


def _body(function: FunctionType) -> FunctionType:
    """A function of torch that does not ask for modes before it starts."""
    names = function.__globals__ | {"has_torch_function": lambda *_: False}
    twin = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    twin.__kwdefaults__ = function.__kwdefaults__
    return twin


_BODY = _body(functional.multi_head_attention_forward)  # type: ignore[arg-type]
