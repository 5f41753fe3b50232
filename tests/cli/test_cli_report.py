"""`spherometer report`: a page from a folder of results, one line for what cannot be read."""

from __future__ import annotations

import json
from pathlib import Path

from cli_outcomes import assert_refused

from report.made_up import write_results


def test_the_page_is_written_beside_the_results(run, tmp_path: Path):
    write_results(tmp_path / "laptop", range(3))
    outcome = run("report", "laptop")
    assert outcome.code == 0  # failing claims are findings; `run` tells them by its exit code
    assert "laptop: 3 recipes; " in outcome.out
    assert "fail" in outcome.out
    assert "The page: laptop/report.html" in outcome.out
    assert "<h2>Verdicts</h2>" in (tmp_path / "laptop" / "report.html").read_text(encoding="utf-8")


def test_troubles_and_differences_are_told(run, tmp_path: Path):
    write_results(tmp_path / "one", range(4))
    write_results(tmp_path / "two", range(4), seed=1)
    (tmp_path / "two" / "recipes" / "A-F1.laptop" / "result.json").write_text("{", encoding="utf-8")
    outcome = run("report", "one", "--compare", "two", "-o", "deep/page.html")
    assert outcome.code == 0
    assert "answers differ" in outcome.out
    assert "left out: two: A-F1.laptop: result.json is not JSON" in " ".join(outcome.out.split())
    assert (tmp_path / "deep" / "page.html").is_file()
    assert not (tmp_path / "one" / "report.html").exists()
    told = json.loads(run("report", "one", "--compare", "two", "--json").out)
    assert [entry["id"] for entry in told["folders"]["one"]] == ["A-F1", "A-F2", "A-F5", "A-F29"]
    assert len(told["troubles"]) == 1


def test_the_catalogue_tells_times_and_damaged_results(run, tmp_path: Path):
    write_results(tmp_path / "here", range(2))
    (tmp_path / "here" / "recipes" / "A-F2.laptop" / "result.json").write_text("{", encoding="utf-8")
    outcome = run("recipes", "--out", "here", "--json")
    assert outcome.code == 0
    found = {entry["id"]: entry for entry in json.loads(outcome.out)["recipes"]}
    assert found["A-F2"]["done"]["laptop"] == "A-F2.laptop: result.json is not JSON: half-written, or damaged"
    assert found["A-F1"]["done"]["laptop"].endswith("of computing")
    assert found["A-F1"]["times"]["smoke"].startswith("seconds")
    assert "not known" in found["A-F1"]["times"]["paper"]
    assert "A-F2.laptop" in "".join(run("recipes", "--out", "here").out.split())
    assert "paper: not known" in run("recipes", "A-F1", "--out", "here").out


def test_wrong_use_is_refused_and_writes_nothing(run, tmp_path: Path):
    assert_refused(run("report"), "expected DIR")
    assert_refused(run("report", "nowhere"), "expected a folder of results")
    write_results(tmp_path / "one", [0])
    assert_refused(run("report", "one", "--compare", "nowhere", "-o", "new/page.html"), "expected a folder of results")
    assert not (tmp_path / "new").exists()
    assert_refused(run("report", "one", "-o", "one"), "found a folder")
    (tmp_path / "one" / "recipes" / "A-F1.laptop" / "result.json").write_text("{", encoding="utf-8")
    assert_refused(run("report", "one"), "no result to show", "half-written")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one"]
