"""From words on the command line to the options of a command, by tyro; what it refuses becomes one line."""

from __future__ import annotations

import inspect
import io
import re
from collections.abc import Iterator
from contextlib import redirect_stderr
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

import tyro

from spherometer.commands.errors import UsageError
from spherometer.commands.kinds import PLAIN_KINDS
from spherometer.commands.table import Command, Runnable, nearest

FRAME = re.compile(r"[\u2500-\u257f]|^[|+]|[|+]$|-{4,}")  # the box that tyro draws around an error, also in ASCII
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def read_options(command: Command, words: list[str]) -> Runnable:
    """The options of a command; help is printed and ends in SystemExit(0), wrong words in a UsageError."""
    options, refused = command.options, io.StringIO()
    if hasattr(options, "expand"):
        words = options.expand(words)
    try:
        with redirect_stderr(refused):
            found, unknown = tyro.cli(
                options,
                prog=f"spherometer {command.name}",
                description=_description(command, options),
                args=words,
                return_unknown_args=True,
                config=(tyro.conf.FlagCreatePairsOff,),
                registry=PLAIN_KINDS,
            )
    except SystemExit as exit_:
        if exit_.code:
            raise UsageError(_plain(refused.getvalue()), command.name) from None
        raise
    if unknown:
        raise UsageError(_unknown_word(unknown[0], options), command.name)
    return found


def _description(command: Command, options: type[Any]) -> str:
    examples = "\n".join(f"  $ {example}" for example in command.examples)
    return f"{inspect.getdoc(options) or ''}\n\nexamples:\n{examples}"


def _plain(box: str) -> str:
    """The message out of tyro's box: the lines above the first rule, without the frame."""
    inside: list[str] = []
    for line in COLOUR.sub("", box).splitlines()[1:]:
        text = FRAME.sub("", line).strip()
        if text:
            inside.append(text)
        elif inside:
            break
    message = " ".join(inside)
    missing = re.match(r"Missing from [^:]*: ([A-Z]+)", message)
    if missing:
        return f"expected {missing[1]}, got nothing"
    message = re.sub(r"^Error parsing (\S+):", r"\1:", message)
    return re.sub(r"^Missing value for argument '([^']*)'.*", r"\1: expected a value, got nothing", message)


def _unknown_word(word: str, options: type[Any]) -> str:
    if not word.startswith("-"):
        return f"did not expect {word[:60]!r}"
    known = [f"--{name.replace('_', '-')}" for name in _option_names(options)]
    return f"no option is called {word.partition('=')[0][:60]}: {nearest(word.partition('=')[0], known)}"


def _option_names(options: type[Any]) -> Iterator[str]:
    """Fields of the dataclass, and of those inside it."""
    kinds = get_type_hints(options)
    for entry in fields(options):
        if is_dataclass(kinds[entry.name]):
            yield from _option_names(kinds[entry.name])
        else:
            yield entry.name
