"""timm imports torchvision, whose wheel misses two operators beside a CPU-only torch; declaring them is enough."""

from __future__ import annotations

import importlib

import torch

# A library object must stay alive, or its operators vanish.
_declared: list[torch.library.Library] = []


def make_torchvision_importable() -> None:
    """Declares `torchvision::nms` and `torchvision::qnms`, without a body, if the import fails for lack of them."""
    try:
        importlib.import_module("torchvision")
    except ImportError:
        return  # not installed: nothing to help
    except RuntimeError as error:
        if "torchvision::" not in str(error) or _declared:
            return
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _declared.append(library)
