"""Which function of torch used each parameter, on which input, and what came out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn import functional
from torch.overrides import TorchFunctionMode, resolve_name

from spherometer.operators.nodes import functions_by_hand
from spherometer.problems.batches import tensors_of

CONVOLUTIONS = {
    functional.conv1d: (1, False),
    functional.conv2d: (2, False),
    functional.conv3d: (3, False),
    functional.conv_transpose1d: (1, True),
    functional.conv_transpose2d: (2, True),
    functional.conv_transpose3d: (3, True),
}
NORMALISATIONS = {
    functional.batch_norm,
    functional.layer_norm,
    functional.group_norm,
    functional.rms_norm,
    functional.instance_norm,
}
# In these the output is linear or piecewise linear in each tensor they are given, but they multiply some of them.
PRODUCTS = set(
    "linear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d prelu batch_norm "
    "mul __mul__ __rmul__ div __truediv__".split()
)
# In these the output is linear or piecewise linear in all tensors together.
PIECEWISE_LINEAR = set(
    "relu relu_ leaky_relu threshold hardtanh relu6 max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d "
    "avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d "
    "adaptive_max_pool3d boolean_dispatch flatten unflatten reshape view view_as permute transpose t contiguous "
    "squeeze unsqueeze cat concat stack chunk split add add_ sub sub_ __add__ __radd__ __iadd__ __sub__ __rsub__ "
    "__isub__ neg __neg__ mean sum pad dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout "
    "__getitem__ embedding interpolate clone detach to type float double size dim numel __len__ __get__ "
    "is_floating_point stride".split()
)


@dataclass(frozen=True)
class Use:
    """One call of a function of torch that was given chosen parameters."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    output: Tensor
    parameters: tuple[int, ...]
    edge: GradientEdge | None  # of the output as it was then: `relu_` may have changed the tensor since


@dataclass
class Recorder(TorchFunctionMode):
    """Notes every call that is given a chosen parameter, and whether anything bends other than at kinks.

    `piecewise_linear` answers for identity T12: in a network of such functions, each parameter used once, the output
    is multilinear in the weights between kinks, hence ∂²f/∂θ_j² = 0.
    """

    weights: Sequence[Tensor]
    uses: list[Use] = field(default_factory=list)
    unknown: set[str] = field(default_factory=set)
    results: list[Tensor] = field(default_factory=list)  # the tensors that came out in the end

    def __post_init__(self) -> None:
        super().__init__()
        self._index = {id(weight): k for k, weight in enumerate(self.weights)}

    def __torch_function__(
        self, function: Any, types: Any, arguments: Any = (), options: dict[str, Any] | None = None
    ) -> Any:
        """Call through, and note the call."""
        options = options or {}
        output = function(*arguments, **options)
        name = getattr(function, "__name__", str(function))
        given = tensors_of((arguments, options))
        used = tuple(self._index[id(x)] for x in given if id(x) in self._index)
        if used and isinstance(output, Tensor):
            edge = get_gradient_edge(output) if output.requires_grad else None
            self.uses.append(Use(function, tuple(arguments), options, output, used, edge))
        if not self._bends_at_kinks_only(name, arguments, options, given):
            self.unknown.add(resolve_name(function) or name)
        return output

    def index(self, tensor: Tensor | None) -> int | None:
        """Which of the chosen parameters a tensor is, if any."""
        return self._index.get(id(tensor))

    @property
    def piecewise_linear(self) -> bool:
        """Whether the outputs are multilinear in the weights between kinks."""
        used = [k for use in self.uses for k in use.parameters]
        return not self.unknown and len(used) == len(set(used))

    def _bends_at_kinks_only(self, name: str, arguments: Any, options: dict[str, Any], given: list[Tensor]) -> bool:
        if name not in PRODUCTS:
            return name in PIECEWISE_LINEAR or not any(tensor.requires_grad for tensor in given)
        if name == "batch_norm" and options.get("training", arguments[5] if len(arguments) > 5 else False):
            return False
        if name in ("div", "__truediv__") and len(given) > 1 and given[1].requires_grad:
            return False
        # Two factors may both depend on weights only if one is a weight itself, which nothing else then uses.
        return sum(tensor.requires_grad and id(tensor) not in self._index for tensor in given) <= 1


def record(weights: Sequence[Tensor], run: Callable[[], Any]) -> tuple[Any, Recorder]:
    """The result of `run()` and what it did with the weights."""
    recorder = Recorder(weights)
    with recorder:
        result = run()
    recorder.results.extend(tensors_of(result))
    recorder.unknown.update(node.name() for node in functions_by_hand(recorder.results))  # no mode sees these
    return result, recorder
