"""Bad input: one clear line, exit code 2, no traceback, nothing half-written."""

from __future__ import annotations

import os
import pickle
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from cli_outcomes import assert_refused
from safetensors.torch import save_file
from torch import nn

from spherometer.zoo import build_model

LINEAR = ("measure", "digits-linear", "--num", 20, "--threads", 1)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["mesure"], "did you mean 'measure'?"),
        (["frobnicate"], "no command is called 'frobnicate': there is demo, measure"),
        (["--jsn"], "no option is called '--jsn'"),
        (["measure"], "expected MODEL, got nothing (see spherometer measure --help)"),
        (["measure", "digits-mlq"], "did you mean 'digits-mlp'"),
        (["measure", "digits-mlp", "extra"], "did not expect 'extra'"),
        (["measure", "digits-mlp", "--metrcs", "loss"], "no option is called --metrcs: did you mean '--metrics'?"),
        (["measure", "digits-mlp", "--metrics", "sharpnes"], "did you mean 'sharpness'?"),
        (["measure", "digits-mlp", "--metrics", ","], "expected at least one name, got none"),
        (["measure", "digits-mlp", "--metrics", "sharpness:rtl=1"], "it has: rtol=0.001"),
        (["measure", "digits-mlp", "--metrics", "sharpness:rtol=wide"], "expected option 'rtol'"),
        (["measure", "digits-mlp", "--num", "0"], "--num: expected a whole number of at least 1, got '0'"),
        (["measure", "digits-mlp", "--num", "many"], "--num: expected a whole number of at least 1, got 'many'"),
        (["measure", "digits-mlp", "--num"], "--num: expected a value, got nothing"),
        (["measure", "digits-mlp", "--num", "9" * 500], "--num: expected a whole number"),
        (["measure", "digits-mlp", "--num", "1000000"], "digits: expected num from 1 to 1437, got 1000000"),
        (["measure", "digits-mlp", "--loss", "cross-entropi"], "did you mean 'cross-entropy'?"),
        (["measure", "digits-mlp", "--memory", "4XB"], "expected a positive number of bytes such as 500MB or 4GB"),
        (["measure", "digits-mlp", "--memory", "0"], "expected a positive number of bytes"),
        (["measure", "digits-mlp", "--data", "digit"], "did you mean 'digits'?"),
        (["measure", "digits-mlp", "--data", "no/such.npz"], "no/such.npz: no such file"),
        (["measure", "digits-mlp", "--standardise", "imagenet"], "do not fit inputs of shape (1, 8, 8)"),
        (["measure", "digits-mlp", "--parameters", "nothing.*"], "nothing.*"),
        (["measure", "digits-mlp", "--weights", "none.safetensors"], "none.safetensors: no such file"),
        (["measure", "lenet", "--num", "5"], "images of 8x8 are too small"),
        (["measure", "no.such.module:build"], "cannot import no.such.module"),
        (["measure", "os:getcwd"], "expected a torch.nn.Module as result, got str"),
        (
            ["measure", "digits-mlp", "--data-groups", "1", "--num", "5", "--metrics", "loss"],
            "expected at least 2 data_groups",
        ),
        (["metrics", "sharp"], "no metric is called 'sharp': did you mean"),
        (["demo", "--steps", "-5"], "--steps: expected a whole number of at least 1, got '-5'"),
        (["watch"], "expected DIR, got nothing (see spherometer watch --help)"),
        (["watch", "no-such-folder"], "no-such-folder: expected a folder with runs, found none"),
        (["watch", ".", "--port", "70000"], "--port: expected a port from 0 to 65535, got '70000'"),
        (["watch", ".", "--host", "no.such.host.invalid"], "cannot listen at no.such.host.invalid"),
        (["run"], "expected ID, got nothing: spherometer recipes lists them (see spherometer run --help)"),
        (["run", "A-F1", "--scale", "smoke", "--out", "/proc/nope"], "/proc/nope"),
        (["check", "--seed", "x"], "--seed: expected a whole number of at least 0, got 'x'"),
    ],
)
def test_wrong_words(run, words: list[str], expected: str):
    assert_refused(run(*words), expected)


