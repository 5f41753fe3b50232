"""In which order images should lie in memory for their convolutions to be derived twice."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from spherometer.problems import Piece, Problem
from spherometer.problems.batches import map_tensors


def quicker_layout(problem: Problem) -> torch.memory_format:
    """Channels last where Hessian products were measured quicker with it: float32 convolutions on a CPU.

    A rule rather than a race, since float32 answers differ in their last digits between the layouts and the same seed
    has to give the same number (`python -m benchmarks --only layouts` holds it against its alternative).
    """
    return torch.channels_last if convolves_on_cpu(problem) else torch.preserve_format


def convolves_on_cpu(problem: Problem) -> bool:
    """Whether there are images whose convolutions run on a CPU in single precision, where the layout matters."""
    convolves = any(isinstance(module, nn.Conv2d) for module in problem.model.modules())
    return convolves and problem.precision == torch.float32 and problem.device.type == "cpu"


def laid(piece: Piece, layout: torch.memory_format) -> Piece:
    """The piece with its images in this layout; everything else as it is."""

    def lay(tensor: Tensor) -> Tensor:
        is_image = tensor.ndim == 4 and tensor.is_floating_point()
        return tensor.contiguous(memory_format=layout) if is_image else tensor

    return piece if layout is torch.preserve_format else replace(piece, content=map_tensors(lay, piece.content))
