"""A model read as steps with known constants: affine maps, activations, other maps, sums of branches."""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.dropout import _DropoutNd

from spherometer.theory.activations import KNOWN, Activation, activation_of
from spherometer.theory.layer_constants import (
    Map,
    Shape,
    affine_norm,
    normalisation_constant,
    pooling_constant,
)

DIAGONAL = (_BatchNorm, nn.Identity, _DropoutNd)
AVERAGING = (
    *(nn.Flatten, nn.Unflatten, nn.ZeroPad1d, nn.ZeroPad2d, nn.Upsample, nn.PixelShuffle),
    *(nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
)
MAXIMA = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)
FUNCTIONS: dict[Any, Callable[[], nn.Module]] = {
    torch.relu: nn.ReLU, functional.relu: nn.ReLU, "relu": nn.ReLU,
    torch.tanh: nn.Tanh, functional.tanh: nn.Tanh, "tanh": nn.Tanh,
    torch.sigmoid: nn.Sigmoid, functional.sigmoid: nn.Sigmoid, "sigmoid": nn.Sigmoid,
    functional.gelu: nn.GELU, functional.silu: nn.SiLU,
}  # fmt: skip
ADDING = (operator.add, operator.iadd, torch.add, "add", "add_")
SCALING = (operator.sub, torch.sub, "sub", operator.mul, torch.mul, "mul", operator.truediv, torch.div, "div")
SELECTING = (
    torch.flatten,
    "flatten",
    torch.squeeze,
    "squeeze",
    torch.unsqueeze,
    "unsqueeze",
    torch.mean,
    "mean",
    operator.getitem,
    functional.pad,
)
RESHAPING = (torch.reshape, "reshape", "view")


@dataclass(frozen=True)
class Affine:
    """x -> A x + b on one sample of shape `shape`."""

    apply: Map
    module: nn.Module | None
    shape: Shape
    num_outputs: int
    diagonal: bool = False

    @cached_property
    def constant(self) -> float:
        """‖A‖₂."""
        return affine_norm(self.apply, self.module, self.shape, self.num_outputs, diagonal=self.diagonal)


@dataclass(frozen=True)
class Other:
    """A map of which only the Lipschitz constant is known."""

    constant: float
    softmax: bool = False


@dataclass(frozen=True)
class Sum:
    """Branches added up."""


@dataclass(frozen=True)
class Step:
    """One step, the steps it takes its inputs from (−1 is the model's input), and how a message calls it."""

    name: str
    parents: tuple[int, ...]
    rule: Affine | Activation | Other | Sum


class ReadingError(ValueError):
    """A model without a certificate; the message names the part and says what to do."""


def double_twin(model: nn.Module) -> nn.Module:
    """A copy on the CPU in double precision and eval mode, without gradients; the model itself is not touched."""
    return copy.deepcopy(model).to("cpu", torch.float64).eval().requires_grad_(False)


def read(twin: nn.Module, sample: Tensor) -> list[Step]:
    """The steps from one sample (1, ...) to the model's outputs, in order; `twin` as `double_twin` makes it."""
    tracer = _Tracer()
    if tracer.is_leaf_module(twin, ""):
        twin = nn.Sequential(twin)
    try:
        graph = fx.GraphModule(twin, tracer.trace(twin))
    except Exception as error:
        raise ReadingError(
            f"{type(twin).__name__} has no certified upper bound: its forward pass cannot be followed "
            f"({type(error).__name__}: {str(error).splitlines()[0]}); ask for certified=False"
        ) from None
    reader = _Reader(graph)
    with torch.no_grad():
        reader.run(sample.double().repeat_interleave(2, dim=0))
    return reader.steps


class _Tracer(fx.Tracer):
    def is_leaf_module(self, module: nn.Module, name: str) -> bool:
        return type(module) in KNOWN or super().is_leaf_module(module, name)


