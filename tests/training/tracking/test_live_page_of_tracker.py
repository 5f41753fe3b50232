"""`Tracker(..., watch=True)`: a page of its own process that goes when the training goes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest
import torch

from spherometer.records import RunReader
from training.tracking.tracked_loops import train


def is_gone(address: str, patience: float = 60.0) -> bool:
    end = time.monotonic() + patience
    while time.monotonic() < end:
        try:
            urlopen(f"{address}runs", timeout=5).close()
        except (URLError, ConnectionError):
            return True
        time.sleep(0.1)
    return False


def told_by(address: str, state: str, patience: float = 60.0) -> dict[str, object]:
    """The only run, once it is in a state."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        with urlopen(f"{address}runs", timeout=20) as reply:
            (told,) = json.load(reply)["runs"]
        if (told["state"], told["step"]) == (state, 12):
            return told
        time.sleep(0.1)
    raise AssertionError(told)


def test_the_page_shows_the_run_and_ends_with_the_tracker(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    plain, _ = train("plain", None)
    model, tracker = train("plain", {"every": 2, "run": tmp_path / "run", "watch": True})
    for one, other in zip(plain.parameters(), model.parameters(), strict=True):
        assert torch.equal(one, other)
    address = tracker.page
    assert f"spherometer: live page at {address}\n" in capfd.readouterr().err
    assert told_by(address, "running")["label"] == "run"
    tracker.close()
    told_by(address, "done")
    del tracker
    assert is_gone(address)


def test_the_page_of_a_killed_training_goes_too(tmp_path: Path):
    code = (
        "import sys, time; from pathlib import Path; from spherometer.training.tracking.live_page import LivePage; "
        "page = LivePage(Path(sys.argv[1])); print(page.address, flush=True); time.sleep(100)"
    )
    with subprocess.Popen([sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE, text=True) as training:
        address = training.stdout.readline().strip()
        urlopen(f"{address}runs", timeout=20).close()
        os.kill(training.pid, signal.SIGKILL)
    assert is_gone(address)


def test_a_page_needs_a_run_folder():
    with pytest.raises(ValueError, match="expected run= with watch=True"):
        train("plain", {"watch": True})


def test_a_page_that_cannot_start_says_why_and_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("spherometer.training.tracking.live_page.sys.executable", "/bin/false")
    with pytest.raises(RuntimeError, match="the live page could not be started"):
        train("plain", {"run": tmp_path / "run", "watch": True})
    assert RunReader(tmp_path / "run").state == "failed"
