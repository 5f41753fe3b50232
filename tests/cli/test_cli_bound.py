"""`spherometer bound`: the theorems of paper A from the command line."""

from __future__ import annotations

import json
import math

import pytest
import torch
from cli_outcomes import assert_refused

from spherometer.zoo import build_model

FAST = ("--num", 30, "--held-out", 20, "--threads", 1)


@pytest.mark.parametrize("data", ["cube", "sphere"])
def test_known_supports_have_every_hypothesis_of_the_corrected_theorems(run, data):
    outcome = run("bound", data, "--dimension", 1, "--steps", 100, *FAST, "--json")
    assert outcome.code == 0, outcome.err
    told = json.loads(outcome.out)
    assert (told["num_samples"], told["num_held_out"]) == (30, 20)
    assert told["radii"]["solved"]["value"] <= told["radii"]["corrected"]["value"]
    assert told["variation"]["lower"] <= told["variation"]["upper"]
    assert told["lipschitz"]["lower"]["value"] <= told["lipschitz"]["upper"]["value"]
    assert [entry["value"] for entry in told["dimension"].values()] == pytest.approx([1, 1], abs=0.6)
    assert set(told["theorems"]) == {"lipschitz", "sharpening", "generalisation"}
    for forms in told["theorems"].values():
        corrected = forms["corrected"]
        assert corrected["proved"] is True
        assert corrected["holds"] is True
        assert corrected["left"] <= corrected["right"]
        assert corrected["seen"] <= corrected["right"] * (1 + 1e-9)
    names = {entry["name"]: entry["holds"] for entry in told["theorems"]["lipschitz"]["printed"]["hypotheses"]}
    assert names["support convex"] is (data == "cube")
    target = next(h for h in told["theorems"]["generalisation"]["corrected"]["hypotheses"] if "target" in h["name"])
    assert target["reason"].startswith(f"{math.pi:.4g}")


def test_digits_have_an_unknown_support_and_say_so(run):
    outcome = run("bound", "digits", "--steps", 20, *FAST)
    assert outcome.code == 0, outcome.err
    assert max(map(len, outcome.out.splitlines())) <= 80
    for words in (
        "digits-mlp (20 steps of Adam) on digits",
        "covering radius",
        "dimension, two nearest neighbours",
        "Lipschitz constant (probabilities)",
        "variation V of the Jacobian",
        "A 6.1 corrected",
        "not all known",
        "not known support convex: nothing is known",
        "FAILS interpolation reached: largest",
    ):
        assert words in " ".join(outcome.out.split()), words


def test_weights_are_taken_and_not_trained(run, tmp_path):
    model = build_model("digits-mlp", num_classes=1, input_shape=(2,), seed=5)
    torch.save(model.state_dict(), tmp_path / "w.pt")
    fresh = json.loads(run("bound", "cube", "--steps", 0, "--seed", 5, *FAST, "--json").out)
    told = json.loads(run("bound", "cube", "--seed", 5, "--weights", "w.pt", *FAST, "--json").out)
    assert told["steps"] == fresh["steps"] == 0
    assert "weights of w.pt" in told["subject"]
    assert told["theorems"] == fresh["theorems"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--epsilon", "0"), "epsilon must lie strictly between 0 and 1, got 0.0"),
        (("--epsilon", "1.5"), "epsilon must lie strictly between 0 and 1, got 1.5"),
        (("--epsilon", "nan"), "epsilon must lie strictly between 0 and 1"),
        (("--epsilon", "small"), "--epsilon"),
        (("cube", "--dimension", "0"), "expected a whole number of at least 1, got '0'"),
        (("--num", "0"), "expected a whole number of at least 1, got '0'"),
        (("--num", "1797"), "so that some are held out"),
        (("--held-out", "0"), "expected a whole number of at least 1"),
        (("--steps", "-1"), "expected a whole number of at least 0"),
        (("tube",), "no data set or file called 'tube'; did you mean 'cube'?"),
        (("xyz",), "called 'xyz'; known: cifar10, cifar100, cube, digits, fashion-mnist, mnist, sphere"),
        (("empty.npz",), "empty.npz"),
        (("cube", "--loss", "cross-entropy"), "use --loss half-squared-error"),
        (("cube", "--model", "resnet20"), "expected images"),
        (("--num", "1", "--held-out", "1"), "expected at least 20 samples together"),
        (("--model", "digits-mpl"), "digits-mlp"),
    ],
)
def test_wrong_use_is_told_in_one_line(run, words, expected):
    assert_refused(run("bound", *words), expected)


def test_a_dimension_that_cannot_be_chosen_is_refused(run):
    assert_refused(run("bound", "digits", "--dimension", 5), "cube and sphere can be given one")