@pytest.mark.parametrize("words", [("--ray", "127.0.0.1:1"), ("--ray", ""), ("--slurm", "partition=x")])
def test_a_cluster_that_is_not_there(run, words: tuple[str, str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    outcome = run("run", "TH-3", "--scale", "smoke", *words)
    assert outcome.code == 2
    assert outcome.err.splitlines()[-1].startswith("spherometer: error: ")
    assert "Traceback" not in outcome.err
    assert "please report" not in outcome.err


@pytest.mark.parametrize("rtol", ["-0.1", "0", "1e999", "nan", "2"])
def test_impossible_accuracies(run, rtol: str):
    assert_refused(run(*LINEAR, "--metrics", f"sharpness:rtol={rtol}"), "rtol")


def test_a_data_set_that_is_not_there(run, tmp_path: Path):
    (tmp_path / "empty").mkdir()
    assert_refused(run("measure", "resnet20", "--data", "cifar10", "--data-root", "empty"), "cifar")


class _Malicious:
    def __reduce__(self):
        return os.system, ("touch executed",)


def _write_weights(path: Path, kind: str) -> None:
    state = build_model("digits-linear", seed=0).state_dict()
    name = next(iter(state))
    if kind == "nan":
        state[name][0, 0] = torch.nan
    if kind == "shape":
        state[name] = torch.zeros(3, 3)
    if kind == "missing":
        del state[name]
    if kind == "malicious":
        torch.save({"state_dict": state, "extra": _Malicious()}, path)
    elif kind == "pickle":
        path.write_bytes(pickle.dumps(_Malicious()))
    elif kind == "garbage":
        path.write_bytes(bytes(range(256)) * 4)
    elif kind == "empty":
        path.write_bytes(b"")
    else:
        save_file(state, path)
        if kind == "truncated":
            path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize(
    "kind", ["nan", "shape", "missing", "malicious", "pickle", "garbage", "empty", "truncated", "folder"]
)
@pytest.mark.parametrize("suffix", [".safetensors", ".th"])
def test_bad_weights(run, tmp_path: Path, kind: str, suffix: str):
    path = tmp_path / f"weights{suffix}"
    if kind == "folder":
        path.mkdir()
    else:
        _write_weights(path, kind)
    assert_refused(run(*LINEAR, "--weights", path.name), path.name)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    "arrays",
    [
        {"inputs": np.zeros((0, 4), "f4"), "targets": np.zeros(0, int)},
        {"inputs": np.zeros((5, 4), "f4"), "targets": np.zeros(4, int)},
        {"inputs": np.zeros((5, 4), "f4"), "targets": np.array([0, 1, -1, 0, 1])},
        {"inputs": np.full((5, 4), np.nan, "f4"), "targets": np.zeros(5, int)},
        {"inputs": np.array(["a", "b"]), "targets": np.zeros(2, int)},
        {"something": np.zeros(3)},
        {"inputs": np.array([None, 1], dtype=object), "targets": np.zeros(2, int)},
    ],
    ids=["empty", "lengths", "labels", "nan", "text", "names", "objects"],
)
def test_bad_archives(run, tmp_path: Path, arrays: dict[str, np.ndarray]):
    np.savez(tmp_path / "bad.npz", **arrays)
    assert_refused(run("measure", "digits-linear", "--data", "bad.npz", "--metrics", "loss"))


def test_labels_beyond_the_outputs_of_the_model(run, tmp_path: Path):
    (tmp_path / "narrow_model_of_cli_test.py").write_text(
        "from torch import nn\ndef build():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 3))\n"
    )
    outcome = run("measure", "narrow_model_of_cli_test:build", "--num", 20, "--metrics", "loss")
    assert_refused(outcome, "expected class numbers from 0 to 2 (the model has 3 outputs), got 0 to 7")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("nn.Linear(5, 3)", "cannot be used with cross-entropy on digits, inputs of shape (1, 8, 8)"),
        ("1 / 0", "ZeroDivisionError"),
        ("nn.Identity()", "parameter"),
    ],
)
def test_models_that_do_not_work(run, tmp_path: Path, body: str, expected: str):
    name = f"broken_model_{abs(hash(body))}"
    (tmp_path / f"{name}.py").write_text(f"from torch import nn\ndef build():\n    return {body}\n")
    assert_refused(run("measure", f"{name}:build", "--num", 20, "--metrics", "loss"), expected)


