"""What the documentation says is so: examples with an output are run, and numbers in prose held against the program."""

from __future__ import annotations

import ast
import builtins
import doctest
import math
import pkgutil
import re
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import spherometer as sm
from spherometer.recipes import recipes
from spherometer.theory import DeepLinear, TwoClusters

ROOT = Path(__file__).parent.parent
NUMBER = re.compile(r"\b(?:[QTLG][1-9]\d?|[A-D]-e\d+)\b(?![./])")
ILLUSTRATIONS = {"spherometer.training.evaluation.evaluate"}  # of a network and data that the reader has


def names_for_examples() -> dict[str, Any]:
    """What an example may take for granted."""
    model = nn.Linear(3, 2)
    problem = sm.Problem(model, nn.CrossEntropyLoss(), (torch.ones(4, 3), torch.tensor([0, 1, 0, 1])))
    return {"math": math, "model": model, "nn": nn, "np": np, "problem": problem, "sm": sm, "torch": torch}


def examples_with_output() -> Iterator[doctest.DocTest]:
    """The examples of all docstrings that state what they print, with the names of their folder and module at hand."""
    for info in pkgutil.walk_packages(sm.__path__, "spherometer."):
        if info.name.endswith("__main__") or info.name.startswith("spherometer.integrations"):  # other libraries
            continue
        folder = vars(import_module(info.name.rpartition(".")[0]))
        for test in doctest.DocTestFinder().find(import_module(info.name), info.name):
            if any(example.want for example in test.examples):
                test.globs = names_for_examples() | folder | test.globs
                yield test


def unknown_names(test: doctest.DocTest) -> set[str]:
    """Names that the example takes from the reader: defined neither there nor among what is at hand."""
    tree = ast.parse("".join(example.source for example in test.examples))
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    bound = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    bound |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    bound |= {node.asname or node.name for node in ast.walk(tree) if isinstance(node, ast.alias)}
    return {node.id for node in names} - bound - set(test.globs) - set(vars(builtins))


def complaints(test: doctest.DocTest) -> str:
    """What doctest says against the example; nothing where it prints what it states."""
    said: list[str] = []
    with torch.random.fork_rng():
        torch.manual_seed(0)
        doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=said.append)
    return "".join(said)


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def as_example(text: str) -> doctest.DocTest:
    return doctest.DocTestParser().get_doctest(text, names_for_examples(), "example", None, 0)


def test_docstring_examples_print_what_they_state():
    tests = list(examples_with_output())
    assert len(tests) > 40
    assert {test.name for test in tests if unknown_names(test)} == ILLUSTRATIONS
    assert "".join(complaints(test) for test in tests if test.name not in ILLUSTRATIONS) == ""


def test_a_wrong_example_is_told():
    assert complaints(as_example(">>> torch.ones(2).sum()\ntensor(2.)\n")) == ""
    assert "Got:\n    tensor(2.)" in complaints(as_example(">>> torch.ones(2).sum()\ntensor(3.)\n"))
    assert "NameError" in complaints(as_example(">>> no_such_name\n1\n"))
    assert unknown_names(as_example(">>> x = [len(y) for y in theirs]\n>>> x\n[1]\n")) == {"theirs"}


def test_the_first_lines_of_the_readme_run(capsys):
    block = re.search(r"```python\n(.*?)```", page("README.md"), re.DOTALL)
    exec(block[1], {})  # the page's own words
    assert "sharpness" in capsys.readouterr().out


def test_the_numbers_of_the_toys_are_those_of_the_page():
    theory = page("docs/theory.md")
    toys = [DeepLinear((scale, -scale, scale), 0.7) for scale in (1.0, 2.0, 3.0, 4.0)]
    ratios = [f"{float(toy.eigenvalues[0]) / toy.trace:.2f}".lstrip("0") for toy in toys]
    assert f"{', '.join(ratios)} at $s=1..4$" in theory
    steepest = re.search(r"\\lVert J\\rVert\\le([\d.]+)\\cdot10\^{-7}", theory)
    assert TwoClusters().steepest == pytest.approx(float(steepest[1]) * 1e-7, abs=0.05e-7)


