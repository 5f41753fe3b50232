"""What a backward pass is asked for, and how a number per channel spreads over an image."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def wanted(context: Any, num_tensors: int) -> list[bool]:
    """Which of the first tensors given to a function have a gradient that somebody waits for in this backward pass.

    `needs_input_grad` only knows what could be differentiated: for Jv by two backward passes it would have us compute
    every weight gradient and throw it away.
    """
    nodes = [node for node, _ in context.next_functions] + [None] * num_tensors
    needed = context.needs_input_grad[:num_tensors]
    return [need and _will_run(node) for need, node in zip(needed, nodes, strict=False)]


def _will_run(node: Any) -> bool:
    try:
        return torch._C._will_engine_execute_node(node)
    except RuntimeError:  # a leaf that is asked for, or no engine at work: better too much than too little
        return True


def column(vector: Tensor, like: Tensor) -> Tensor:
    """One number per channel, shaped to spread over samples and space."""
    return vector.view(1, -1, *[1] * (like.dim() - 2))