class _Reader(fx.Interpreter):
    """Runs one sample, twice, through the graph; every tensor that depends on it becomes a step."""

    def __init__(self, graph: fx.GraphModule) -> None:
        super().__init__(graph, garbage_collect_values=False)
        self.extra_traceback = False  # an error is one line
        self.steps: list[Step] = []
        self.places: dict[fx.Node, int] = {}  # of the tensors that depend on the input

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        parents = [node for node in n.all_input_nodes if node in self.places]
        if n.op == "placeholder" and isinstance(result, Tensor):
            self.places[n] = -1
        elif n.op != "output" and parents and isinstance(result, Tensor):
            self.steps.append(self._step(n, parents, result))
            self.places[n] = len(self.steps) - 1
        elif n.op == "output" and not isinstance(result, Tensor):
            raise ReadingError(f"expected a model with one tensor as output, got {type(result).__name__}")
        return result

    def _step(self, node: fx.Node, parents: list[fx.Node], result: Tensor) -> Step:
        module = self.module.get_submodule(str(node.target)) if node.op == "call_module" else None
        kind = type(module).__name__ if module is not None else getattr(node.target, "__name__", str(node.target))
        name = f"{node.target} ({kind})" if module is not None else f"{node.name} ({kind})"
        entering = self.env[parents[0]]
        shapes = (tuple(entering.shape[1:]), math.prod(result.shape[1:]))
        rule: Affine | Activation | Other | Sum | None
        if len(parents) > 1:
            rule = Sum() if node.target in ADDING and len(node.all_input_nodes) == 2 else None
        elif module is not None:
            rule = _module_rule(module, *shapes)
        else:
            rule = self._function_rule(node, parents[0], result, *shapes)
        if rule is None:
            raise ReadingError(f"{name} has no certified upper bound here; ask for certified=False")
        return Step(name, tuple(self.places[parent] for parent in parents), rule)

    def _function_rule(
        self, node: fx.Node, parent: fx.Node, result: Tensor, shape: Shape, num: int
    ) -> Affine | Activation | Other | None:
        if node.target in FUNCTIONS:
            return activation_of(FUNCTIONS[node.target]()) if not node.kwargs else None
        first = node.args[0] is parent and sum(argument is parent for argument in node.args) == 1
        batched = result.shape[:1] == (2,)
        if node.target in RESHAPING and first:
            sides = tuple(result.shape[1:])
            return Affine(lambda x: x.reshape(len(x), *sides), None, shape, num) if batched else None
        if node.target in SELECTING and first and batched and _keeps_signs(node):
            return Affine(self._apply(node, parent), None, shape, num)
        if (node.target in ADDING or (node.target in SCALING and first)) and num == math.prod(shape):
            return Affine(self._apply(node, parent), None, shape, num, diagonal=True)
        return None

    def _apply(self, node: fx.Node, parent: fx.Node) -> Map:
        """The node as a function of its only input that depends on the sample."""
        target: Any = node.target
        known = {other: self.env[other] for other in node.all_input_nodes if other is not parent}

        def apply(x: Tensor) -> Tensor:
            arguments: Any = fx.node.map_arg((node.args, node.kwargs), lambda n: x if n is parent else known[n])
            (first, *rest), options = arguments
            function: Any = getattr(first, target) if node.op == "call_method" else partial(target, first)
            result: Tensor = function(*rest, **options)
            return result

        return apply


def _keeps_signs(node: fx.Node) -> bool:
    """Padding only with zeros."""
    if node.target is not functional.pad:
        return True
    return len(node.args) < 3 and node.kwargs.get("mode", "constant") == "constant" and not node.kwargs.get("value")


def _module_rule(module: nn.Module, shape: Shape, num: int) -> Affine | Activation | Other | None:
    if type(module) in KNOWN:
        return activation_of(module)
    if isinstance(module, _BatchNorm) and module.running_mean is None:
        return None  # uses the statistics of the batch
    if isinstance(module, nn.Upsample) and module.mode == "bicubic":
        return None  # has negative entries
    if isinstance(module, (nn.Linear, _ConvNd, *AVERAGING, *DIAGONAL)):
        return Affine(module, module, shape, num, diagonal=isinstance(module, DIAGONAL))
    if isinstance(module, MAXIMA):
        return Other(pooling_constant(module))
    if isinstance(module, nn.LayerNorm | nn.GroupNorm):
        return Other(normalisation_constant(module))
    if isinstance(module, nn.Softmax) and module.dim in (1, -1) and len(shape) == 1:
        return Other(0.5, softmax=True)
    return None


def product_constant(steps: list[Step]) -> float:
    """The product of the constants along every path, added up over branches: ‖f‖_Lip is at most that."""
    constants = {-1: 1.0}
    for place, step in enumerate(steps):
        entering = sum(constants[parent] for parent in step.parents)
        constants[place] = entering * rule_constant(step.rule)
    return constants[len(steps) - 1]


def rule_constant(rule: Affine | Activation | Other | Sum) -> float:
    """The Lipschitz constant of one step."""
    if isinstance(rule, Activation):
        low, high = rule.global_slopes()
        return max(abs(low), abs(high)) * (1 + rule.gap)
    return 1.0 if isinstance(rule, Sum) else rule.constant
