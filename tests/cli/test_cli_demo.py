"""`spherometer demo` and `spherometer check`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from cli_outcomes import assert_refused

from spherometer.commands.edge import Edge, reach_edge, reading
from spherometer.records import RunReader


def test_a_short_demo_writes_one_whole_page_and_touches_nothing_else(run, tmp_path: Path):
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    outcome = run("demo", "--steps", 12, "--every", 5, "--out", "page/here")
    assert outcome.code == 0, outcome.err
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)
    assert outcome.err == ""
    assert [path.name for path in (tmp_path / "page" / "here").iterdir()] == ["report.html"]
    text = (tmp_path / "page" / "here" / "report.html").read_text(encoding="utf-8")
    assert text.rstrip().endswith("</html>")
    assert "At the edge of stability" in text
    assert str(tmp_path) not in text
    for name in ("sharpness", "gauss_newton_norm", "hessian_trace", "smallest_eigenvalue"):
        assert name in outcome.out
        assert name.replace("_", " ") in text
    assert "has not reached 2/lr = 20" in " ".join(outcome.out.split())
    assert max(map(len, outcome.out.splitlines())) <= 80


def test_the_demo_as_json_is_the_same_twice(run):
    first, second = (json.loads(run("demo", "--steps", 6, "--every", 3, "--json").out) for _ in range(2))
    assert [row["step"] for row in first["rows"]] == [0, 3, 6]
    assert first["threshold"] == 20
    assert first["crossing"] is None
    for found in (first, second):
        found.pop("seconds")
        for entry in found["measurements"].values():
            entry.pop("seconds")
    assert first == second


def test_a_watched_demo_keeps_its_run(run, tmp_path: Path):
    outcome = run("demo", "--steps", 6, "--every", 3, "--json", "--out", "watched", "--watch")
    assert re.fullmatch(r"spherometer: live page at http://127\.0\.0\.1:\d+/\n", outcome.err)
    rows = json.loads(outcome.out)["rows"]
    assert [row["step"] for row in rows] == [0, 3, 6]
    reader = RunReader(tmp_path / "watched" / "run")
    assert reader.state == "done"
    assert [row[4] for row in reader.rows(names=["sharpness"])] == [row["sharpness"] for row in rows]
    assert_refused(run("demo", "--steps", 6, "--out", "watched", "--watch"), "holds a run already (done)")


def test_an_interrupted_demo_leaves_nothing(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("spherometer.commands.edge.reach_edge", interrupt)
    outcome = run("demo", "--steps", 1, "--out", "page")
    assert outcome.code == 130
    assert list((tmp_path / "page").iterdir()) == []


def test_check_agrees_here(run):
    outcome = run("check", "--json")
    assert outcome.code == 0, outcome.out
    found = json.loads(outcome.out)
    assert found["agrees"]
    assert len(found["comparisons"]) == 40


def test_check_notices_a_disagreement(run, monkeypatch: pytest.MonkeyPatch):
    from spherometer.commands import truths

    honest = truths.dense_spectrum
    monkeypatch.setattr(truths, "dense_spectrum", lambda *words: (honest(*words)[0] * 1.01, honest(*words)[1]))
    monkeypatch.setattr(truths, "NETWORKS", {"tanh": truths.NETWORKS["tanh"]})
    outcome = run("check")
    assert outcome.code == 1
    assert re.search(r"sharpness .* NO", outcome.out)


@pytest.fixture(scope="module")
def edge() -> Edge:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return reach_edge(num_steps=2500, every=20, seed=0)
    finally:
        torch.set_num_threads(before)


@pytest.mark.slow
def test_gradient_descent_reaches_the_edge_of_stability_and_stays(edge: Edge):
    assert edge.rows[0].sharpness < 15
    assert edge.crossing is not None
    assert 200 <= edge.crossing <= 700
    assert sum(edge.plateau) / len(edge.plateau) == pytest.approx(1, abs=0.02)
    assert all(abs(ratio - 1) < 0.06 for ratio in edge.plateau)
    assert edge.rows[-1].loss < 0.1 * edge.rows[0].loss
    assert "This is the edge of stability." in reading(edge)


@pytest.mark.slow
def test_tracked_sharpness_is_that_of_a_fresh_measurement(edge: Edge):
    last, fresh = edge.rows[-1], edge.measurements["sharpness"]
    assert abs(last.sharpness - float(fresh.value)) <= last.error + float(fresh.error)
