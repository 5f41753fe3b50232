"""The state a network is measured in, and everything put back as it was afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Literal

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _NormBase

BatchNorm = Literal["eval", "train"]
AUTOCAST = ("cpu", "cuda", "xpu", "mps")  # devices that have it


@contextmanager
def measuring_mode(
    model: nn.Module, *, batchnorm: BatchNorm, dropout: int | None, index: int, device: torch.device
) -> Iterator[None]:
    """Batch norm as asked, dropout off or replayed from a seed, kernels that can be differentiated twice.

    `index` numbers the batch, so that each has its own dropout mask, the same in every pass. Fused attention has no
    second derivative on any device and cuDNN's recurrent kernels have none either.
    """
    modules = list(model.modules())
    with keeping_modes(model), ExitStack() as stack:
        stack.enter_context(KeptRandomState(device))
        stack.enter_context(torch.autocast(device.type, enabled=False))
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.enter_context(uncompiled(model))
        if any(isinstance(module, nn.RNNBase) for module in modules):
            stack.enter_context(torch.backends.cudnn.flags(enabled=False))
        if dropout is not None:
            seed_streams(dropout + index, device)
        for module in modules:
            normalises = isinstance(module, _NormBase)
            module.training = batchnorm == "train" if normalises else dropout is not None
        yield


def as_written(model: nn.Module) -> nn.Module:
    """The module that `torch.compile` was given, where this is what it returned."""
    inner = model._modules.get("_orig_mod")
    return model if inner is None else inner


def uncompiled(model: nn.Module | None) -> AbstractContextManager[None]:
    """Forward passes inside run as they are written: compiled ones cannot be differentiated twice.

    `None` is a model that is not known.
    """
    if model is not None and not _is_compiled(model):
        return nullcontext()
    stance: AbstractContextManager[None] = torch.compiler.set_stance("force_eager")
    return stance


def _is_compiled(module: nn.Module) -> bool:
    """In whole or in part; by recursion, since `modules()` takes as long as a small layer."""
    children = module._modules
    if module._compiled_call_impl is not None or "_orig_mod" in children:
        return True
    return any(child is not None and _is_compiled(child) for child in children.values())


@contextmanager
def differentiating() -> Iterator[None]:
    """Gradients on and autocast off, whatever the caller's loop has set (callbacks often run without gradients).

    Products are backward passes, and these too would follow an autocast that is still on.
    """
    with torch.inference_mode(False), torch.enable_grad(), ExitStack() as stack:
        for kind in AUTOCAST:
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


class KeptRandomState:
    """The global streams of the CPU and of a device are outside where they were, whatever is drawn inside.

    It may be entered again and again, but not inside itself. Not by `fork_rng`, which looks for accelerators at every
    call: a small training step would feel that.

    Example:
        >>> with KeptRandomState(torch.device("cpu")):
        ...     torch.rand(3)
    """

    def __init__(self, device: torch.device) -> None:
        self._streams = [torch.default_generator]
        if device.type == "cuda":
            index = torch.cuda.current_device() if device.index is None else device.index
            self._streams.append(torch.cuda.default_generators[index])

    def __enter__(self) -> None:
        self._states = [stream.get_state() for stream in self._streams]

    def __exit__(self, *_: object) -> None:
        for stream, state in zip(self._streams, self._states, strict=True):
            stream.set_state(state)


def seed_streams(seed: int, device: torch.device) -> None:
    """Start the global streams of the CPU and of this device anew, and no others."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)


@contextmanager
def keeping_modes(model: nn.Module) -> Iterator[None]:
    """Train or eval: outside, every module is again in the mode it was in."""
    modes = {module: module.training for module in model.modules()}
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training
