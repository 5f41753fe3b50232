"""Reading a run folder, also while it is being written and after its writer was killed."""

from __future__ import annotations

import json
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from spherometer.records.errors import RecordError, telling
from spherometer.records.lock import is_held
from spherometer.records.schema import DATABASE, ROW_COLUMNS, VERSION
from spherometer.records.tensors import read_tensors

ALIVE = "running"
COLUMNS = {
    "rows": ("id", *ROW_COLUMNS),
    "events": ("id", "step", "name", "text", "details", "time"),
    "arrays": ("id", "step", "name"),
}
T = TypeVar("T")


class News(NamedTuple):
    """New entries of a table, the last id among them, and how many entries there are up to it.

    Whoever has read more than `held` entries has read some that a rewind took back, and begins again.
    """

    entries: list[tuple[Any, ...]]
    last: int
    held: int


def find_runs(folder: str | Path) -> list[RunReader]:
    """The runs in a folder and everywhere below it, by path; the folder may be a run itself."""
    root = Path(folder)
    if not root.is_dir():
        raise RecordError(f"{root}: expected a folder with runs, found none: look at the path")
    found = [RunReader(path.parent) for path in sorted(root.rglob(DATABASE))]
    return [run for run in found if run.exists]


class RunReader:
    """A run folder being read; each call opens and closes the file, and never keeps a writer waiting for long."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._path = self.folder / DATABASE

    @property
    def exists(self) -> bool:
        """Whether a manifest was written; a process killed before that leaves nothing to read."""
        return self._path.exists() and bool(self._select("SELECT name FROM sqlite_master WHERE name = 'manifest'"))

    @property
    def manifest(self) -> dict[str, Any]:
        """Title, settings, seed and provenance."""
        if not self.exists:
            raise RecordError(f"{self.folder}: expected a run of Spherometer, found none: look at the path")
        told = {key: json.loads(value) for key, value in self._select("SELECT key, value FROM manifest")}
        if told["schema"] > VERSION:
            raise RecordError(f"{self.folder}: written by a newer Spherometer (schema {told['schema']}): update yours")
        return told

    @property
    def state(self) -> str:
        """running, done, failed, stopped; or killed: its writer is gone and never said goodbye."""
        state = self.status[-1]["state"]
        return "killed" if state == ALIVE and not is_held(self.folder) else str(state)

    @property
    def status(self) -> list[dict[str, Any]]:
        """Every change of state: time, state, message, and the provenance of each session."""
        columns = ("time", "state", "message", "session")
        found = [dict(zip(columns, row, strict=True)) for row in self._table("status", columns, after=0)]
        return [entry | {"session": json.loads(entry["session"] or "null")} for entry in found]

    def rows(self, *, after: int = 0, names: Iterable[str] | None = None) -> list[tuple[Any, ...]]:
        """(id, *ROW_COLUMNS) in the order of writing; `after` an id gives what is new since, replaced rows included."""
        wanted = None if names is None else set(names)
        found = self._table("rows", COLUMNS["rows"], after)
        return [row for row in found if wanted is None or row[2] in wanted]

    def events(self, *, after: int = 0) -> list[dict[str, Any]]:
        """What happened, in the order of writing."""
        columns = COLUMNS["events"]
        found = [dict(zip(columns, row, strict=True)) for row in self._table("events", columns, after)]
        return [entry | {"details": json.loads(entry["details"])} for entry in found]

    def arrays(self, *, after: int = 0) -> list[tuple[int, int, str]]:
        """(id, step, name) of every array."""
        return self._table("arrays", COLUMNS["arrays"], after)

    def array(self, step: int, name: str) -> np.ndarray:
        """One array, from the database or from its file."""
        found = self._select("SELECT dtype, shape, content, file FROM arrays WHERE step = ? AND name = ?", step, name)
        if not found:
            raise KeyError(f"{self.folder}: no array {name!r} at step {step}")
        dtype, shape, content, file = found[0]
        if file is not None:
            path = (self.folder / file).resolve()
            if not path.is_relative_to(self.folder.resolve()):
                raise RecordError(f"{self.folder}: array {name!r} points outside its run: do not trust this folder")
            return read_tensors(path)["content"]
        return np.frombuffer(content, dtype).reshape(json.loads(shape)).copy()

    def news(self, after: Mapping[str, int], *, limit: int) -> dict[str, News]:
        """Of rows, events and arrays at most so many entries after an id each, all as of one moment.

        Example:
            >>> reader.news({"rows": 120, "events": 3, "arrays": 0}, limit=1000)["rows"].entries
        """

        def work(connection: sqlite3.Connection) -> dict[str, News]:
            found = {}
            for table, columns in COLUMNS.items():
                query = f"SELECT {', '.join(columns)} FROM {table} WHERE id > ? ORDER BY id LIMIT ?"
                entries = connection.execute(query, (after[table], limit)).fetchall()
                last = entries[-1][0] if entries else after[table]
                held = connection.execute(f"SELECT COUNT(*) FROM {table} WHERE id <= ?", (last,)).fetchone()[0]
                found[table] = News(entries, last, held)
            return found

        return self._read(work)

    def names(self) -> list[str]:
        """Names of all quantities and events so far."""
        return [name for (name,) in self._select("SELECT name FROM rows UNION SELECT name FROM events ORDER BY name")]

    def last_step(self) -> int | None:
        """The largest step with a row."""
        found: int | None = self._select("SELECT MAX(step) FROM rows")[0][0]
        return found

    def _table(self, table: str, columns: Iterable[str], after: int) -> list[Any]:
        return self._select(f"SELECT {', '.join(columns)} FROM {table} WHERE id > ? ORDER BY id", after)

    def _select(self, query: str, *values: Any) -> list[Any]:
        return self._read(lambda connection: connection.execute(query, values).fetchall())

    def _read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """What `work` finds in one transaction: nothing changes between its questions."""
        with telling(self._path):
            for connection in self._connections():
                try:
                    with closing(connection):
                        connection.execute("BEGIN")
                        return work(connection)
                except sqlite3.OperationalError as error:
                    if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN):
                        raise
            with tempfile.TemporaryDirectory() as copy, closing(self._copied(Path(copy))) as connection:
                return work(connection)

    def _connections(self) -> Iterator[sqlite3.Connection]:
        """For writing if that is allowed: what a killed writer had begun must be rolled back before reading."""
        for mode in ("rw", "ro"):
            address = f"{self._path.resolve().as_uri()}?mode={mode}"
            try:
                yield sqlite3.connect(address, uri=True, timeout=10, isolation_level=None)
            except sqlite3.OperationalError:
                continue

    def _copied(self, folder: Path) -> sqlite3.Connection:
        """A copy that may be rolled back where the folder itself may not be touched."""
        for path in self.folder.glob(f"{DATABASE}*"):
            shutil.copy(path, folder)
        return sqlite3.connect(folder / DATABASE, isolation_level=None)
