"""A TOML file as words of the command line, so that both are read, checked and refused by the same code."""

from __future__ import annotations

import tomllib
from dataclasses import asdict
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from spherometer.commands.errors import UsageError
from spherometer.training.settings import Settings, names_by_table
from spherometer.zoo.names import suggest


def with_configuration(words: list[str]) -> list[str]:
    """The words, with a leading file name replaced by its content; what is said twice counts as said in words."""
    if not words or words[0].startswith("-"):
        return words
    path, said = Path(words[0]), {word.partition("=")[0] for word in words[1:] if word.startswith("--")}
    usual = {name: value for table in asdict(Settings()).values() for name, value in table.items()}
    found: list[str] = []
    for name, value in read_configuration(path).items():
        option = f"--{name.replace('_', '-')}"
        if option not in said and f"--{name}" not in said:
            found += _as_words(option, value, is_flag=isinstance(usual[name], bool))
    return [*found, *words[1:]]


def read_configuration(path: Path) -> dict[str, Any]:
    """Names and values of all tables of the file; a name or a table that is not known is refused."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; expected a TOML file", "train") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: expected a TOML file, got {error}", "train") from None
    known, flat = names_by_table(), {}
    kinds = {table: get_type_hints(type(getattr(Settings(), table))) for table in known}
    for table, entries in content.items():
        if table not in known:
            raise UsageError(f"{path}: no table is called [{table}]; {suggest(table, known)}", "train")
        if not isinstance(entries, dict):
            raise UsageError(
                f"{path}: expected a table [{table}] with names inside, got {table} = {entries!r}", "train"
            )
        for name, value in entries.items():
            if name not in known[table]:
                raise UsageError(f"{path}: [{table}] has no {name!r}; {suggest(name, known[table])}", "train")
            if not _is_a(value, kinds[table][name]):
                raise UsageError(f"{path}: {name}: expected {_told(kinds[table][name])}, got {value!r}", "train")
            flat[name] = value
    return flat


def _is_a(value: Any, kind: Any) -> bool:
    """Whether a value of TOML is of a kind of setting: whole numbers are numbers, texts are paths, lists are tuples."""
    if get_origin(kind) is UnionType:
        return any(_is_a(value, each) for each in get_args(kind))
    if get_origin(kind) is tuple:
        return isinstance(value, list) and all(_is_a(each, get_args(kind)[0]) for each in value)
    return type(value) in {float: (float, int), Path: (str,)}.get(kind, (kind,))


def _told(kind: Any) -> str:
    """A kind of setting in words."""
    words = {float: "a number", int: "a whole number", str: "a text", bool: "true or false", Path: "a text"}
    if get_origin(kind) is UnionType:
        return _told(get_args(kind)[0])
    return f"a list, of {_told(get_args(kind)[0])} each" if get_origin(kind) is tuple else words[kind]


def _as_words(option: str, value: Any, *, is_flag: bool) -> list[str]:
    if is_flag and isinstance(value, bool):
        return [option] if value else []
    return [option, *map(str, value)] if isinstance(value, list) else [option, str(value)]
