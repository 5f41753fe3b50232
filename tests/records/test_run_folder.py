"""A run folder keeps what it was given, refuses a second writer, and is exact after a resume."""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from spherometer.records import (
    Event,
    RecordError,
    RunReader,
    RunWriter,
    export_runs,
    find_runs,
    read_runs,
    read_tensors,
    write_tensors,
)
from spherometer.records import files as whole_files
from spherometer.records.schema import ROW_COLUMNS
from spherometer.values import Estimate, Status


def rows_without_time(folder: Path) -> list[tuple]:
    """Everything about the rows but their ids and the clock."""
    columns = ["id", *ROW_COLUMNS]
    kept = [index for index, name in enumerate(columns) if name not in ("id", "time", "seconds")]
    return sorted(tuple(row[index] for index in kept) for row in RunReader(folder).rows())


def broken(folder: Path, events: list[Event]) -> None:
    """A run that writes eight steps and then breaks."""
    with RunWriter(folder, settings={"lr": 0.1}, seed=0) as run:
        for step in range(8):
            run.write(step, {"loss": 1 / (1 + step)}, events=events)
        raise RuntimeError("boom")


def test_what_is_written_is_read_back(tmp_path):
    vector = Estimate(
        torch.tensor([3.0, 2.0]),
        torch.tensor([0.1, 0.2]),
        "bound",
        "solver",
        products=7,
        status=Status(False, "too few products"),
        labels=("λ1", "λ2"),
        note="noted",
    )
    with RunWriter(tmp_path / "run", settings={"lr": 0.1, "data": {"num": 5}}, seed=3, title="a run") as run:
        assert run.write(10, {"loss": 0.5, "top": vector, "bad": float("nan"), "huge": float("inf")})
        reader = RunReader(tmp_path / "run")
        assert reader.state == "running"
    assert reader.state == "done"
    assert reader.manifest["settings"] == {"lr": 0.1, "data": {"num": 5}}
    assert (reader.manifest["seed"], reader.manifest["title"]) == (3, "a run")
    assert reader.manifest["provenance"]["libraries"]["torch"].startswith("2.")
    rows = {(row[2], row[3]): dict(zip(("id", *ROW_COLUMNS), row, strict=True)) for row in reader.rows()}
    assert rows["loss", ""]["value"] == 0.5
    assert rows["bad", ""]["value"] is None
    assert rows["bad", ""]["message"] == "not a number"
    assert rows["huge", ""]["value"] == float("inf")
    second = rows["top", "λ2"]
    assert (second["value"], second["error"]) == pytest.approx((2.0, 0.2), rel=1e-6)
    assert (second["kind"], second["source"]) == ("bound", "solver")
    assert (second["converged"], second["message"], second["note"]) == (0, "too few products", "noted")
    assert [rows["top", part]["products"] for part in ("λ1", "λ2")] == [7, 0]


def test_a_step_is_written_whole_or_not_at_all(tmp_path):
    with RunWriter(tmp_path) as run:
        with pytest.raises(TypeError, match="expected an array of numbers"):
            run.write(1, {"loss": 1.0}, arrays={"bad": ["a", "b"]})
        assert RunReader(tmp_path).rows() == []


def test_writing_again_replaces_and_is_seen_as_new(tmp_path):
    with RunWriter(tmp_path) as run:
        run.write(1, {"loss": 1.0})
        run.write(2, {"loss": 2.0})
        seen = RunReader(tmp_path).rows()[-1][0]
        run.write(1, {"loss": 1.5})
        rows = RunReader(tmp_path).rows()
        assert [(row[1], row[4]) for row in rows] == [(2, 2.0), (1, 1.5)]
        assert [row[4] for row in RunReader(tmp_path).rows(after=seen)] == [1.5]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int64, torch.bool, torch.bfloat16])
