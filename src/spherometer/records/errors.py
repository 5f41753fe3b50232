"""What can go wrong between a row and the disk, in words that say what to do."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class RecordError(OSError):
    """A run folder could not be written or read; the message says why and what to do."""


class HeldError(RecordError):
    """Somebody alive holds the lock that was asked for."""


_ADVICE = {
    sqlite3.SQLITE_FULL: "the disk is full: free some space, then resume the run",
    sqlite3.SQLITE_IOERR: "the disk reports an error: look at its free space and health, then resume the run",
    sqlite3.SQLITE_BUSY: "somebody holds the file for longer than half a minute: close other programs that read it",
    sqlite3.SQLITE_READONLY: "the folder cannot be written, or was moved away: look at its permissions",
    sqlite3.SQLITE_CANTOPEN: "the file cannot be opened: look at the path and its permissions",
    sqlite3.SQLITE_CORRUPT: "the file is damaged: restore it from a copy",
    sqlite3.SQLITE_NOTADB: "expected a run of Spherometer, found another kind of file",
}


@contextmanager
def telling(path: Path) -> Iterator[None]:
    """Errors of the database and the disk as RecordErrors that name the file."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the higher bits tell details of the same trouble
        raise RecordError(f"{path}: {_ADVICE.get(code, str(error))}") from error
    except RecordError:
        raise
    except OSError as error:
        reason = _ADVICE[sqlite3.SQLITE_FULL] if error.errno == errno.ENOSPC else error.strerror or str(error)
        raise RecordError(f"{path}: {reason}") from error
