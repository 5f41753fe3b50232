"""`spherometer measure` and `spherometer metrics`: numbers that agree with the library, as a table and as JSON."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.cells import cell_len
from safetensors.torch import save_file
from torch import nn

import spherometer as sm
from spherometer.commands.kinds import read_bytes, show_bytes
from spherometer.metrics import measure, metrics
from spherometer.zoo import build_model, load_data

FAST = ("digits-linear", "--num", 50, "--threads", 1)


def strict_json(text: str) -> dict:
    def refuse(name: str):
        raise AssertionError(f"{name} is no JSON")

    return json.loads(text, parse_constant=refuse)


def test_the_numbers_are_those_of_the_library(run):
    outcome = run("measure", *FAST, "--metrics", "loss,sharpness,top_eigenvalues:num=3", "--json")
    assert outcome.code == 0, outcome.err
    found = strict_json(outcome.out)
    dataset = load_data("digits", num=50)
    problem = sm.Problem(build_model("digits-linear", seed=0), nn.CrossEntropyLoss(), dataset.tensors)
    expected = measure(problem, ["loss", "sharpness", "top_eigenvalues:num=3"])
    for name, entry in expected.items():
        assert found["measurements"][name]["value"] == pytest.approx(torch.as_tensor(entry.value).tolist(), rel=1e-5)
    assert found["conventions"]["terms"] == 50
    assert found["conventions"]["loss"] == "CrossEntropyLoss"
    assert found["model"] == "digits-linear"
    assert found["weights"] is None


def test_the_default_set_as_a_table_on_80_columns(run):
    outcome = run("measure", *FAST)
    assert outcome.code == 0, outcome.err
    assert outcome.err == ""
    for name in ("loss", "gradient_norm", "sharpness", "smallest_eigenvalue", "gauss_newton_norm", "hessian_trace"):
        assert f"\n {name} " in outcome.out
    assert outcome.out.startswith("digits-linear (fresh weights) on digits: 50 x 1x8x8, 10 classes")
    assert re.search(r"\d+ products", outcome.out)
    assert re.search(r"\d\.\d\d s", outcome.out)
    assert "±" in outcome.out
    assert "…" not in outcome.out
    assert max(map(len, outcome.out.splitlines())) <= 80


def test_weights_loss_dtype_and_parameters(run, tmp_path: Path):
    model = build_model("digits-mlp", seed=7)
    save_file(model.state_dict(), tmp_path / "w.safetensors")
    words = ("--weights", "w.safetensors", "--loss", "half-squared-error", "--dtype", "float64", "--parameters", "5.*")
    outcome = run("measure", "digits-mlp", *FAST[1:], *words, "--metrics", "gradient_norm", "--json")
    assert outcome.code == 0, outcome.err
    found = strict_json(outcome.out)
    data = load_data("digits", num=50).tensors
    problem = sm.Problem(model, sm.HalfSquaredError(), data, parameters="5.*", dtype=torch.float64)
    assert found["measurements"]["gradient_norm"]["value"] == pytest.approx(
        float(problem.gradient_at().norm()), rel=1e-9
    )
    assert found["conventions"]["parameters"] == problem.num_parameters == 650
    assert found["weights"] == "w.safetensors"


def test_mse_is_two_over_the_number_of_outputs_of_half_squared_error(run):
    values = []
    for loss in ("mse", "half-squared-error"):
        outcome = run("measure", *FAST, "--loss", loss, "--metrics", "loss", "--json")
        values.append(strict_json(outcome.out)["measurements"]["loss"]["value"])
    assert values[0] == pytest.approx(values[1] * 2 / 10, rel=1e-5)


def test_regression_from_an_archive(run, tmp_path: Path):
    generator = np.random.default_rng(0)
    inputs, targets = generator.normal(size=(20, 4)).astype("f4"), generator.normal(size=(20, 2)).astype("f4")
    np.savez(tmp_path / "values.npz", inputs=inputs, targets=targets)
    outcome = run("measure", "digits-linear", "--data", "values.npz", "--metrics", "loss", "--json")
    assert outcome.code == 0, outcome.err
    assert strict_json(outcome.out)["conventions"]["loss"] == "HalfSquaredError"


def test_a_model_of_ones_own(run, tmp_path: Path):
    (tmp_path / "my_models_of_cli_test.py").write_text(
        "from torch import nn\n"
        "def build(num_classes, input_shape):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))\n"
    )
    outcome = run("measure", "my_models_of_cli_test:build", *FAST[1:], "--metrics", "loss", "--json")
    assert outcome.code == 0, outcome.err


def test_batches_groups_and_memory_change_only_what_they_should(run):
    plain = run("measure", *FAST, "--metrics", "sharpness", "--json")
    cut = run("measure", *FAST, "--metrics", "sharpness", "--batch-size", 7, "--memory", "1MB", "--json")
    grouped = run("measure", *FAST, "--metrics", "sharpness", "--data-groups", 5, "--json")
    values = [strict_json(outcome.out)["measurements"]["sharpness"] for outcome in (plain, cut, grouped)]
    assert values[1]["value"] == pytest.approx(values[0]["value"], rel=2e-3)
    assert values[0]["interval"] is None
    low, high = values[2]["interval"]
    assert low < values[2]["value"] < high


def test_the_program_itself_keeps_json_apart(tmp_path: Path):
    words = ["measure", *map(str, FAST), "--metrics", "loss", "--json", "--keep-memory"]
    done = subprocess.run(
        [sys.executable, "-m", "spherometer", *words], capture_output=True, text=True, timeout=300, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert math.isfinite(strict_json(done.stdout)["measurements"]["loss"]["value"])


def test_the_catalogue_holds_every_metric(run):
    found = strict_json(run("metrics", "--json").out)["metrics"]
    assert [entry["name"] for entry in found] == list(metrics())
    assert {"symbol", "formula", "unit", "source", "cost", "summary", "options"} <= set(found[0])
    text = run("metrics").out
    for name, metric in metrics().items():
        assert f"\n{name}  {metric.symbol}" in f"\n{text}"
    assert max(cell_len(line.rstrip()) for line in text.splitlines()) <= 80


def test_one_metric_in_full(run):
    outcome = run("metrics", "top_eigenvalues")
    assert outcome.code == 0
    for words in ("num=5", "loss / weight²", "about 3k products", "spherometer measure digits-mlp --metrics top_eig"):
        assert words in outcome.out


@pytest.mark.parametrize(
    ("text", "amount"),
    [("1000", 1000), ("4GB", 4e9), ("4gb", 4e9), ("1.5 MB", 1.5e6), ("2GiB", 2 * 2**30), ("4e9", 4e9), ("7k", 7000)],
)
def test_bytes(text: str, amount: float):
    assert read_bytes(text) == amount
    assert read_bytes(show_bytes(amount)) == pytest.approx(amount, rel=1e-5)
