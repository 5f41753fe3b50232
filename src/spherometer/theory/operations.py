"""The operations of a forward pass that are no modules, by what a certificate must know of them.

Every one is run again on numbers of our own before it counts (`reading`), so an argument that is not thought of here
ends in a refusal and not in a wrong constant.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

# every output is one entry of one input times a number, plus a number
JOINING = (torch.cat, torch.concat, torch.concatenate, torch.stack)
PICKING = (
    *(operator.add, operator.iadd, torch.add, "add", "add_"),
    *(operator.sub, operator.isub, torch.sub, torch.subtract, torch.rsub, "sub", "sub_"),
    *(operator.mul, operator.imul, torch.mul, torch.multiply, "mul", "mul_"),
    *(operator.truediv, operator.itruediv, torch.div, torch.true_divide, "div", "div_"),
    *(operator.neg, torch.neg, "neg", operator.pos, "contiguous", "clone", operator.getitem, functional.pad),
    *(torch.flatten, "flatten", torch.squeeze, "squeeze", torch.unsqueeze, "unsqueeze", "expand", "repeat"),
    *(torch.transpose, "transpose", torch.permute, "permute", torch.movedim, "movedim", torch.flip, "flip"),
    *JOINING,
)
AVERAGING = (torch.mean, "mean", torch.sum, "sum")  # no negative entry
RESHAPING = (torch.reshape, "reshape", "view")
OPTIONS = {
    *("input", "other", "alpha", "tensors", "dim", "axis", "dims", "dim0", "dim1", "source", "destination"),
    *("start_dim", "end_dim", "keepdim", "pad", "mode", "value"),
}
MEASURING = ("size", "dim", "ndimension", "numel")  # results that do not depend on the entries
ATTRIBUTES = ("shape", "ndim", "dtype", "device")


def measures(node: fx.Node) -> bool:
    """Whether an operation looks at the shape or the kind of a tensor only."""
    return node.target in MEASURING or (node.target is getattr and node.args[1] in ATTRIBUTES)


def module_of(node: fx.Node, values: dict[fx.Node, Any]) -> nn.Module | None:
    """The module that does what a functional form does with all its arguments, None where there is none."""
    if node.target not in FORMS:
        return None
    make, names = FORMS[node.target]
    given = dict(zip(names, node.args[1:], strict=False)) | {k: v for k, v in node.kwargs.items() if k != "input"}
    options: Any = fx.node.map_arg(given, lambda other: values[other])
    if len(node.args) > 1 + len(names):
        return None
    try:
        return make(**{name: value for name, value in options.items() if value is not None}).eval()
    except (TypeError, ValueError, IndexError):
        return None


def _softmax(dim: int, _stacklevel: int = 3) -> nn.Module:
    return nn.Softmax(dim)


def _dropout(p: float = 0.5, training: bool = True, inplace: bool = False) -> nn.Module:
    if training:
        raise ValueError("random")
    return nn.Dropout(p, inplace)


def _linear(weight: Tensor, bias: Tensor | None = None) -> nn.Module:
    module = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    return _filled(module, weight, bias)


def _layer_norm(
    normalized_shape: list[int], weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> nn.Module:
    return _filled(nn.LayerNorm(normalized_shape, eps), weight, bias)


def _filled(module: nn.Module, weight: Tensor | None, bias: Tensor | None) -> nn.Module:
    for name, tensor in (("weight", weight), ("bias", bias)):
        setattr(module, name, None if tensor is None else nn.Parameter(tensor.detach(), requires_grad=False))
    return module


Form = tuple[Callable[..., nn.Module], tuple[str, ...]]
AVERAGE = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override")
MAXIMUM = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
FORMS: dict[Any, Form] = {
    **dict.fromkeys((torch.relu, torch.relu_, functional.relu, "relu", "relu_"), (nn.ReLU, ("inplace",))),
    **dict.fromkeys((torch.tanh, torch.tanh_, functional.tanh, "tanh", "tanh_"), (nn.Tanh, ())),
    **dict.fromkeys((torch.sigmoid, torch.sigmoid_, functional.sigmoid, "sigmoid", "sigmoid_"), (nn.Sigmoid, ())),
    **dict.fromkeys((torch.softmax, "softmax"), (_softmax, ("dim",))),
    functional.softmax: (_softmax, ("dim", "_stacklevel")),
    functional.leaky_relu: (nn.LeakyReLU, ("negative_slope", "inplace")),
    functional.elu: (nn.ELU, ("alpha", "inplace")),
    functional.silu: (nn.SiLU, ("inplace",)),
    functional.gelu: (nn.GELU, ()),
    functional.softplus: (nn.Softplus, ("beta", "threshold")),
    functional.dropout: (_dropout, ("p", "training", "inplace")),
    functional.linear: (_linear, ("weight", "bias")),
    functional.layer_norm: (_layer_norm, ("normalized_shape", "weight", "bias", "eps")),
    functional.avg_pool1d: (nn.AvgPool1d, AVERAGE[:-1]),
    functional.avg_pool2d: (nn.AvgPool2d, AVERAGE),
    functional.avg_pool3d: (nn.AvgPool3d, AVERAGE),
    functional.adaptive_avg_pool1d: (nn.AdaptiveAvgPool1d, ("output_size",)),
    functional.adaptive_avg_pool2d: (nn.AdaptiveAvgPool2d, ("output_size",)),
    functional.adaptive_avg_pool3d: (nn.AdaptiveAvgPool3d, ("output_size",)),
    functional.max_pool1d: (nn.MaxPool1d, MAXIMUM),
    functional.max_pool2d: (nn.MaxPool2d, MAXIMUM),
    functional.max_pool3d: (nn.MaxPool3d, MAXIMUM),
}
