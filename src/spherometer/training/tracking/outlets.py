"""Where the numbers of a tracker go: memory, a run folder with or without a live page, and any number of sinks."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, Protocol

from spherometer.records import Event, RecordError, Row, RunWriter
from spherometer.records.schema import rows_of
from spherometer.training.tracking.live_page import LivePage

Trouble = Literal["raise", "warn"]


class Sink(Protocol):
    """Anything that takes a dictionary of numbers and a step: a W&B run, for one."""

    def log(self, values: dict[str, float], step: int) -> Any:
        """Take the numbers of one step."""


class Outlets:
    """Rows and events in memory, in the run folder if there is one, and in every sink."""

    def __init__(
        self,
        run: RunWriter | str | os.PathLike[str] | None,
        sinks: Sequence[Sink | Callable[[dict[str, float], int], Any]],
        settings: Callable[[], Mapping[str, Any]],
        seed: int,
        on_error: Trouble,
        watch: bool = False,
    ) -> None:
        if watch and run is None:
            raise ValueError("expected run= with watch=True: the live page reads the folder of the run")
        for sink in sinks:
            if not callable(getattr(sink, "log", sink)):
                raise TypeError(f"expected sinks with log(dict, step), or functions of these, got {sink!r}")
        self.rows: list[Row] = []
        self.events: list[Event] = []
        self._sinks: list[Any] = [getattr(sink, "log", sink) for sink in sinks]
        self._own = run is not None and not isinstance(run, RunWriter)
        self.run = (
            run
            if run is None or isinstance(run, RunWriter)
            else RunWriter(run, settings=settings(), seed=seed, title="tracked run", on_error=on_error)
        )
        self.page: LivePage | None = None
        if watch and self.run is not None:
            try:
                self.page = LivePage(self.run.folder)
            except Exception as error:
                self.close(error)
                raise
            sys.stderr.write(f"spherometer: live page at {self.page.address}\n")

    def write(
        self,
        step: int,
        values: Mapping[str, Any],
        events: Iterable[Event] = (),
        arrays: Mapping[str, Any] | None = None,
    ) -> None:
        """All of one moment: to the folder first, so that what is shown elsewhere is on disk."""
        told = list(events)
        rows = [row for name, value in values.items() for row in rows_of(step, name, value)]
        self.rows += rows
        self.events += told
        if self.run is not None:
            self.run.write(step, values, arrays=arrays, events=told)
        if self._sinks and rows:
            numbers: dict[str, float] = {}
            for row in rows:
                name = f"{row.name}/{row.part}" if row.part else row.name
                numbers |= {name: row.value} if row.value is not None else {}
                numbers |= {f"{name}/error": row.error} if row.error else {}
            for log in self._sinks:
                log(dict(numbers), step)

    def tell(self, event: Event) -> None:
        """A failure: in memory for sure, on disk unless that is what fails."""
        self.events.append(event)
        if self.run is not None and not self.run.closed:
            with suppress(RecordError):
                self.run.write(event.step, events=[event])

    def close(self, error: BaseException | None) -> None:
        """End a run folder that was opened here."""
        if self._own and self.run is not None:
            self.run.__exit__(None if error is None else type(error), error, None)
