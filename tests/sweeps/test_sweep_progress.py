"""What a sweep shows: plain lines in a file, lines above a bar on a terminal."""

import io

import pytest
from rich.console import Console
from sweep_runs import job

from spherometer.sweeps import Outcome, Progress
from spherometer.sweeps.progress import duration, shown

FAILED = job(7)
TOLD = [
    Progress(2, 6, 0, None),
    Progress(3, 6, 2, 200.0, Outcome(job(3), "done", 12.34, 1)),
    Progress(4, 6, 2, 90.0, Outcome(job(4), "done", 3.0, 2)),
    Progress(5, 6, 1, 30.0, Outcome(job(5), "kept", 3.0)),
    Progress(6, 6, 0, 0.0, Outcome(FAILED, "failed", 0.5, 2, "ValueError: [odd] words")),
]


def screen(*, terminal: bool) -> tuple[str, Console]:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=terminal, width=60, color_system=None)
    with shown(console) as tell:
        for progress in TOLD:
            tell(progress)
    return stream.getvalue(), console


def test_plain_lines_where_nobody_watches():
    assert screen(terminal=False)[0].splitlines() == [
        "2 of 6 runs are done already",
        "[3/6] done run 3 in 12 s, about 3 min left",
        "[4/6] done run 4 in 3.0 s at attempt 2, about 90 s left",
        "[5/6] kept run 5 (done by somebody else), about 30 s left",
        f"[6/6] failed run 7 in 0.5 s at attempt 2: ValueError: [odd] words (runs/{FAILED.key}/errors.txt)",
    ]


def test_lines_and_a_bar_on_a_terminal():
    written, _ = screen(terminal=True)
    assert "done run 3 in 12 s" in written
    assert "failed run 7 in 0.5 s at attempt 2: ValueError: [odd]" in " ".join(written.split())
    assert "6/6" in written
    assert "0 running, about 0.0 s left" in written


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0.04, "0.0 s"), (9.9, "9.9 s"), (9.96, "10 s"), (99, "99 s"), (200, "3 min"), (7500, "2 h 5 min")],
)
def test_durations(seconds, told):
    assert duration(seconds) == told
