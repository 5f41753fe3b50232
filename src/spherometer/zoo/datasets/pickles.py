"""CIFAR's python files are pickles; they are read here without running anything they name.

Two fences: only the opcodes that plain containers and arrays need, and only the names that numpy writes for a byte
array. The names are answered by inert stand-ins of this file, never by numpy itself, so a crafted file can at worst
describe an odd array.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from spherometer.zoo.datasets.dataset import DataError
from spherometer.zoo.names import shorten

_OPCODES = (
    *("PROTO", "FRAME", "STOP", "MARK", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1"),
    *("SHORT_BINSTRING", "BINSTRING", "SHORT_BINBYTES", "BINBYTES", "BYTEARRAY8", "SHORT_BINUNICODE", "BINUNICODE"),
    *("EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"),
    *("APPEND", "APPENDS", "SETITEM", "SETITEMS", "BINPUT", "LONG_BINPUT", "MEMOIZE", "BINGET", "LONG_BINGET"),
    *("GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD"),
)


class _RefusedError(Exception):
    """The file asks for more than a CIFAR file needs."""


@dataclass
class _Type:
    """Stand-in for `numpy.dtype`: the type code only, e.g. `u1`."""

    code: str

    def restore(self, state: Any) -> None:
        """Byte order and the like: of no meaning for single bytes."""


@dataclass
class _Array:
    """Stand-in for `numpy.ndarray`: what the file says about shape, type and content, not yet believed."""

    shape: Any = ()
    code: Any = None
    fortran: Any = False
    content: Any = b""

    def restore(self, state: Any) -> None:
        """The state that `ndarray.__reduce__` writes: version, shape, type, order, bytes."""
        _, self.shape, dtype, self.fortran, self.content = state
        self.code = dtype.code


@dataclass(frozen=True)
class _Name:
    """Stand-in for a function or class that numpy's pickles name; `REDUCE` calls it."""

    name: str

    def __call__(self, *arguments: Any) -> Any:
        match self.name, arguments:
            case "_reconstruct", _:
                return _Array()
            case "dtype", (str() | bytes() as code, *_):
                return _Type(code.decode("latin1") if isinstance(code, bytes) else code)
            case "encode", (str() as text, *_):  # how Python 3 writes bytes in protocol 2
                return text.encode("latin1")
            case "_frombuffer", (content, _Type() as dtype, shape, order):  # numpy, protocol 5
                return _Array(shape, dtype.code, order == "F", content)
        raise _RefusedError(f"a call of {self.name} with unexpected arguments")


_KNOWN_NAMES = {
    (module, name)
    for package in ("numpy.core", "numpy._core")
    for module, name in ((f"{package}.multiarray", "_reconstruct"), (f"{package}.numeric", "_frombuffer"))
} | {("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")}


class _PlainUnpickler(pickle._Unpickler):  # the Python one: its opcodes can be restricted
    """Builds dicts, lists, tuples, numbers, strings and stand-ins; refuses everything else."""

    stack: list[Any]
    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        code: action
        for code, action in pickle._Unpickler.dispatch.items()
        if code in {getattr(pickle, name)[0] for name in _OPCODES}
    }

    def find_class(self, module: str, name: str) -> _Name:
        if (module, name) not in _KNOWN_NAMES:
            raise _RefusedError(f"the name {module}.{name}")
        return _Name(name)

    def _reduce(self) -> None:
        arguments = self.stack.pop()
        if not isinstance(self.stack[-1], _Name) or not isinstance(arguments, tuple):
            raise _RefusedError("a call of something that is not a function")
        self.stack[-1] = self.stack[-1](*arguments)

    def _build(self) -> None:
        state = self.stack.pop()
        if not isinstance(self.stack[-1], _Array | _Type):
            raise _RefusedError("a change of something that is not an array")
        self.stack[-1].restore(state)

    dispatch[pickle.REDUCE[0]] = _reduce
    dispatch[pickle.BUILD[0]] = _build


def read_plain_pickle(content: bytes, origin: str) -> dict[str, Any]:
    """The dictionary in a pickle of plain data and byte arrays; whatever else it asks for is refused, never run."""
    try:
        found = _PlainUnpickler(io.BytesIO(content), encoding="bytes").load()
    except _RefusedError as refusal:
        raise DataError(f"{origin}: refused, it asks for {shorten(refusal)}, which no CIFAR file needs") from None
    except Exception as error:  # a damaged pickle can fail in any way
        raise DataError(f"{origin}: expected a CIFAR python file, got something else ({_explain(error)})") from None
    if not isinstance(found, dict):
        raise DataError(f"{origin}: expected a dictionary, got {type(found).__name__}")
    return {_text(key): value for key, value in found.items() if isinstance(key, str | bytes)}


def as_byte_array(found: Any, origin: str) -> NDArray[np.uint8]:
    """A stand-in made into a real array, once its type, shape and length agree."""
    if not isinstance(found, _Array) or found.code not in ("u1", "|u1"):
        kind = found.code if isinstance(found, _Array) else type(found).__name__
        raise DataError(f"{origin}: expected 'data' to be an array of unsigned bytes, got {kind}")
    shape, content = found.shape, found.content
    whole = isinstance(shape, tuple) and all(type(size) is int and size >= 0 for size in shape)
    if not whole or not isinstance(content, bytes | bytearray):
        raise DataError(f"{origin}: expected 'data' with a shape and bytes, got a damaged array")
    flat = np.frombuffer(content, dtype=np.uint8)
    if flat.size != int(np.prod(shape, dtype=object)):
        raise DataError(f"{origin}: truncated: expected {shape} bytes, got {flat.size:,}")
    return flat.reshape(shape, order="F" if found.fortran is True else "C")


def _text(value: str | bytes) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else value


def as_names(found: Any) -> tuple[str, ...]:
    """A list of class names, or nothing when it is not one."""
    if not isinstance(found, list) or not all(isinstance(entry, str | bytes) for entry in found):
        return ()
    return tuple(_text(entry) for entry in found)


def _explain(error: Exception) -> str:
    if isinstance(error, KeyError):
        return "an opcode or a memo entry that is not expected"
    return shorten(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__, limit=80)
