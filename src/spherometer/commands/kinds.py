"""Kinds of option values: how each is read, shown in help, and refused in plain words."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, get_args

from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from spherometer.commands.table import nearest

DATA_PLACES = "$SPHEROMETER_DATA, ./data, share/datasets of the system"
UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def _kind(metavar: str, read: Callable[[str], Any], show: Callable[[Any], str] = str) -> PrimitiveConstructorSpec[Any]:
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=metavar,
        instance_from_str=lambda words: read(words[0]),
        is_instance=lambda _: True,
        str_from_instance=lambda value: [show(value)],
    )


def _clipped(text: str) -> str:
    return repr(text if len(text) <= 30 else f"{text[:27]}...")


def _whole(least: int, unset: str) -> PrimitiveConstructorSpec[Any]:
    def read(text: str) -> int | None:
        if unset and text == unset:
            return None
        if not re.fullmatch(r"[+-]?[0-9]{1,18}", text) or int(text) < least:
            raise ValueError(f"expected a whole number of at least {least}, got {_clipped(text)}")
        return int(text)

    return _kind("N", read, lambda value: unset if value is None else str(value))


def _port(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", text) or int(text) > 65535:
        raise ValueError(f"expected a port from 0 to 65535, got {_clipped(text)}")
    return int(text)


def choice(*names: str) -> PrimitiveConstructorSpec[Any]:
    """One of some names."""

    def read(text: str) -> str:
        if text not in names:
            raise ValueError(f"expected one of {', '.join(names)}, got {_clipped(text)}{_hint(text, names)}")
        return text

    return _kind(f"{{{','.join(names)}}}", read)


def _hint(text: str, names: tuple[str, ...]) -> str:
    near = nearest(text, list(names))
    return f": {near}" if near.startswith("did") else ""


def read_bytes(text: str) -> float:
    """A number of bytes: 500000000, 500MB, 4GB, 2GiB."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?(?:e[0-9]{1,2})?)\s*([kmgt]i?)?b?", text.strip().lower())
    amount = float(match[1]) * UNITS[match[2] or ""] if match else math.nan
    if not 1 <= amount < math.inf:
        raise ValueError(f"expected a positive number of bytes such as 500MB or 4GB, got {_clipped(text)}")
    return amount


def show_bytes(amount: float) -> str:
    """`4GB` for 4e9."""
    unit = next(unit for unit in ("t", "g", "m", "k", "") if amount >= UNITS[unit])
    return f"{amount / UNITS[unit]:g}{unit.upper()}B"


Count = Annotated[int, _whole(1, "")]
Seed = Annotated[int, _whole(0, "")]
CountOrAll = Annotated[int | None, _whole(1, "all")]
CountOrNone = Annotated[int | None, _whole(1, "none")]
CountOrAuto = Annotated[int | None, _whole(1, "auto")]
StepsOrAuto = Annotated[int | None, _whole(0, "auto")]
Bytes = Annotated[float, _kind("BYTES", read_bytes, show_bytes)]
Folder = Annotated[Path, _kind("DIR", Path)]
PortOrFree = Annotated[
    int | None, _kind("PORT", _port, lambda value: "8765, or a free one" if value is None else str(value))
]
FileOrNone = Annotated[Path | None, _kind("FILE", Path, lambda value: "fresh" if value is None else str(value))]
FolderOrNone = Annotated[Path | None, _kind("DIR", Path, lambda value: DATA_PLACES if value is None else str(value))]
PageFile = Annotated[Path | None, _kind("FILE", Path, lambda value: "DIR/report.html" if value is None else str(value))]
OtherFolder = Annotated[Path | None, _kind("DIR", Path, lambda value: "none" if value is None else str(value))]

PLAIN_KINDS = ConstructorRegistry()  # of options without a kind of their own


@PLAIN_KINDS.primitive_rule
def _or_none(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """`int | None` is shown and read like int, and none where there is none."""
    if info.type_origin is not UnionType or len(get_args(info.type)) != 2 or NoneType not in get_args(info.type):
        return None
    kind = _plain(next(part for part in get_args(info.type) if part is not NoneType), info)
    return replace(
        kind,
        instance_from_str=lambda words: None if words == ["none"] else kind.instance_from_str(words),
        is_instance=lambda _: True,
        str_from_instance=lambda value: ["none"] if value is None else kind.str_from_instance(value),
        choices=None if kind.choices is None else (*kind.choices, "none"),
    )


@PLAIN_KINDS.primitive_rule
def _several(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """`tuple[int, ...]`: any number of words, and none where there are none."""
    if info.type_origin is not tuple:
        return None
    kind = _plain(get_args(info.type)[0], info)
    return PrimitiveConstructorSpec(
        nargs="*",
        metavar=f"[{kind.metavar} ...]",
        instance_from_str=lambda words: tuple(kind.instance_from_str([word]) for word in words),
        is_instance=lambda _: True,
        str_from_instance=lambda values: (
            [word for value in values for word in kind.str_from_instance(value)] or ["none"]
        ),
    )


def _plain(kind: Any, info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any]:
    found = ConstructorRegistry.get_primitive_spec(PrimitiveTypeInfo.make(kind, info.markers))
    assert isinstance(found, PrimitiveConstructorSpec), f"{kind} cannot be read from a word"
    return found
