"""Where a page goes: told before the work, not after it."""

from __future__ import annotations

import os
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