@pytest.mark.parametrize("size", [3, 600_000])
def test_arrays_small_and_large_come_back(tmp_path, dtype, size):
    values = (torch.arange(size) % 7).to(dtype).view(3, -1)
    with RunWriter(tmp_path) as run:
        run.write(5, arrays={"spectrum: a/b": values})
        run.write(6, arrays={"zero-dimensional": torch.tensor(2.5)})
    reader = RunReader(tmp_path)
    found = reader.array(5, "spectrum: a/b")
    assert found.shape == tuple(values.shape)
    assert (found == values.float().numpy()).all()
    assert reader.array(6, "zero-dimensional").shape == ()
    large = values.element_size() * values.numel() > 1_000_000 or (dtype == torch.bfloat16 and size > 250_000)
    assert bool(list(tmp_path.glob("arrays/*.safetensors"))) == large
    with pytest.raises(KeyError, match="no array 'other'"):
        reader.array(5, "other")


def test_events_and_states_are_kept(tmp_path):
    with pytest.raises(RuntimeError, match="boom"):
        broken(tmp_path / "failed", events=[Event(3, "catapult", "the loss jumped", {"ratio": float("inf")})])
    reader = RunReader(tmp_path / "failed")
    assert reader.state == "failed"
    assert reader.status[-1]["message"] == "RuntimeError: boom"
    assert reader.events()[0]["details"] == {"ratio": "inf"}
    with pytest.raises(KeyboardInterrupt), RunWriter(tmp_path / "stopped"):
        raise KeyboardInterrupt
    assert RunReader(tmp_path / "stopped").state == "stopped"


def test_two_writers_are_refused_in_one_process_and_in_two(tmp_path):
    with RunWriter(tmp_path) as run:
        run.write(1, {"loss": 1.0})
        with pytest.raises(RecordError, match="somebody is writing"):
            RunWriter(tmp_path, resume=True)
        code = "import sys; from spherometer.records import RunWriter; RunWriter(sys.argv[1], resume=True)"
        other = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True)
        assert other.returncode == 1
        assert "somebody is writing" in other.stderr
        assert run.write(2, {"loss": 2.0})
    assert [row[4] for row in RunReader(tmp_path).rows()] == [1.0, 2.0]
    RunWriter(tmp_path, resume=True).close()


