"""`spherometer train`: files and words, refusals in one line, and runs that survive being killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli_outcomes import assert_refused

from spherometer.records import RunReader, read_tensors

SMALL = ("--model", "fcn3-mnist", "--width", "8", "--num", "96", "--num-test", "40")
SHORT = (*SMALL, "--batch-size", "32", "--epochs", "2")


def values(folder):
    """(step, name, part) -> value of every row; times and costs aside."""
    return {(row[1], row[2], row[3]): row[4] for row in RunReader(folder).rows()}


def test_a_run_and_its_folder(run, tmp_path):
    outcome = run("train", *SHORT)
    assert outcome.code == 0, outcome.err
    assert outcome.err == ""
    assert "test accuracy" in outcome.out
    folder = tmp_path / "spherometer-run"
    assert RunReader(folder).state == "done"
    rows = values(folder)
    assert {step for step, name, _ in rows if name == "batch_loss"} == {3, 6}
    assert {step for step, name, _ in rows if name == "test_accuracy"} == {0, 3, 6}
    assert rows[(6, "final_test_loss", "")] == rows[(6, "test_loss", "")]
    assert RunReader(folder).manifest["settings"]["loop"]["batch_size"] == 32
    assert "1.weight" in read_tensors(folder / "weights.safetensors")


def test_the_weights_can_be_measured(run):
    assert run("train", "--epochs", "1", "--num", "64", "--num-test", "32").code == 0
    outcome = run(
        "measure", "digits-mlp", "--weights", "spherometer-run/weights.safetensors", "--num", "64", "--metrics", "loss"
    )
    assert outcome.code == 0, outcome.err


METHODS = [
    ("--method", "sam"),
    ("--method", "asam", "--base", "adam", "--learning-rate", "0.01"),
    ("--method", "ejr", "--rho", "0.1", "--momentum", "0.9"),
    ("--method", "ejr-v2", "--rho", "0.1"),
    ("--penalty", "mean-jacobian", "--ghost-size", "16"),
    ("--penalty", "input-jacobian", "--coefficient", "1e-4"),
    ("--penalty", "input-jacobian", "--squared", "False", "--scaled", "False", "--ghost-size", "16"),
    ("--method", "asam", "--eta", "0.1", "--base", "rmsprop", "--learning-rate", "0.01", "--balanced"),
    ("--mixup", "1", "--mixup-per", "sample"),
    ("--defence", "at", "--attack-steps", "1", "--attack-batchnorm", "eval", "--input-scale", "0.5"),
    ("--penalty", "gradient-norm"),
    ("--penalty", "fisher"),
    ("--label-smoothing", "0.5", "--mixup", "0", "--augment", "0.5", "--padding", "1"),
    ("--loss", "half-squared-error", "--standardise", "componentwise", "--input-scale", "0.5"),
    ("--schedule", "steps", "--milestones", "1", "--factor", "0.2", "--average-from", "1", "--base", "adamw"),
    ("--schedule", "flat-then-linear", "--weight-decay", "1e-3", "--stop-accuracy", "0.01", "--stop-every", "2"),
    ("--schedule", "cosine", "--stop-loss", "1e-9", "--stop-every", "1"),
    ("--defence", "at", "--attack-steps", "2", "--radius", "0.1", "--standardise", "channelwise"),
    (
        "--defence",
        "trades",
        "--attack-steps",
        "2",
        "--radius",
        "0.5",
        "--norm",
        "l2",
        "--method",
        "ejr",
        "--rho",
        "0.1",
    ),
]


@pytest.mark.parametrize("words", METHODS, ids=" ".join)
def test_every_part_by_its_name(run, words):
    outcome = run("train", *SHORT, *words, "--json")
    assert outcome.code == 0, outcome.err
    told = json.loads(outcome.out)
    assert told["steps"] == (2 if "--stop-accuracy" in words else 6)
    assert 0 <= told["test_accuracy"] <= 1
    assert ("test_robust_accuracy" in told) == ("--defence" in words)


def test_a_file_says_the_same_as_words(run, tmp_path):
    (tmp_path / "config.toml").write_text(
        """
        [data]
        num = 96
        num_test = 40
        balanced = true
        [model]
        model = "fcn3-mnist"
        width = 8
        linearised = false
        [objective]
        penalty = "input-jacobian"
        squared = false
        [method]
        method = "sam"
        rho = 0.1
        schedule = "steps"
        milestones = [1, 2]
        [loop]
        epochs = 7
        batch_size = 32
        """
    )
    words = ("--method", "sam", "--rho", "0.1", "--schedule", "steps", "--milestones", "1", "2", "--out", "words")
    words += ("--balanced", "--penalty", "input-jacobian", "--squared", "False")
    first = run("train", *SHORT, *words)
    second = run("train", "config.toml", "--epochs", "2", "--out", "file")  # words win over the file
    assert first.code == second.code == 0, first.err + second.err
    assert values(tmp_path / "words") == values(tmp_path / "file")
    assert RunReader(tmp_path / "words").manifest["settings"] == RunReader(tmp_path / "file").manifest["settings"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), "expected epochs or steps, got neither"),
        (("--epochs", "2", "--steps", "2"), "expected epochs or steps, got both"),
        (("--epochs", "0"), "epochs: expected a whole number of at least 1, got 0"),
        (("--epochs", "two"), "two"),
        (("--epochs", "2", "--learning-rate", "0"), "learning_rate: expected a positive number, got 0"),
        (("--epochs", "2", "--learning-rate", "-1"), "learning_rate: expected a positive number, got -1"),
        (("--epochs", "2", "--learning-rate", "nan"), "learning_rate: expected a finite number, got nan"),
        (("--epochs", "2", "--learning-rate", "fast"), "fast"),
        (("--epochs", "2", "--method", "sham"), "no method is called 'sham'; did you mean 'sam'"),
        (("--epochs", "2", "--penalty", "jacobian"), "no penalty is called 'jacobian'; did you mean"),
        (("--epochs", "2", "--model", "digits-mpl"), "no model called 'digits-mpl'; did you mean 'digits-mlp'"),
        (("--epochs", "2", "--data", "digit"), "no data set or file called 'digit'; did you mean 'digits'"),
        (("--epochs", "2", "--data", "cifar10"), "cifar10: no training files found"),
        (("--epochs", "2", "--epoch", "3"), "no option is called --epoch: did you mean '--epochs'"),
        (("--epochs", "2", "--augment", "1.5"), "augment: expected a number of at most 1, got 1.5"),
        (("--epochs", "2", "--schedule", "steps"), "schedule steps needs milestones"),
        (("--epochs", "2", "--milestones", "1"), "milestones are for schedule steps"),
        (("--epochs", "2", "--rho", "0.1"), "plain steps have no rho: choose a method or leave it out"),
        (("--epochs", "2", "--defence", "at", "--mixup", "1"), "choose one"),
        (("--epochs", "2", "--width", "0"), "width: expected a whole number of at least 1, got 0"),
        (("--epochs", "2", "--rho", "-0.1"), "rho: expected a number of at least 0"),
        (("--epochs", "2", "--learning-rate", "1e30", "--loss", "half-squared-error"), "training diverged at step"),
        (
            ("--epochs", "2", "--seed", "9" * 23),
            "seed: expected a whole number of at most 9223372036854775807, got 9999",
        ),
        (("--epochs", "2", "--average-from", "5"), "average_from: epoch 5 never ends in a run of 2 whole epochs"),
        (("--epochs", "2", "--penalty", "input-jacobian", "--squared", "maybe"), "--squared"),
        (("missing.toml",), "missing.toml: No such file or directory; expected a TOML file"),
    ],
)
def test_bad_configurations_get_one_line(run, words, expected):
    assert_refused(run("train", *words), expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[methods]\nrho = 1", "no table is called [methods]; did you mean 'method'"),
        ("[method]\nroh = 1", "[method] has no 'roh'; did you mean 'rho'"),
        ("rho = 1", "no table is called [rho]"),
        ("loop = 3", "expected a table [loop] with names inside, got loop = 3"),
        ("[loop]\nepochs = 'many'", "epochs: expected a whole number, got 'many'"),
        ("[loop]\nepochs = true", "epochs: expected a whole number, got True"),
        ("[loop]\nepochs = 1.5", "epochs: expected a whole number, got 1.5"),
        ("[method]\nlearning_rate = '0.1'\n[loop]\nepochs = 1", "learning_rate: expected a number, got '0.1'"),
        ("[method]\nmethod = ['sam']\n[loop]\nepochs = 1", "method: expected a text, got ['sam']"),
        ("[measurement]\ntrack = 'sharpness'\n[loop]\nepochs = 1", "track: expected a list, of a text each, got"),
        ("[data]\nclasses = [1, 'two']\n[loop]\nepochs = 1", "classes: expected a list, of a whole number each, got"),
        ("[data]\ndata_root = 3\n[loop]\nepochs = 1", "data_root: expected a text, got 3"),
        ("[data]\nbalanced = 1\n[loop]\nepochs = 1", "balanced: expected true or false, got 1"),
        ("[measurement]\ntrack = ['sharpness:rtol=-1']\n[loop]\nepochs = 1", "expected 0 < rtol < 1, got -1.0"),
        ("[measurement]\nmeasure = ['sharpness:rtol=2']\n[loop]\nepochs = 1", "expected 0 < rtol < 1, got 2.0"),
        (
            "[data]\nnum = 40\n[measurement]\ntrack = ['gradient_ratio:batch_size=50']\n[loop]\nepochs = 1",
            "expected batch_size from 1 to the 40 samples of the problem, got 50",
        ),
        ("[loop\nepochs = 1", "expected a TOML file, got"),
        ("[method]\nlearning_rate = -0.1\n[loop]\nepochs = 1", "learning_rate: expected a positive number, got -0.1"),
    ],
)
def test_bad_files_get_one_line(run, tmp_path, text, expected):
    (tmp_path / "config.toml").write_text(text)
    assert_refused(run("train", "config.toml"), expected)
    assert not (tmp_path / "spherometer-run").exists()


def test_other_settings_do_not_overwrite_a_run(run):
    assert run("train", *SHORT).code == 0
    assert_refused(run("train", *SHORT, "--learning-rate", "0.2"), "learning_rate 0.1, not 0.2: resume with the same")
    again = run("train", *SHORT)  # finished already: the same answer, nothing trained
    assert again.code == 0


def test_killed_and_resumed_it_has_the_rows_of_an_undisturbed_run(run, tmp_path):
    """SIGKILL in the middle; with momentum, a random penalty, transforms and an average."""
    words = [
        *SMALL, "--batch-size", "16", "--steps", "300", "--evaluate-every", "10", "--checkpoint-every", "25",
        "--momentum", "0.9", "--learning-rate", "0.01", "--penalty", "mean-jacobian", "--mixup", "0.5",
        "--average-from", "2", "--schedule", "cosine",
    ]  # fmt: skip
    assert run("train", *words, "--out", "whole").code == 0
    process = _start([*words, "--out", "killed"], tmp_path)
    try:
        _wait_for_step(tmp_path / "killed", 70, process)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert RunReader(tmp_path / "killed").state == "killed"
    assert 70 <= max(step for step, _, _ in values(tmp_path / "killed")) < 300
    assert run("train", *words, "--out", "killed").code == 0
    assert values(tmp_path / "killed") == values(tmp_path / "whole")
    whole, killed = (read_tensors(tmp_path / name / "weights.safetensors") for name in ("whole", "killed"))
    assert all((whole[name] == killed[name]).all() for name in whole)


def _start(words: list[str], folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "spherometer", "train", *words]
    return subprocess.Popen(command, cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "1"})


def _wait_for_step(folder: Path, step: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline:
        assert process.poll() is None, "the run ended before it could be killed"
        if RunReader(folder).exists and any(key[0] >= step for key in values(folder)):
            return
        time.sleep(0.02)
    raise AssertionError(f"step {step} was not reached in time")
