"""Any number of runs as one table, and the table as a file."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from spherometer.records.errors import telling
from spherometer.records.files import write_whole
from spherometer.records.reader import RunReader, find_runs
from spherometer.records.schema import ROW_COLUMNS, flat, to_json

What = Literal["rows", "events", "runs"]
Columns = dict[str, list[Any]]
KINDS = {int: {"step", "products"}, float: {"value", "error", "low", "high", "seconds", "time"}, bool: {"converged"}}


def read_runs(
    folder: str | Path,
    what: What = "rows",
    *,
    names: Iterable[str] | None = None,
    settings: Sequence[str] = (),
    frame: Literal["polars", "pandas", "columns"] = "polars",
) -> Any:
    """All runs in a folder and below it as one table: their rows, their events, or one line for each run.

    Args:
        names: of the quantities wanted; all by default.
        settings: of the manifest to add as columns, nested ones with dots: "optimizer.lr".
        frame: the library of the table; "columns" needs none and is a dictionary of lists.

    Example:
        >>> table = read_runs("runs", names=["sharpness"], settings=["lr"])
        >>> table.group_by("lr").agg(pl.col("value").max())
    """
    if what not in ("rows", "events", "runs"):
        raise ValueError(f"expected 'rows', 'events' or 'runs', got {what!r}")
    if frame not in ("polars", "pandas", "columns"):
        raise ValueError(f"expected frame='polars', 'pandas' or 'columns', got {frame!r}")
    runs, root = find_runs(folder), Path(folder)
    described = {"." if run.folder == root else run.folder.relative_to(root).as_posix(): run for run in runs}
    columns = _summaries(described) if what == "runs" else _entries(described, what, names, settings)
    return columns if frame == "columns" else _framed(columns, _library(frame))


def export_runs(folder: str | Path, path: str | Path, what: What = "rows", **options: Any) -> Path:
    """The table of `read_runs` as a .csv or .parquet file, whole or not at all.

    Example:
        >>> export_runs("runs", "sharpness.parquet", names=["sharpness"], settings=["lr"])
    """
    target = Path(path)
    if target.suffix not in (".csv", ".parquet"):
        raise ValueError(f"expected a file that ends in .csv or .parquet, got {target.name!r}")
    if target.suffix == ".csv":
        content = _as_csv(read_runs(folder, what, frame="columns", **options))
    else:
        buffer = io.BytesIO()
        read_runs(folder, what, frame="polars", **options).write_parquet(buffer)
        content = buffer.getvalue()
    with telling(target):
        write_whole(target, content)
    return target


def _entries(runs: Mapping[str, RunReader], what: str, names: Iterable[str] | None, settings: Sequence[str]) -> Columns:
    wanted = None if names is None else set(names)
    header = ("run", *ROW_COLUMNS) if what == "rows" else ("run", "step", "name", "text", "details", "time")
    columns: Columns = {name: [] for name in (*header, *settings)}
    told = {name: _cells(run.manifest["settings"]) for name, run in runs.items()}
    _refuse_unknown(settings, told.values())
    for name, run in runs.items():
        chosen = [told[name].get(key) for key in settings]
        if what == "rows":
            found = [(name, *row[1:]) for row in run.rows(names=wanted)]
        else:
            events = (event for event in run.events() if wanted is None or event["name"] in wanted)
            found = [(name, e["step"], e["name"], e["text"], to_json(e["details"]), e["time"]) for e in events]
        for column, values in zip(header, zip(*found, strict=True), strict=False):
            columns[column].extend(values)
        for key, value in zip(settings, chosen, strict=True):
            columns[key].extend([value] * len(found))
    if wanted and runs and not columns["name"]:
        known = sorted({entry for run in runs.values() for entry in run.names()})
        if known:
            raise KeyError(f"no run has {' or '.join(sorted(wanted))}; they have {', '.join(known)}")
    if "converged" in columns:
        columns["converged"] = [bool(value) for value in columns["converged"]]
    return columns


def _summaries(runs: Mapping[str, RunReader]) -> Columns:
    lines = []
    for name, run in runs.items():
        manifest, last = run.manifest, run.status[-1]
        line = {"run": name, "title": manifest["title"], "state": run.state, "message": last["message"]}
        line |= {"seed": manifest["seed"], "last_step": run.last_step(), "started": manifest["provenance"]["started"]}
        line["changed"] = datetime.fromtimestamp(last["time"], UTC).isoformat(timespec="seconds")
        lines.append(line | _cells(manifest["settings"]))
    header = list(dict.fromkeys(key for line in lines for key in line)) or ["run"]
    return {key: [line.get(key) for line in lines] for key in header}


def _cells(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: to_json(value) if isinstance(value, list) else value for name, value in flat(settings).items()}


def _refuse_unknown(settings: Sequence[str], told: Collection[Mapping[str, Any]]) -> None:
    """A setting that some runs have is empty in the others; one that none has is a mistake."""
    known = sorted({key for cells in told for key in cells})
    for key in settings:
        if told and key not in known:
            raise KeyError(f"expected a setting of the runs, got {key!r}: they have {', '.join(known) or 'none'}")


def _library(name: str) -> ModuleType:
    try:
        return __import__(name)
    except ImportError:
        advice = "pip install 'spherometer[frames]'" if name == "polars" else f"pip install {name}"
        raise ImportError(f"this table needs {name}, which is not installed: {advice}, or frame='columns'") from None


def _framed(columns: Columns, library: ModuleType) -> Any:
    if library.__name__ != "polars":
        return library.DataFrame(columns)
    kinds = {int: library.Int64, float: library.Float64, bool: library.Boolean}
    schema = {name: kinds[kind] for kind, names in KINDS.items() for name in names if name in columns}
    return library.DataFrame(columns, schema_overrides=schema, strict=False)


def _as_csv(columns: Columns) -> bytes:
    stream = io.StringIO()
    writer = csv.writer(stream)
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return stream.getvalue().encode()
