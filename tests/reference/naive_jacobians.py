"""Jacobians the slow way: one sample, one place, one singular value decomposition at a time."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from spherometer.operators.forward import is_linear_map


def input_jacobian(model: nn.Module, sample: Tensor) -> Tensor:
    """∂f/∂x at one sample, (C, M)."""
    with sdpa_kernel(SDPBackend.MATH):
        full = torch.autograd.functional.jacobian(lambda x: frozen(model)(x[None])[0], sample)
    return full.flatten(1)


def layer_jacobian(model: nn.Module, sample: Tensor, name: str, use: int = 1) -> Tensor:
    """∂f/∂x^l at one sample, (C, M_l), x^l the very tensor that enters the layer, along all paths from it."""
    network, met = frozen(model), []
    module = network.get_submodule(name)
    module.register_forward_pre_hook(lambda _, arguments: met.append(arguments[0]))
    inputs = sample[None].clone()
    inputs = inputs.requires_grad_() if inputs.is_floating_point() else inputs
    for parameter in network.parameters():
        parameter.requires_grad_()
    with sdpa_kernel(SDPBackend.MATH):
        outputs = network(inputs)[0]
    rows = [torch.autograd.grad(output, met[use - 1], retain_graph=True)[0].flatten() for output in outputs]
    return torch.stack(rows)


def weight_gradients(model: nn.Module, sample: Tensor, parameters: list[str] | None = None) -> Tensor:
    """∂f/∂θ at one sample, (C, P), over the named parameters."""
    network = frozen(model)
    chosen = [p.requires_grad_() for n, p in network.named_parameters() if parameters is None or n in parameters]
    outputs = network(sample[None])[0]
    rows = [torch.autograd.grad(output, chosen, retain_graph=True, materialize_grads=True) for output in outputs]
    return torch.stack([torch.cat([part.flatten() for part in row]) for row in rows])


def frozen(model: nn.Module) -> nn.Module:
    network = copy.deepcopy(model).eval()
    for module in list(network.modules()):
        if isinstance(module, nn.ReLU):
            module.inplace = False
        if isinstance(module, nn.MultiheadAttention):
            write_out(module)
    return network.requires_grad_(False)


class WrittenOut(nn.MultiheadAttention):
    """Attention of a sequence with itself by two linear layers that are called as such."""

    def forward(self, query: Tensor, *_: Tensor, **__: object) -> tuple[Tensor, None]:
        inputs = query if self.batch_first else query.transpose(0, 1)
        parts = self.in_proj(inputs).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        scores = parts[0] @ parts[1].mT / parts.shape[-1] ** 0.5
        output = self.out_proj((scores.softmax(-1) @ parts[2]).transpose(1, 2).flatten(2))
        return (output if self.batch_first else output.transpose(0, 1)), None


def write_out(heads: nn.MultiheadAttention) -> None:
    """Turn nn.MultiheadAttention into plain layers in its place, on the same parameters."""
    heads.__class__ = WrittenOut
    heads.in_proj = nn.Linear(heads.embed_dim, 3 * heads.embed_dim, device="meta")
    heads.in_proj.weight, heads.in_proj.bias = heads.in_proj_weight, heads.in_proj_bias


def layer_names(model: nn.Module) -> list[str]:
    return [name for name, module in frozen(model).named_modules() if is_linear_map(module)]


def singular_values(jacobian: Tensor) -> Tensor:
    return torch.linalg.svdvals(jacobian)
