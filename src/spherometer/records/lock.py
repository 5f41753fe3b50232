"""One folder, one writer: a lock that the system takes back when its holder dies."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from spherometer.records.errors import HeldError, telling
from spherometer.records.schema import LOCK


class Lock:
    """The right to write into a run folder, as an exclusive transaction on an empty database beside it.

    SQLite's locks work on every system and on network file systems, end with their process however that ends, and are
    not inherited: a worker process of a data loader that outlives its parent does not keep the folder shut.

    Args:
        name: of the file; another name is another right.
        patience: seconds to wait for it.
    """

    def __init__(self, folder: Path, *, name: str = LOCK, patience: float = 2.0) -> None:
        path = folder / name
        with telling(path):
            self._connection = sqlite3.connect(path, timeout=patience, isolation_level=None, check_same_thread=False)
            try:
                self._connection.execute("BEGIN EXCLUSIVE")
            except sqlite3.OperationalError as error:
                self._connection.close()
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                    raise
                raise HeldError(
                    f"{folder}: somebody is writing to this run already: choose another folder, or wait for them"
                ) from None

    def release(self) -> None:
        """Let others write."""
        self._connection.close()


def is_held(folder: Path, name: str = LOCK) -> bool:
    """Whether a writer is alive."""
    path = folder / name
    if not path.exists():
        return False
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=0, isolation_level=None)
    try:
        connection.execute("SELECT * FROM sqlite_master").fetchall()
    except sqlite3.OperationalError as error:
        return error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
    finally:
        connection.close()
    return False
