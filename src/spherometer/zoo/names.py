"""A wrong name is answered with the nearest right ones."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def suggest(word: str, known: Iterable[str]) -> str:
    """`did you mean 'mnist'?` when something is near, else the list of what there is."""
    names = sorted(known)
    near = get_close_matches(word.lower(), names, n=3, cutoff=0.6)
    if near:
        return f"did you mean {' or '.join(repr(name) for name in near)}?"
    return f"known: {', '.join(names)}"


def shorten(text: object, *, limit: int = 160) -> str:
    """Any message as one short line, fit to stand inside an error."""
    line = " ".join(str(text).split())
    return line if len(line) <= limit else line[: limit - 3] + "..."
