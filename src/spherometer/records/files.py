"""Files that are there whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Under a temporary name first, on the disk for certain, then moved: a reader, or a crash, never sees half a file.

    The folder is made where it is missing, and the file may be read by whoever may read a new file of this user's.

    Example:
        >>> write_whole(Path("runs/table.csv"), b"step,value")
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o666 & ~_mask())  # a temporary file is its owner's alone
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _mask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
