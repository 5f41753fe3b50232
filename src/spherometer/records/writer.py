"""The one writer of a run folder."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from spherometer.records.errors import RecordError, telling
from spherometer.records.lock import Lock
from spherometer.records.provenance import provenance
from spherometer.records.reader import RunReader
from spherometer.records.schema import (
    ARRAY_COLUMNS,
    DATABASE,
    EVENT_COLUMNS,
    ROW_COLUMNS,
    TABLES,
    VERSION,
    Event,
    rows_of,
    to_json,
)
from spherometer.records.tensors import as_array, packed

State = Literal["running", "done", "failed", "stopped"]
MAX_WAITING = 10_000  # writes kept in memory while the disk refuses them
PATIENCE = 30.0  # seconds a write waits for a reader

Work = Callable[[sqlite3.Connection], None]


class RunWriter:
    """A run folder being written: the manifest first, then rows, arrays and events, a final status last.

    A call of `write` is one transaction: once it returns, a killed process does not lose it. The same step and name
    written again replace the old row, so a run that is resumed from a checkpoint ends with the rows of an undisturbed
    one. As a context it ends the run as done, failed (with the error) or stopped (by the keyboard).

    Args:
        settings: what decides the numbers; a resumed run must have the same.
        resume: go on with a run that is there already.
        on_error: "raise" stops at a disk that refuses; "warn" keeps rows in memory and tries again with the next write.

    Example:
        >>> with RunWriter(folder, settings={"lr": 0.1}, seed=0) as run:
        ...     run.write(10, {"loss": 0.5, "sharpness": measurements["sharpness"]})
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        settings: Mapping[str, Any] | None = None,
        seed: int | None = None,
        title: str = "",
        resume: bool = False,
        on_error: Literal["raise", "warn"] = "raise",
    ) -> None:
        if on_error not in ("raise", "warn"):
            raise ValueError(f"expected on_error='raise' or 'warn', got {on_error!r}")
        self.folder, self.on_error = Path(folder), on_error
        self._path = self.folder / DATABASE
        self._turn, self._waiting, self._owner = threading.Lock(), list[Work](), os.getpid()
        with telling(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = Lock(self.folder)
        try:
            self._connection = self._connect()
            self._begin({"settings": dict(settings or {}), "seed": seed}, title, resume)
        except BaseException:
            self._lock.release()
            raise
        self.closed = self._done = False

    def write(
        self,
        step: int,
        values: Mapping[str, Any] | None = None,
        *,
        arrays: Mapping[str, Any] | None = None,
        events: Iterable[Event] = (),
    ) -> bool:
        """Numbers (plain, Estimate or Measurement), arrays and events of one step, all or none; True once on disk."""
        rows = [row.record for name, value in (values or {}).items() for row in rows_of(step, name, value)]
        blocks = {name: as_array(array) for name, array in (arrays or {}).items()}
        happened, now = [event.record for event in events], time.time()

        def work(connection: sqlite3.Connection) -> None:
            connection.executemany(_replacing("rows", ROW_COLUMNS), rows)
            connection.executemany(_replacing("events", EVENT_COLUMNS), happened)
            packs = [(step, name, *packed(self.folder, step, name, block), now) for name, block in blocks.items()]
            connection.executemany(_replacing("arrays", ARRAY_COLUMNS), packs)

        return self._do(work)

    def rewind(self, step: int) -> None:
        """Forget what was written after a step, the one of the checkpoint from which training goes on."""

        def work(connection: sqlite3.Connection) -> None:
            for table in ("rows", "arrays", "events"):
                connection.execute(f"DELETE FROM {table} WHERE step > ?", (step,))

        self._do(work)

    def close(self, state: State = "done", message: str = "") -> None:
        """Write the final status and let go of the folder; a second call does nothing."""
        if self.closed:
            return
        self.closed = True
        try:
            self._do(lambda connection: _set_state(connection, state, message))
        finally:
            self._done = True
            self._connection.close()
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            stopped = isinstance(error, KeyboardInterrupt)
            self.close("stopped" if stopped else "failed", f"{type(error).__name__}: {error}")

    def _connect(self) -> sqlite3.Connection:
        with telling(self._path):
            connection = sqlite3.connect(self._path, timeout=PATIENCE, isolation_level=None, check_same_thread=False)
            connection.execute("PRAGMA journal_mode = TRUNCATE")  # a rollback journal: right on network disks too
            return connection

    def _begin(self, decisive: dict[str, Any], title: str, resume: bool) -> None:
        reader = RunReader(self.folder)
        session = provenance()
        if not reader.exists:
            manifest = {"schema": VERSION, "title": title, **decisive, "provenance": session}

            def create(connection: sqlite3.Connection) -> None:
                for statement in TABLES.strip().rstrip(";").split(";"):
                    connection.execute(statement)
                entries = [(key, to_json(value)) for key, value in manifest.items()]
                connection.executemany("INSERT INTO manifest VALUES (?, ?)", entries)
                _set_state(connection, "running", "", session)

            self._transact([create])
            return
        if not resume:
            raise RecordError(
                f"{self.folder}: holds a run already ({reader.state}): choose another folder, or go on with it by "
                "RunWriter(folder, ..., resume=True)"
            )
        _refuse_other_settings(self.folder, reader.manifest, decisive)
        self._transact([lambda connection: _set_state(connection, "running", "resumed", session)])

    def _do(self, work: Work) -> bool:
        """Everything that waits, then this, in one transaction."""
        if self._done:
            raise RecordError(f"{self.folder}: the run has ended: open it again with resume=True to write more")
        if os.getpid() != self._owner:
            raise RecordError(f"{self.folder}: only the process that opened a run may write to it")
        with self._turn:
            self._waiting.append(work)
            try:
                self._transact(self._waiting)
            except RecordError as error:
                if self.on_error == "raise":
                    self._waiting.clear()
                    raise
                del self._waiting[:-MAX_WAITING]
                warnings.warn(f"{error} ({len(self._waiting)} writes wait in memory)", RuntimeWarning, stacklevel=4)
                return False
            self._waiting.clear()
            return True

    def _transact(self, works: Iterable[Work]) -> None:
        connection = self._connection
        with telling(self._path):
            connection.execute("BEGIN IMMEDIATE")
            try:
                for work in works:
                    work(connection)
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:  # a full disk may have rolled back by itself
                    connection.execute("ROLLBACK")
                raise


def _replacing(table: str, columns: tuple[str, ...]) -> str:
    return f"INSERT OR REPLACE INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"


def _set_state(
    connection: sqlite3.Connection, state: str, message: str, session: Mapping[str, Any] | None = None
) -> None:
    entry = (time.time(), state, message, None if session is None else to_json(session))
    connection.execute("INSERT INTO status (time, state, message, session) VALUES (?, ?, ?, ?)", entry)


def _refuse_other_settings(folder: Path, manifest: Mapping[str, Any], decisive: Mapping[str, Any]) -> None:
    for key, wanted in decisive.items():
        if to_json(wanted) != to_json(manifest[key]):
            raise RecordError(
                f"{folder}: expected the {key} of the run that is there, {to_json(manifest[key])}, got "
                f"{to_json(wanted)}: resume with the same, or choose another folder"
            )
