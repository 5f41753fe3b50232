"""The command line: `spherometer --help`.  One clear line for wrong use, a traceback only for our own mistakes."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from spherometer.commands.errors import UsageError, describe, out_of_memory
from spherometer.commands.table import COMMANDS, nearest, overview

DONE, WRONG_USE, BUG, INTERRUPTED, BROKEN_PIPE = 0, 2, 70, 130, 141
USER_ERRORS = (ValueError, TypeError, FloatingPointError, OSError, ImportError)  # what the library raises on bad input


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; the answer is the exit code: 0 done, 1 something that was to hold does not, 2 wrong use."""
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words
    _make_streams_forgiving()
    try:
        code = _dispatch([word for word in words if word != "--debug"])
        sys.stdout.flush()
    except KeyboardInterrupt:
        return _say("interrupted", INTERRUPTED)
    except BrokenPipeError:
        _silence_stdout()
        return BROKEN_PIPE
    except Exception as error:
        if debug:
            raise
        return _explain(error)
    return code


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        sys.stdout.write(f"{overview()}\n")
        return DONE
    if words[0] == "--version":
        return _show_version()
    command = COMMANDS.get(words[0])
    if command is None:
        kind = "option" if words[0].startswith("-") else "command"
        raise UsageError(f"no {kind} is called {words[0][:60]!r}: {nearest(words[0], list(COMMANDS))}")
    from spherometer.commands.parsing import read_options

    try:
        return read_options(command, words[1:]).run()
    except SystemExit as exit_:  # help was asked for, or rich met a closed pipe
        return BROKEN_PIPE if exit_.code else DONE


def _show_version() -> int:
    from importlib.metadata import version

    sys.stdout.write(f"spherometer {version('spherometer')}, torch {version('torch')}\n")
    return DONE


def _explain(error: Exception) -> int:
    if isinstance(error, UsageError):
        command = f"spherometer {error.command}".strip()
        return _say(f"error: {describe(error)} (see {command} --help)", WRONG_USE)
    if out_of_memory(error):
        return _say("error: out of memory: use fewer samples (--num) or a lower limit (--memory)", WRONG_USE)
    if isinstance(error, USER_ERRORS) or _has_no_derivative(error):
        return _say(f"error: {describe(error)}", WRONG_USE)
    import traceback

    traceback.print_exception(error)
    return _say("this is a mistake in Spherometer, please report it with the lines above", BUG)


def _has_no_derivative(error: Exception) -> bool:
    from spherometer.operators import DerivativeError

    return isinstance(error, DerivativeError)


def _say(message: str, code: int) -> int:
    sys.stderr.write(f"spherometer: {message}\n")
    return code


def _make_streams_forgiving() -> None:
    """A terminal without the letter λ shows a question mark rather than an error."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def _silence_stdout() -> None:
    """Whoever read our output has gone: let the flush at exit go nowhere (Python's own advice)."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