def test_a_forked_process_may_not_write_and_does_not_hold_the_lock(tmp_path):
    run = RunWriter(tmp_path)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            run.write(1, {"loss": 1.0})
        except RecordError as error:
            os.write(writing, str(error).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert b"only the process that opened" in os.read(reading, 1000)
    assert run.write(2, {"loss": 2.0})
    run.close()


def test_resume_wants_the_same_settings_and_gives_the_same_rows(tmp_path):
    def write(run: RunWriter, steps: range) -> None:
        for step in steps:
            run.write(step, {"loss": 1 / (1 + step)})

    with RunWriter(tmp_path / "whole", settings={"lr": 0.1}, seed=0) as run:
        write(run, range(10))
    with pytest.raises(RuntimeError):
        broken(tmp_path / "broken", events=[])
    with pytest.raises(RecordError, match="holds a run already"):
        RunWriter(tmp_path / "broken", settings={"lr": 0.1}, seed=0)
    with pytest.raises(RecordError, match="expected the settings of the run"):
        RunWriter(tmp_path / "broken", settings={"lr": 0.2}, seed=0, resume=True)
    with pytest.raises(RecordError, match="expected the seed of the run"):
        RunWriter(tmp_path / "broken", settings={"lr": 0.1}, seed=1, resume=True)
    with RunWriter(tmp_path / "broken", settings={"lr": 0.1}, seed=0, resume=True) as run:
        run.rewind(5)
        assert RunReader(tmp_path / "broken").last_step() == 5
        write(run, range(6, 10))
    assert rows_without_time(tmp_path / "broken") == rows_without_time(tmp_path / "whole")
    assert [entry["state"] for entry in RunReader(tmp_path / "broken").status] == [
        "running",
        "failed",
        "running",
        "done",
    ]


def test_fifty_killed_writers_lose_nothing_that_was_acknowledged(tmp_path):
    script = Path(__file__).with_name("killed_writers.py")
    run = subprocess.run([sys.executable, script, tmp_path, "50"], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert (found["kills"], found["lost"]) == (50, 0)
    assert found["acknowledged"] > 50
    assert set(found["states"]) == {"killed"}


def test_the_search_for_lost_rows_can_fail(tmp_path):
    from records.killed_writers import lost_of

    with RunWriter(tmp_path) as run:
        run.write(
            1, {"square": 1, "half": 0.5}, arrays={"small": np.ones(5)}, events=[Event(1, "tick", "", {"step": 1})]
        )
        run.write(2, {"square": 4, "half": 2.0}, arrays={"small": np.full(5, 2)})
    assert lost_of(RunReader(tmp_path), [1]) == 0
    assert lost_of(RunReader(tmp_path), [1, 2]) == 1
    assert lost_of(RunReader(tmp_path), [3]) == 1


def full(run: RunWriter) -> None:
    """Let the database grow no further: SQLite then says what it says on a full disk."""
    pages = run._connection.execute("PRAGMA page_count").fetchone()[0]
    run._connection.execute(f"PRAGMA max_page_count = {pages}")


def test_a_full_disk_is_a_clear_error(tmp_path):
    run = RunWriter(tmp_path)
    full(run)
    with pytest.raises(RecordError, match="the disk is full: free some space"):
        run.write(1, arrays={"spectrum": np.zeros(50_000)})
    assert run.write(2, {"loss": 1.0})
    run.close()
    assert [row[1] for row in RunReader(tmp_path).rows()] == [2]


def test_training_goes_on_when_asked_to_and_rows_wait_for_room(tmp_path):
    run = RunWriter(tmp_path, on_error="warn")
    full(run)
    with pytest.warns(RuntimeWarning, match=r"the disk is full.*1 writes wait"):
        assert run.write(1, {"loss": 1.0}, arrays={"spectrum": np.zeros(50_000)}) is False
    with pytest.warns(RuntimeWarning, match="2 writes wait"):
        assert run.write(2, {"loss": 2.0}) is False
    run._connection.execute("PRAGMA max_page_count = 1000000")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run.write(3, {"loss": 3.0})
        run.close()
    assert [row[4] for row in RunReader(tmp_path).rows()] == [1.0, 2.0, 3.0]
    assert RunReader(tmp_path).array(1, "spectrum").shape == (50_000,)


def test_a_full_disk_leaves_no_half_file(tmp_path, monkeypatch):
    def no_room(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with RunWriter(tmp_path) as run:
        monkeypatch.setattr(whole_files.os, "fsync", no_room)
        with pytest.raises(RecordError, match="the disk is full"):
            run.write(1, arrays={"large": np.zeros(200_000)})
        assert list((tmp_path / "arrays").iterdir()) == []
        monkeypatch.undo()
        assert run.write(1, arrays={"large": np.zeros(200_000)})


def test_tensors_are_whole_or_refused(tmp_path):
    write_tensors(tmp_path / "deep" / "weights.safetensors", {"w": torch.ones(3), "b": torch.zeros(())})
    found = read_tensors(tmp_path / "deep" / "weights.safetensors")
    assert found["w"].tolist() == [1, 1, 1]
    assert found["b"].shape == ()
    (tmp_path / "half.safetensors").write_bytes((tmp_path / "deep" / "weights.safetensors").read_bytes()[:20])
    with pytest.raises(RecordError, match="expected a whole safetensors file"):
        read_tensors(tmp_path / "half.safetensors")


def test_strange_files_are_refused(tmp_path):
    (tmp_path / "run.db").write_bytes(b"not a database at all, but quite long" * 100)
    with pytest.raises(RecordError, match=r"run\.db: expected a run of Spherometer"):
        RunReader(tmp_path).manifest  # noqa: B018
    with pytest.raises(RecordError):
        RunWriter(tmp_path, resume=True)
    with pytest.raises(RecordError, match="expected a folder with runs"):
        find_runs(tmp_path / "absent")


def test_a_run_of_the_future_is_refused(tmp_path):
    RunWriter(tmp_path).close()
    with sqlite3.connect(tmp_path / "run.db") as connection:
        connection.execute("UPDATE manifest SET value = '99' WHERE key = 'schema'")
    with pytest.raises(RecordError, match="written by a newer Spherometer"):
        RunReader(tmp_path).manifest  # noqa: B018


def test_a_wrong_answer_to_trouble_is_refused(tmp_path):
    with pytest.raises(ValueError, match="expected on_error='raise' or 'warn'"):
        RunWriter(tmp_path, on_error="ignore")


@pytest.fixture
def sweep(tmp_path) -> Path:
    for lr in (0.1, 0.2):
        with RunWriter(tmp_path / "sweep" / f"lr{lr}", settings={"lr": lr, "data": {"num": 5}}, seed=0) as run:
            for step in range(3):
                run.write(step, {"loss": lr * step, "sharpness": Estimate(2 / lr, 0.1, source="solver", products=3)})
            run.write(2, events=[Event(2, "edge of stability", "reached", {"ratio": 1.0})])
    return tmp_path / "sweep"


def test_one_call_reads_many_runs_into_a_table(sweep):
    table = read_runs(sweep, settings=["lr", "data.num"])
    assert table.shape == (12, 1 + len(ROW_COLUMNS) + 2)
    assert table["run"].unique().sort().to_list() == ["lr0.1", "lr0.2"]
    sharp = read_runs(sweep, names=["sharpness"], settings=["lr"])
    assert (sharp["value"] * sharp["lr"]).to_list() == pytest.approx([2.0] * 6)
    assert sharp["converged"].all()
    assert read_runs(sweep, "events")["name"].to_list() == ["edge of stability"] * 2
    runs = read_runs(sweep, "runs")
    assert runs["state"].to_list() == ["done", "done"]
    assert runs["lr"].to_list() == [0.1, 0.2]
    assert runs["last_step"].to_list() == [2, 2]
    assert read_runs(sweep / "lr0.1")["run"].to_list() == ["."] * 6
    with pytest.raises(KeyError, match=r"they have data\.num, lr"):
        read_runs(sweep, settings=["learning_rate"])
    with pytest.raises(ValueError, match="expected 'rows', 'events' or 'runs'"):
        read_runs(sweep, "columns")


def test_a_setting_that_only_some_runs_have_is_empty_in_the_others(sweep):
    with RunWriter(sweep / "tracked", settings={"momentum": 0.9}, seed=0) as run:
        run.write(0, {"loss": 1.0})
    table = read_runs(sweep, names=["loss"], settings=["lr", "momentum"], frame="columns")
    found = {
        run: (lr, momentum) for run, lr, momentum in zip(*(table[k] for k in ("run", "lr", "momentum")), strict=True)
    }
    assert found == {"lr0.1": (0.1, None), "lr0.2": (0.2, None), "tracked": (None, 0.9)}


def test_an_empty_folder_is_an_empty_table(tmp_path):
    assert read_runs(tmp_path).shape == (0, 1 + len(ROW_COLUMNS))
    assert read_runs(tmp_path, "runs").height == 0
    RunWriter(tmp_path).close()
    assert read_runs(tmp_path).height == 0


def test_pandas_is_handed_the_same_columns(sweep, monkeypatch):
    class Stand:
        __name__ = "pandas"

        @staticmethod
        def DataFrame(columns: dict) -> tuple:
            return ("frame", columns)

    monkeypatch.setitem(sys.modules, "pandas", Stand())
    kind, columns = read_runs(sweep, frame="pandas")
    assert kind == "frame"
    assert columns == read_runs(sweep, frame="columns")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="pip install pandas"):
        read_runs(sweep, frame="pandas")


def test_tables_are_exported(sweep, tmp_path):
    import polars

    table = read_runs(sweep)
    parquet = polars.read_parquet(export_runs(sweep, tmp_path / "out" / "rows.parquet"))
    assert parquet.equals(table)
    text = polars.read_csv(export_runs(sweep, tmp_path / "rows.csv", names=["loss"]))
    assert text["value"].to_list() == table.filter(polars.col("name") == "loss")["value"].to_list()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["rows.parquet"]
    with pytest.raises(ValueError, match=r"ends in \.csv or \.parquet"):
        export_runs(sweep, tmp_path / "rows.xlsx")


def test_a_killed_run_in_a_folder_that_may_not_be_touched_is_read_from_a_copy(tmp_path, monkeypatch):
    with RunWriter(tmp_path) as run:
        run.write(1, {"loss": 1.0})
    monkeypatch.setattr(RunReader, "_connections", lambda self: iter(()))
    assert [row[4] for row in RunReader(tmp_path).rows()] == [1.0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.db", "run.db-journal", "run.lock"]
