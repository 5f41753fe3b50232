"""What the user did wrong, in one line."""

from __future__ import annotations

import unicodedata

LIMIT = 400  # characters of a message; longer ones hold somebody's data


class UsageError(ValueError):
    """Wrong use of a command; `command` is whose help would have told."""

    def __init__(self, message: str, command: str = "") -> None:
        super().__init__(message)
        self.command = command


def one_line(message: object) -> str:
    """Any message as a single printable line of bounded length."""
    words = " ".join(str(message).split())
    line = "".join(c if unicodedata.category(c)[0] != "C" else "\N{REPLACEMENT CHARACTER}" for c in words)
    return line if len(line) <= LIMIT else f"{line[: LIMIT - 3]}..."


def describe(error: BaseException) -> str:
    """An error of the library or the system as one line; one that says nothing is called by its name."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return one_line(f"{error.filename}: {error.strerror}")
    return one_line(error) or type(error).__name__


def out_of_memory(error: BaseException) -> bool:
    """Torch reports it as a plain RuntimeError."""
    words = ("can't allocate memory", "not enough memory", "out of memory")
    return isinstance(error, MemoryError) or any(word in str(error).lower() for word in words)
