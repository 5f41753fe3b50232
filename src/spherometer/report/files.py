"""Files that are there whole or not at all."""

from __future__ import annotations

import os
import tempfile
from importlib.util import find_spec
from pathlib import Path


def prepare(path: Path) -> None:
    """Make the folder of a page to come, and refuse what would fail only after the work is done."""
    for library in ("jinja2", "plotly"):
        if find_spec(library) is None:
            raise ImportError(f"the page needs {library}, which is not installed: pip install 'spherometer[report]'")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise ValueError(f"{path.parent}: expected a folder, found a file in the way: choose another --out") from None
    if path.is_dir():
        raise ValueError(f"{path}: expected a file to write, found a folder: choose another --out")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise ValueError(f"{path.parent}: cannot be written: choose another --out")


def write_atomically(path: Path, text: str) -> None:
    """Under a temporary name first, then moved: a reader, or a crash, never sees half a file."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        os.chmod(name, 0o666 & ~_mask())
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _mask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
