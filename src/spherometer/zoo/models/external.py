"""Models from elsewhere: timm, Hugging Face, and any function of the user.  Nothing is ever downloaded."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from spherometer.zoo.datasets.layout import roots
from spherometer.zoo.models.parts import InputShape, ModelError
from spherometer.zoo.models.torchvision_shim import make_torchvision_importable
from spherometer.zoo.names import shorten, suggest
from spherometer.zoo.randomness import seeded


class Logits(nn.Module):
    """A Hugging Face model that returns the tensor of logits instead of a record."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor) -> Tensor:
        """Pixels or tokens -> logits."""
        logits: Tensor = self.model(inputs).logits
        return logits


def build_timm(name: str, *, num_classes: int | None, input_shape: InputShape | None, seed: int) -> nn.Module:
    """`timm.create_model` with fresh weights; give `load_weights` a file for trained ones."""
    make_torchvision_importable()
    timm = _import_extra("timm", "zoo")
    if not timm.is_model(name):
        raise ModelError(f"timm has no model called {name!r}; {suggest(name, timm.list_models())[:300]}")
    timm.layers.set_fused_attn(False)  # the fused kernel cannot be differentiated twice
    options: dict[str, Any] = {} if num_classes is None else {"num_classes": num_classes}
    if input_shape is not None:
        options["in_chans"] = input_shape[0]
    create = partial(timm.create_model, name, pretrained=False, **options)
    return _call(f"timm:{name}", create, seed)


def find_timm_weights(name: str) -> Path | None:
    """The file of a timm model's trained weights, where there is one: `timm/NAME.safetensors` in a data folder, or what
    Hugging Face's cache holds under `timm/NAME.TAG`.

    Example:
        >>> find_timm_weights("vit_tiny_patch16_224")
    """
    for root in roots(None):
        for ending in (".safetensors", ".pth"):
            path = root / "timm" / f"{name}{ending}"
            if path.is_file():
                return path
    home = Path(os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface"))
    cached = (home / "hub").glob(f"models--timm--{name}.*/snapshots/*/model.safetensors")
    return min(cached, default=None)


def build_huggingface(name: str) -> nn.Module:
    """A model with its weights from a local folder or from what was downloaded before; safetensors only."""
    transformers = _import_extra("transformers", "hf")
    try:
        config = transformers.AutoConfig.from_pretrained(name, local_files_only=True, trust_remote_code=False)
        family = getattr(transformers, (config.architectures or ["AutoModelForImageClassification"])[0])
        model = family.from_pretrained(name, local_files_only=True, use_safetensors=True, attn_implementation="eager")
    except Exception as error:
        raise ModelError(
            f"hf:{name}: no such local model ({shorten(error, limit=100)}); download it first, or give its folder"
        ) from error
    return Logits(model)


def build_imported(path: str, *, num_classes: int | None, input_shape: InputShape | None, seed: int) -> nn.Module:
    """The model that `package.module:function` returns; it gets `num_classes` and `input_shape` if it takes them."""
    module_name, _, attribute = path.partition(":")
    path = shorten(path)
    with _current_folder_importable():
        try:
            found: Any = importlib.import_module(module_name)
        except (Exception, SystemExit) as error:  # the user's module may do anything
            raise ModelError(f"{path}: cannot import {shorten(module_name)} ({_describe(error)})") from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ModelError(
                f"{path}: {module_name} has no {shorten(attribute)!r}; {suggest(part, _public(found))[:300]}"
            )
        found = getattr(found, part)
    if isinstance(found, nn.Module):
        return found
    if not callable(found):
        raise ModelError(f"{path}: expected a function that returns a model, got {type(found).__name__}")
    offered = {"num_classes": num_classes, "input_shape": input_shape}
    accepted = _parameter_names(found)
    wanted = {key: value for key, value in offered.items() if key in accepted and value is not None}
    return _call(path, partial(found, **wanted), seed)


def _call(path: str, function: Callable[[], Any], seed: int) -> nn.Module:
    try:
        with seeded(seed):  # after the import, which may itself draw numbers, but only the first time
            model = function()
    except (Exception, SystemExit) as error:
        raise ModelError(f"{path}: failed ({_describe(error)})") from error
    if not isinstance(model, nn.Module):
        raise ModelError(f"{path}: expected a torch.nn.Module as result, got {type(model).__name__}")
    return model


def _import_extra(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        if error.name is not None and error.name.partition(".")[0] != module:
            raise ModelError(f"{module} cannot be imported ({_describe(error)})") from error
        raise ModelError(f"{module} is not installed; pip install 'spherometer[{extra}]'") from None
    except Exception as error:
        raise ModelError(f"{module} cannot be imported ({_describe(error)})") from error


def _parameter_names(function: Any) -> set[str]:
    try:
        return set(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # some builtins have none
        return set()


def _public(found: Any) -> list[str]:
    return [name for name in vars(found) if not name.startswith("_")] if hasattr(found, "__dict__") else []


def _describe(error: BaseException) -> str:
    return shorten(f"{type(error).__name__}: {error}", limit=120)


@contextmanager
def _current_folder_importable() -> Iterator[None]:
    """A console script does not have the current folder on its path; the user's module is most often there."""
    folder = os.getcwd()
    if folder in sys.path or "" in sys.path:
        yield
        return
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        if folder in sys.path:
            sys.path.remove(folder)
