"""Trained weights from safetensors or torch files.  No pickle is ever executed."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from spherometer.zoo.names import shorten

NESTED_KEYS = ("state_dict", "model_state_dict", "model", "net")
PREFIXES = ("module.", "model.", "_orig_mod.")  # DataParallel, Lightning, torch.compile


class WeightsError(ValueError):
    """Weights that cannot be used; the message is one line: what was expected, what was found, what to do."""


class MissingWeightsError(WeightsError, FileNotFoundError):
    """No file of weights where one was announced."""


def load_weights(model: nn.Module, path: str | Path) -> nn.Module:
    """Puts the weights of a safetensors or torch file into `model`, all or nothing, and returns it."""
    path = Path(path)
    state = model.state_dict()
    found = _strip_prefixes(read_weights(path), state)
    _check_names(found, state, path)
    _check_tensors(found, state, path)
    with torch.no_grad():
        for name, tensor in found.items():
            state[name].copy_(tensor)
    return model


def read_weights(path: Path) -> dict[str, Tensor]:
    """The named tensors of a file, out of the usual nesting (`state_dict`, `model`)."""
    try:
        with path.open("rb") as stream:
            start = stream.read(9)
    except FileNotFoundError:
        raise MissingWeightsError(f"{shorten(path)}: no such file") from None
    except (OSError, ValueError) as error:  # a folder, no permission, a null byte in the name
        raise WeightsError(f"{shorten(path)}: cannot be read ({shorten(error)})") from None
    if path.suffix == ".safetensors" or start[8:9] == b"{":
        return _read_safetensors(path)
    return _unnest(_read_torch(path), path)


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        return safetensors.torch.load_file(path)
    except Exception as error:  # its own error, but also KeyError for a data type that torch lacks
        raise WeightsError(f"{path}: not a sound safetensors file ({shorten(error, limit=100)})") from None


def _read_torch(path: Path) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of odd pickles; ours is an error or nothing
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch reports damage in many ways, and a refused pickle in several lines
        text = str(error)
        asked = re.search(r"GLOBAL (\S+)", text)
        if asked:
            name = shorten(asked[1], limit=80)
            raise WeightsError(f"{path}: refused, it asks for {name} and could run code; save the state_dict") from None
        unhelpful = "Weights only load failed" in text or not text
        damage = "" if unhelpful else f" ({shorten(text.partition('. ')[0], limit=80)})"
        raise WeightsError(
            f"{path}: expected a safetensors or torch file of plain tensors, got something else{damage};"
            " pickles are never run"
        ) from None


def _unnest(found: Any, path: Path) -> dict[str, Tensor]:
    for _ in range(3):
        inner = next((found[key] for key in NESTED_KEYS if isinstance(found, Mapping) and key in found), None)
        if not isinstance(inner, Mapping):
            break
        found = inner
    if not isinstance(found, Mapping) or not found:
        raise WeightsError(f"{path}: expected a dictionary of tensors, got {type(found).__name__}")
    strange = [str(name) for name, value in found.items() if not isinstance(value, Tensor)]
    if strange:
        raise WeightsError(f"{path}: expected tensors only, got something else in {_list(strange)}")
    return {str(name): tensor for name, tensor in found.items()}


def _strip_prefixes(found: dict[str, Tensor], state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Drops a prefix that every name has and that the model itself does not use, again and again."""
    while True:
        prefix = next((one for one in PREFIXES if found and all(name.startswith(one) for name in found)), None)
        if prefix is None or any(name.startswith(prefix) for name in state):
            return found
        found = {name.removeprefix(prefix): tensor for name, tensor in found.items()}


def _check_names(found: Mapping[str, Tensor], state: Mapping[str, Tensor], path: Path) -> None:
    present = {state[name].data_ptr() for name in found if name in state}
    missing = [
        name
        for name, tensor in state.items()
        if name not in found
        and not name.endswith("num_batches_tracked")  # older torch did not write it, and nothing depends on it
        and not (tensor.numel() and tensor.data_ptr() in present)  # tied to a weight that is there
    ]
    unexpected = [name for name in found if name not in state]
    problems = [f"missing {_list(missing)}"] if missing else []
    problems += [f"unexpected {_list(unexpected)}"] if unexpected else []
    if problems:
        raise WeightsError(f"{path}: does not fit the model: {'; '.join(problems)}; is it the same architecture?")


def _check_tensors(found: Mapping[str, Tensor], state: Mapping[str, Tensor], path: Path) -> None:
    wrong = [
        f"{name} {tuple(tensor.shape)} instead of {tuple(state[name].shape)}"
        for name, tensor in found.items()
        if tensor.shape != state[name].shape
    ]
    if wrong:
        raise WeightsError(f"{path}: wrong shapes: {_list(wrong)}; is it the same architecture and number of classes?")
    odd = [name for name, tensor in found.items() if tensor.is_complex() or tensor.is_quantized or tensor.is_sparse]
    if odd:
        raise WeightsError(
            f"{path}: expected plain real tensors, got complex, quantised or sparse ones in {_list(odd)}"
        )
    sick = [name for name, tensor in found.items() if not bool(torch.isfinite(tensor.float()).all())]
    if sick:
        raise WeightsError(f"{path}: nan or inf in {_list(sick)}; the training had diverged or the file is damaged")


def _list(names: Iterable[str], *, limit: int = 3) -> str:
    names = list(names)
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return shorten(", ".join(names[:limit]), limit=200) + more