def numbers_of_papers(text: str) -> set[str]:
    """Q71, T12, L8, G5, A-e6; names of recipes such as A-T1 and paths of tables are something else."""
    return set(NUMBER.findall(re.sub(r"\b[A-D]-[FTS]\w+", "", text)))


def test_every_number_that_is_named_is_listed():
    listed = re.findall(r"^\| (\S+) \|", page("docs/numbers.md"), re.MULTILINE)
    assert len(listed) == len(set(listed)) + listed.count("id") - 1
    files = [*(ROOT / "src").rglob("*.py"), *(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
    named = {number for file in files for number in numbers_of_papers(file.read_text(encoding="utf-8"))}
    assert len(named) > 150
    assert named <= set(listed)
    assert numbers_of_papers("of A-T1 and Table 1, but T99 (Q71, A-e6)") == {"T99", "Q71", "A-e6"}


def test_the_readme_counts_the_recipes_with_a_result():
    kept = len(re.findall(r"^\| \[", page("docs/results/index.md"), re.MULTILINE))
    counted = f"all {kept}" if kept == len(recipes()) else f"{kept} of the {len(recipes())}"
    assert f"of {counted} at laptop scale" in page("README.md")


def test_the_page_of_results_says_how_many_recipes_it_has(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    assert f"\n0 of {len(recipes())} recipes, run by" in import_module("make_results")._index({})


def test_the_readme_lists_every_extra():
    extras = tomllib.loads(page("pyproject.toml"))["project"]["optional-dependencies"]
    rows = re.search(r"\| extra \|.*?\n\n", page("README.md"), re.DOTALL)[0]
    cells = [row.split("|")[1] for row in rows.strip().splitlines()[2:]]
    assert sorted(name for cell in cells for name in re.findall(r"`(\w+)`", cell)) == sorted(extras)


def test_docstrings_name_only_files_that_are_there():
    files = [path for folder in ("src", "tests", "benchmarks", "examples") for path in (ROOT / folder).rglob("*.py")]
    files.remove(Path(__file__))
    named = {name for file in files for name in re.findall(r"\b(?:docs/)?[A-Za-z]+\.md\b", file.read_text("utf-8"))}
    pages = [name for name in named if name.startswith("docs/") or name[0].isupper()]
    assert "docs/operators.md" in pages
    assert [name for name in pages if not (ROOT / name).exists()] == []


def test_what_a_user_calls_has_an_example():
    for name in (
        *("Fisher EmpiricalFisher Preconditioned SpectralDensity accuracy_gap export_runs".split()),
        *("theory.levina_bickel theory.kaniel_paige zoo.load_data zoo.build_model training.Training".split()),
        *("training.load_checkpoint training.gradient_masking training.fgsm training.apgd".split()),
    ):
        folder, _, last = f"spherometer.{name}".rpartition(".")
        assert "Example:" in getattr(import_module(folder), last).__doc__, name


def test_places_of_data_and_rows_of_tracking_are_named():
    for name in ("docs/command-line.md", "docs/recipes.md"):
        assert "the system's `share/datasets`" in page(name)
    assert "`tracking_overhead`" in page("docs/tracking.md")


def test_pages_name_the_script_beside_its_gallery_page():
    for name in ("docs/theory.md", "docs/lipschitz.md"):
        for script, beside in re.findall(r"\(gallery/(\w+)\)( \(`[^`]*`\))?", page(name)):
            assert beside == f" (`examples/{script}.py`)"
            assert (ROOT / "examples" / f"{script}.py").exists()


@pytest.mark.parametrize("name", ["docs/live-page.md", "docs/records.md"])
def test_blocks_that_write_runs_define_what_they_use(name):
    block = next(block for block in re.findall(r"```python\n(.*?)```", page(name), re.DOTALL) if "RunWriter" in block)
    example = doctest.DocTest([doctest.Example(block, "")], names_for_examples(), name, None, 0, None)
    assert unknown_names(example) <= {"step"}
