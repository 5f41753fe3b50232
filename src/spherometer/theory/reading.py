"""A model read as steps with known constants: affine maps, activations, other maps, sums of branches.

A wrong certificate is worse than none. What is read is checked on numbers of our own: every step must treat the samples
of a batch apart, repeat its result, and be affine where it counts as affine; the whole must give the model's outputs.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.dropout import _DropoutNd

from spherometer.theory import operations
from spherometer.theory.activations import KNOWN, Activation, activation_of
from spherometer.theory.layer_constants import (
    Map,
    Shape,
    affine_norm,
    normalisation_constant,
    pooling_constant,
)

NUM = 3  # samples in the batch that is run through the model
CLOSE = 1e-9  # relative, in float64
PICKING = (_BatchNorm, nn.Identity, _DropoutNd, nn.Flatten, nn.Unflatten, nn.ZeroPad1d, nn.ZeroPad2d, nn.PixelShuffle)
AVERAGING = (
    *(nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d, nn.Upsample),
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
)
MAXIMA = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)
Joint = Callable[..., Tensor]


@dataclass(frozen=True)
class Affine:
    """x -> A x + b on one sample of shape `shape`; `picking`: each output is an input times a number, plus a number."""

    apply: Map
    module: nn.Module | None
    shape: Shape
    num_outputs: int
    picking: bool = False

    @cached_property
    def constant(self) -> float:
        """‖A‖₂."""
        return affine_norm(self.apply, self.module, self.shape, self.num_outputs, picking=self.picking)


@dataclass(frozen=True)
class Other:
    """A map of which only the Lipschitz constant is known."""

    constant: float
    softmax: bool = False


@dataclass(frozen=True)
class Sum:
    """Branches added up, each through a linear map of its own; `apart`: side by side, as in a concatenation."""

    branches: tuple[Affine, ...]
    apart: bool


Rule = Affine | Activation | Other | Sum


@dataclass(frozen=True)
class Step:
    """One step, the steps it takes its inputs from (−1 is the model's input), and how a message calls it."""

    name: str
    parents: tuple[int, ...]
    rule: Rule


class ReadingError(ValueError):
    """A model without a certificate; the message names the part and says what to do."""


def double_twin(model: nn.Module) -> nn.Module:
    """A copy on the CPU in double precision and eval mode, without gradients; the model itself is not touched."""
    return copy.deepcopy(model).to("cpu", torch.float64).eval().requires_grad_(False)


def read(twin: nn.Module, sample: Tensor) -> list[Step]:
    """The steps from one sample (1, ...) to the model's outputs, in order; `twin` as `double_twin` makes it."""
    tracer, root = _Tracer(), twin
    if tracer.is_leaf_module(twin, ""):
        root = nn.Sequential(twin)
    try:
        graph = fx.GraphModule(root, tracer.trace(root))
    except Exception as error:
        reason = ": ".join([type(error).__name__, *str(error).splitlines()[:1]])
        raise ReadingError(
            f"{type(twin).__name__} has no certified upper bound: its forward pass cannot be followed "
            f"({reason}); ask for certified=False"
        ) from None
    reader, batch = _Reader(graph), sample.double().repeat_interleave(NUM, dim=0)
    with torch.no_grad():
        outputs = reader.run(batch.clone())
        if not _close(twin(batch.clone()), outputs):
            raise ReadingError(
                f"{type(twin).__name__} has no certified upper bound: its forward pass, followed step by step, gives "
                "other outputs (a hook, or chance); ask for certified=False"
            )
    return reader.steps_to_output()


class _Tracer(fx.Tracer):
    def is_leaf_module(self, module: nn.Module, name: str) -> bool:
        return type(module) in KNOWN or super().is_leaf_module(module, name)


class _Reader(fx.Interpreter):
    """Runs one sample, three times over, through the graph; every tensor that depends on it becomes a step."""

    def __init__(self, graph: fx.GraphModule) -> None:
        super().__init__(graph, garbage_collect_values=False)
        self.extra_traceback = False  # an error is one line
        self.steps: list[Step] = []
        self.places: dict[fx.Node, int] = {}  # of the tensors that depend on the input
        self.versions: dict[fx.Node, int] = {}
        self.order = {node: place for place, node in enumerate(graph.graph.nodes)}
        self.last = -1

    def run_node(self, n: fx.Node) -> Any:
        parents = [node for node in n.all_input_nodes if node in self.places]
        entering = [self.env[parent].clone() for parent in parents]
        result = super().run_node(n)
        self._refuse_changes_of_the_past(n)
        if isinstance(result, Tensor):
            self.versions[n] = _version(result)
        if n.op == "placeholder" and isinstance(result, Tensor):
            self.places[n] = -1
        elif n.op == "output":
            self._end(parents, result)
        elif parents and isinstance(result, Tensor):
            self.steps.append(self._step(n, parents, entering, result))
            self.places[n] = len(self.steps) - 1
        elif parents and not operations.measures(n):
            raise self._refusal(n)
        return result

    def steps_to_output(self) -> list[Step]:
        """Those that the output depends on, in order, the output last."""
        wanted, left = set[int](), [self.last]
        while left:
            place = left.pop()
            if place >= 0 and place not in wanted:
                wanted.add(place)
                left += self.steps[place].parents
        kept = sorted(wanted)
        renumbered = {-1: -1} | {place: new for new, place in enumerate(kept)}
        chosen = [self.steps[place] for place in kept]
        return [Step(step.name, tuple(renumbered[p] for p in step.parents), step.rule) for step in chosen]

    def _end(self, parents: list[fx.Node], result: Any) -> None:
        if not isinstance(result, Tensor):
            raise ReadingError(f"expected a model with one tensor as output, got {type(result).__name__}")
        if not parents:
            raise ReadingError("the model's output does not depend on its input; ask for certified=False")
        self.last = self.places[parents[0]]

    def _refuse_changes_of_the_past(self, node: fx.Node) -> None:
        """A tensor changed in place is another one from then on: nothing may read it again under its old name."""
        for other, version in self.versions.items():
            if _version(self.env[other]) == version:
                continue
            later = any(self.order[user] > self.order[node] for user in other.users)
            if later or other.op == "get_attr":
                raise ReadingError(
                    f"{self._name(node)} changes {other.name} in place, which is used again: no certified upper bound; "
                    "write it without the change, or ask for certified=False"
                )
            self.versions[other] = _version(self.env[other])

    def _name(self, node: fx.Node) -> str:
        if node.op == "call_module":
            return f"{node.target} ({type(self.module.get_submodule(str(node.target))).__name__})"
        return f"{node.name} ({getattr(node.target, '__name__', str(node.target))})"

    def _refusal(self, node: fx.Node) -> ReadingError:
        return ReadingError(f"{self._name(node)} has no certified upper bound here; ask for certified=False")

    def _step(self, node: fx.Node, parents: list[fx.Node], entering: list[Tensor], result: Tensor) -> Step:
        found = self._rule(node, parents, [tuple(tensor.shape[1:]) for tensor in entering], result)
        if found is None or not _keeps(*found, entering, result):
            raise self._refusal(node)
        return Step(self._name(node), tuple(self.places[parent] for parent in parents), found[0])

    def _rule(
        self, node: fx.Node, parents: list[fx.Node], shapes: list[Shape], result: Tensor
    ) -> tuple[Rule, Joint] | None:
        """What is known of a node, and the node as a function of its inputs that depend on the sample."""
        num = math.prod(result.shape[1:])
        if len(parents) == 1 and _first_and_once(node, parents[0]):
            module = operations.module_of(node, self.env)
            if node.op == "call_module" and len(node.args) == 1 and not node.kwargs:
                module = self.module.get_submodule(str(node.target))
            if module is not None:
                rule = _module_rule(module, shapes[0], num)
                return None if rule is None else (rule, module)
            if node.target in operations.RESHAPING:
                sides = tuple(result.shape[1:])
                reshape: Map = lambda x: x.reshape(len(x), *sides)  # noqa: E731
                return Affine(reshape, None, shapes[0], num, picking=True), reshape
        picking = node.target in operations.PICKING
        if not (picking or node.target in operations.AVERAGING) or not set(node.kwargs) <= operations.OPTIONS:
            return None
        joint = self._joint(node, parents)
        branches = tuple(
            Affine(_alone(joint, shapes, place), None, shape, num, picking) for place, shape in enumerate(shapes)
        )
        return (branches[0] if len(branches) == 1 else Sum(branches, node.target in operations.JOINING)), joint

    def _joint(self, node: fx.Node, parents: list[fx.Node]) -> Joint:
        target: Any = node.target
        known = {other: self.env[other] for other in node.all_input_nodes if other not in parents}

        def joint(*values: Tensor) -> Tensor:
            chosen = known | {parent: value.clone() for parent, value in zip(parents, values, strict=True)}
            arguments: Any = fx.node.map_arg((node.args, node.kwargs), chosen.__getitem__)
            positional, options = arguments
            if node.op == "call_method":
                first, *positional = positional
                result: Tensor = getattr(first, target)(*positional, **options)
            else:
                result = target(*positional, **options)
            return result

        return joint


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _first_and_once(node: fx.Node, parent: fx.Node) -> bool:
    """Whether a value enters as the first argument and nowhere else."""
    places = list[fx.Node]()
    fx.node.map_arg((node.args, node.kwargs), places.append)
    return places.count(parent) == 1 and (node.args[0] if node.args else node.kwargs.get("input")) is parent


def _alone(joint: Joint, shapes: list[Shape], place: int) -> Map:
    """One input, the others zero."""

    def apply(x: Tensor) -> Tensor:
        zeros = [x.new_zeros(len(x), *shape) for shape in shapes]
        return joint(*zeros[:place], x, *zeros[place + 1 :])

    return apply


def _keeps(rule: Rule, joint: Joint, entering: list[Tensor], result: Tensor) -> bool:
    """Whether a step repeats its result, treats samples apart, and is affine where it should be."""
    stream = torch.Generator().manual_seed(0)
    first, second = (
        [torch.randn(tensor.shape, generator=stream, dtype=torch.float64) for tensor in entering] for _ in range(2)
    )
    run = partial(_run, joint)
    try:
        whole = run(first)
        rows = [run([tensor[k : k + 1] for tensor in first]).flatten() for k in range(NUM)]
        kept = _close(run(entering), result) and len(whole) == NUM and _close(torch.stack(rows), whole.reshape(NUM, -1))
        if kept and isinstance(rule, Affine | Sum):
            both = [one + other for one, other in zip(first, second, strict=True)]
            kept = _close(whole + run(second), run(both) + run([torch.zeros_like(one) for one in first]))
    except (RuntimeError, ValueError, TypeError, IndexError):
        return False
    return kept


def _run(joint: Joint, values: list[Tensor]) -> Tensor:
    return joint(*(value.clone() for value in values))


def _close(found: Tensor, wanted: Tensor) -> bool:
    if not isinstance(found, Tensor) or found.shape != wanted.shape or found.dtype != wanted.dtype:
        return False
    size = max(float(found.abs().amax()), float(wanted.abs().amax())) if found.numel() else 0.0
    return math.isfinite(size) and bool(((found - wanted).abs() <= CLOSE * size).all())


def _module_rule(module: nn.Module, shape: Shape, num: int) -> Affine | Activation | Other | None:
    if module._forward_hooks or "forward" in vars(module):
        return None  # does more than its kind
    if type(module) in KNOWN:
        return activation_of(module)
    if isinstance(module, _BatchNorm) and module.running_mean is None:
        return None  # uses the statistics of the batch
    if isinstance(module, nn.Upsample) and module.mode == "bicubic":
        return None  # has negative entries
    if isinstance(module, (nn.Linear, _ConvNd, *AVERAGING, *PICKING)):
        return Affine(module, module, shape, num, picking=isinstance(module, PICKING))
    if isinstance(module, MAXIMA):
        return Other(pooling_constant(module))
    if isinstance(module, nn.LayerNorm | nn.GroupNorm) and module.eps > 0:
        return Other(normalisation_constant(module))
    if isinstance(module, nn.Softmax) and module.dim in (1, -1) and len(shape) == 1:
        return Other(0.5, softmax=True)
    return None


def product_constant(steps: list[Step]) -> float:
    """The product of the constants along every path, added up over branches: ‖f‖_Lip is at most that."""
    constants = {-1: 1.0}
    for place, step in enumerate(steps):
        constants[place] = _constant_behind(step.rule, [constants[parent] for parent in step.parents])
    return constants[len(steps) - 1]


def _constant_behind(rule: Rule, entering: list[float]) -> float:
    """The Lipschitz constant behind one step, from those of its inputs."""
    if isinstance(rule, Sum):
        parts = [branch.constant * constant for branch, constant in zip(rule.branches, entering, strict=True)]
        return math.hypot(*parts) if rule.apart else sum(parts)
    (before,) = entering
    if isinstance(rule, Activation):
        low, high = rule.global_slopes()
        return before * max(abs(low), abs(high)) * (1 + rule.gap)
    return before * rule.constant
