"""What the page may know: the runs below one folder, looked for again and again, each asked only for what is new."""

from __future__ import annotations

import hashlib
import math
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from spherometer.records import RecordError, RunReader
from spherometer.records.reader import ALIVE
from spherometer.records.schema import DATABASE

PATIENCE = 0.5  # seconds between two looks at the folder, however many pages ask
CALM = 5  # and so many times as long as a look takes, where that is longer
MOST = 5000  # rows, events or arrays in one answer; the page asks again for the rest
MOST_VALUES = 200  # of one array; a picture shows no more


@dataclass
class Known:
    """A run that was found, and what was last told of it; `stamp` changes whenever something is written."""

    reader: RunReader
    stamp: str = ""
    told: dict[str, Any] = field(default_factory=dict)


class Runs:
    """The runs below a folder.

    A run is asked for by a key that was given out before, never by a path: there is no way to name another file.

    Example:
        >>> runs = Runs("runs")
        >>> key = runs.overview()[0]["key"]
        >>> runs.news(key, {"rows": 0, "events": 0, "arrays": 0})
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise RecordError(f"{self.folder}: expected a folder with runs, found none: look at the path")
        self._known: dict[str, Known] = {}
        self._turn, self._next_look = threading.Lock(), -math.inf

    def overview(self) -> list[dict[str, Any]]:
        """One entry for each run, by path: key, label, title, state, message, start, last step, stamp."""
        with self._turn:
            began = time.monotonic()
            if began >= self._next_look:
                self._look()
                ended = time.monotonic()
                self._next_look = ended + max(PATIENCE, CALM * (ended - began))
            return [dict(known.told) for known in self._known.values()]

    def news(self, key: str, after: Mapping[str, int]) -> dict[str, Any]:
        """Rows, events and arrays written after the ids that are known; KeyError for an unknown key.

        `held` counts what the run holds up to the last of them: a page that holds another number was overtaken by a
        rewind, and starts again.
        """
        found = self._known[key].reader.news(after, limit=MOST)
        return {
            "rows": [_shown(row) for row in found["rows"].entries],
            "events": [[step, name, text] for _, step, name, text, *_ in found["events"].entries],
            "arrays": [[step, name] for _, step, name in found["arrays"].entries],
            "last": {table: news.last for table, news in found.items()},
            "held": {table: news.held for table, news in found.items()},
            "more": any(len(news.entries) == MOST for news in found.values()),
        }

    def snapshot(self, key: str, step: int, name: str) -> dict[str, Any]:
        """The values of an array in ascending order, at most MOST_VALUES of them; None unless it is a vector."""
        found = self._known[key].reader.array(step, name)
        values = None if found.ndim != 1 else thinned(found)
        return {"shape": list(found.shape), "values": values}

    def _look(self) -> None:
        known = {}
        for path in sorted(self.folder.rglob(DATABASE)):
            place = path.parent.relative_to(self.folder)
            key = hashlib.sha256(os.fsencode(place)).hexdigest()[:16]
            run = self._known.get(key) or Known(RunReader(path.parent))
            label = self.folder.resolve().name if place == Path() else place.as_posix()
            try:
                told = _told(run, path)
            except RecordError as error:
                told = {"state": "unreadable", "message": str(error), "stamp": ""}
            if told is not None:
                run.told = _EMPTY | told | {"key": key, "label": label}
                known[key] = run
        self._known = known


_EMPTY = {"title": "", "message": "", "started": None, "step": None}


def _told(run: Known, path: Path) -> dict[str, Any] | None:
    """What a run says of itself, from memory unless its file has changed; None for a folder without a manifest."""
    stamp = _stamp(path)
    if stamp is None:
        return None
    if run.stamp == stamp and run.told["state"] != ALIVE:
        return run.told
    if run.stamp == stamp:
        return run.told | {"state": run.reader.state}  # the only change without a write is a sudden death
    if not run.reader.exists:
        return None
    states = run.reader.status
    told = {
        "title": str(run.reader.manifest["title"]),
        "state": run.reader.state,
        "message": str(states[-1]["message"]),
        "started": states[0]["time"],
        "step": run.reader.last_step(),
        "stamp": stamp,
    }
    run.stamp = stamp
    return told


def _stamp(path: Path) -> str | None:
    """The number of transactions, which SQLite keeps in bytes 24 to 27 of a file, and the time of the last write."""
    try:
        with path.open("rb") as stream:
            head, status = stream.read(28), os.fstat(stream.fileno())
    except OSError:
        return None
    return f"{head[24:28].hex()}-{status.st_mtime_ns}-{status.st_size}"


def _shown(row: tuple[Any, ...]) -> list[Any]:
    """Step, name, part, value, error, and what is to be known about them."""
    _, step, name, part, value, error, *_, message, note, _ = row
    remark = "; ".join(word for word in (message, note) if word)
    if value is not None and not math.isfinite(value):
        remark = "; ".join(word for word in (str(value), remark) if word)
    return [step, name, part, _finite(value), _finite(error), remark]


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def thinned(values: Iterable[float] | np.ndarray) -> list[float]:
    """Finite values in ascending order; of many, the quarter of the picture at each end is whole, the rest by rank.

    Example:
        >>> thinned([3.0, 1.0, 2.0])
        [1.0, 2.0, 3.0]
    """
    found = np.sort(np.asarray(values, dtype=float).ravel())
    found = found[np.isfinite(found)]
    if len(found) > MOST_VALUES:
        found = found[list(_places(len(found)))]
    return [float(value) for value in found]


def _places(num: int) -> Iterator[int]:
    end = MOST_VALUES // 4
    yield from range(end)
    middle = MOST_VALUES - 2 * end
    yield from (end + (num - 2 * end) * place // middle for place in range(middle))
    yield from range(num - end, num)
