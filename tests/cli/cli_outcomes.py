"""Running the command line inside the test process, and judging how it refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from spherometer.cli import main


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


Run = Callable[..., Outcome]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`run("measure", "digits-mlp")` in an empty folder, 80 columns wide."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("SPHEROMETER_DATA", raising=False)

    def call(*words: object) -> Outcome:
        capsys.readouterr()
        code = main([str(word) for word in words])
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return call


def assert_refused(outcome: Outcome, *expected: str) -> None:
    """One clear line on standard error, exit code 2, no traceback, nothing on standard output."""
    assert outcome.code == 2, outcome
    assert outcome.out == ""
    assert outcome.err.startswith("spherometer: error: "), outcome.err
    assert outcome.err.count("\n") == 1, outcome.err
    assert outcome.err.endswith("\n"), outcome.err
    assert "Traceback" not in outcome.err
    for words in expected:
        assert words in outcome.err, outcome.err
