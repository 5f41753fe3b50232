"""Where words, tables, numbers and progress go: results to standard output, everything else to standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console, RenderableType
from rich.markup import escape

from spherometer.records.schema import plain


def show(*parts: RenderableType) -> None:
    """Tables and text on standard output, without colours when that is not a terminal."""
    console = Console(highlight=False, soft_wrap=False)
    for part in parts:
        console.print(part, markup=False)


def note(text: str) -> None:
    """One line on standard error for whoever waits."""
    sys.stderr.write(f"spherometer: {text}\n")


def show_json(content: dict[str, Any]) -> None:
    """One JSON document, alone on standard output; what JSON cannot hold (inf, nan) becomes a string."""
    sys.stdout.write(json.dumps(plain(content), indent=2, allow_nan=False) + "\n")


@contextmanager
def progress(start: str) -> Iterator[Callable[[str], None]]:
    """A line on standard error that says what is being done; silent when nobody watches a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status(escape(start)) as status:
        yield lambda text: status.update(escape(text))
