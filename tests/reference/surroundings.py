"""Everything a measurement must leave as it was."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn


def snapshot(model: nn.Module) -> dict[str, Any]:
    """The model's tensors, gradients, modes and hooks, and the global settings of torch, numpy and Python."""
    found: dict[str, Any] = {}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        found[f"value of {name}"] = tensor.detach().clone()
        found[f"identity of {name}"] = id(tensor)
        found[f"version of {name}"] = None if tensor.is_inference() else tensor._version
        found[f"requires_grad of {name}"] = tensor.requires_grad
        found[f"grad of {name}"] = None if tensor.grad is None else tensor.grad.clone()
    for name, module in model.named_modules():
        found[f"mode of {name}"] = module.training
        found[f"hooks of {name}"] = [
            sorted(getattr(module, kind))
            for kind in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_forward_hooks_with_kwargs")
        ]
        found[f"attributes of {name}"] = sorted(vars(module))
    found["keys of the state"] = list(model.state_dict())
    found["torch random state"] = torch.get_rng_state()
    found["numpy random state"] = copy.deepcopy(np.random.get_state()[1:])
    found["python random state"] = random.getstate()
    found["default dtype"] = torch.get_default_dtype()
    found["grad mode"] = torch.is_grad_enabled()
    found["inference mode"] = torch.is_inference_mode_enabled()
    found["autocast"] = torch.is_autocast_enabled("cpu")
    found["autocast dtype"] = torch.get_autocast_dtype("cpu")
    found["deterministic"] = torch.are_deterministic_algorithms_enabled()
    found["threads"] = torch.get_num_threads()
    found["fused attention"] = (
        torch.backends.cuda.flash_sdp_enabled(),
        torch.backends.cuda.mem_efficient_sdp_enabled(),
    )
    found["cudnn"] = torch.backends.cudnn.enabled
    found["mkldnn"] = torch.backends.mkldnn.enabled
    return found


def changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Names of what is not the same."""
    return [key for key in before | after if not _same(before.get(key), after.get(key))]


@contextmanager
def assert_unchanged(model: nn.Module) -> Iterator[None]:
    before = snapshot(model)
    yield
    changed = changes(before, snapshot(model))
    assert not changed, f"changed: {', '.join(changed)}"


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        return len(one) == len(other) and all(_same(x, y) for x, y in zip(one, other, strict=True))
    return one == other