def test_a_model_without_second_derivative(run, tmp_path: Path):
    (tmp_path / "once_model_of_cli_test.py").write_text(
        "import torch\nfrom torch import nn\n"
        "class Once(torch.autograd.Function):\n"
        "    @staticmethod\n    def forward(ctx, x):\n        return x * 1\n"
        "    @staticmethod\n    @torch.autograd.function.once_differentiable\n"
        "    def backward(ctx, g):\n        return g\n"
        "class Layer(nn.Module):\n    def forward(self, x):\n        return Once.apply(x)\n"
        "def build():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10), Layer())\n"
    )
    outcome = run("measure", "once_model_of_cli_test:build", "--num", 20, "--metrics", "sharpness")
    assert_refused(outcome)


def test_debug_shows_where(run):
    with pytest.raises(ValueError, match="no metric is called"):
        run("measure", "digits-mlp", "--metrics", "sharpnes", "--debug")


def test_our_own_mistakes_are_not_hidden(run, monkeypatch: pytest.MonkeyPatch):
    from spherometer.commands import metrics

    def fail(*_):
        raise AssertionError("a mistake")

    monkeypatch.setattr(metrics.Metrics, "run", fail)
    outcome = run("metrics")
    assert outcome.code == 70
    assert "Traceback" in outcome.err
    assert outcome.err.endswith("please report it with the lines above\n")


def test_interrupting_is_clean(run, monkeypatch: pytest.MonkeyPatch):
    from spherometer.commands import metrics

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(metrics.Metrics, "run", interrupt)
    outcome = run("metrics")
    assert (outcome.code, outcome.out, outcome.err) == (130, "", "spherometer: interrupted\n")


def test_a_broken_pipe_is_quiet():
    program = f"{sys.executable} -m spherometer metrics | head -1"
    done = subprocess.run(
        ["bash", "-c", f"{program}; exit ${{PIPESTATUS[0]}}"], capture_output=True, text=True, timeout=120
    )
    assert done.stderr == ""
    assert done.stdout.count("\n") == 1
    assert done.returncode in (0, 141)


def test_out_of_memory_is_told_in_a_line(run, monkeypatch: pytest.MonkeyPatch):
    def exhaust(*_):
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried")

    monkeypatch.setattr(nn.Linear, "forward", exhaust)
    assert_refused(run(*LINEAR, "--metrics", "loss"))


def test_the_demo_refuses_before_it_works(run, tmp_path: Path):
    (tmp_path / "file").write_text("in the way")
    assert_refused(run("demo", "--out", "file"), "file: expected a folder")
    assert_refused(run("demo", "--out", "file/inside"), "expected a folder")
    (tmp_path / "taken" / "report.html").mkdir(parents=True)
    assert_refused(run("demo", "--out", "taken"), "found a folder")
    assert (tmp_path / "file").read_text() == "in the way"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_the_demo_refuses_a_folder_it_may_not_write(run, tmp_path: Path):
    (tmp_path / "locked").mkdir()
    (tmp_path / "locked").chmod(stat.S_IRUSR | stat.S_IXUSR)
    assert_refused(run("demo", "--out", "locked"), "cannot be written")


def test_the_judge_of_refusals_is_awake(run):
    with pytest.raises(AssertionError):
        assert_refused(run("--help"))
