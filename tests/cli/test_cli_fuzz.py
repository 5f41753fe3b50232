"""Random words and random files never bring the command line down: it works, or refuses in one line."""

from __future__ import annotations

import io
import os
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
from cli_outcomes import Outcome, assert_refused
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from spherometer.cli import main

OPTIONS = "--num --loss --data --metrics --weights --json --seed --memory --parameters --help".split()
VALUES = [*"digits loss sharpness:rtol=-1 loss:x -1 1e9 nan λ -- = :".split(), "", "\x00", "\udcff", "a\nb"]
LINEAR = ["measure", "digits-linear", "--threads", "1", "--metrics", "loss"]
STARTS = [b"PK\x03\x04", b"\x80\x02}", b"\x00\x00\x08\x03", b"\x1f\x8b", b"\x08" + bytes(7) + b"{"]
WORD = st.one_of(st.sampled_from(OPTIONS + VALUES), st.text(max_size=12))
PATIENT = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)


def outcome_of(words: list[str]) -> Outcome:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(words)
    return Outcome(code, out.getvalue(), err.getvalue())


def assert_graceful(outcome: Outcome) -> None:
    if outcome.code != 0:
        assert_refused(outcome)
    assert "Traceback" not in outcome.err


@PATIENT
@example(["--debu"])
@example([""])
@given(st.lists(WORD.filter(lambda word: word not in ("demo", "check", "--debug")), max_size=4))
def test_any_words(words: list[str]):
    assert_graceful(outcome_of(words))


@PATIENT
@example(["--num", "--num"])
@example(["--json=3"])
@example(["--parameters", "--parameters"])
@given(st.lists(WORD.filter(lambda word: word != "--debug"), max_size=5))
def test_any_words_to_measure(words: list[str]):
    assert_graceful(outcome_of([*LINEAR, "--num", "10", *words]))


@PATIENT
@given(
    content=st.one_of(
        st.binary(max_size=300),
        st.sampled_from(STARTS).flatmap(lambda start: st.binary(max_size=200).map(lambda rest: start + rest)),
    ),
    suffix=st.sampled_from([".npz", ".bin", ".gz", "", ".safetensors", ".pt"]),
    option=st.sampled_from(["--data", "--weights"]),
)
def test_any_file(content: bytes, suffix: str, option: str):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"file{suffix}"
        path.write_bytes(content)
        before = sorted(os.listdir(folder))
        outcome = outcome_of([*LINEAR, option, str(path)])
        assert_refused(outcome)
        assert sorted(os.listdir(folder)) == before


@PATIENT
@given(
    st.lists(st.integers(0, 6), max_size=3),
    st.lists(st.integers(0, 6), max_size=2),
    st.sampled_from(["f4", "f8", "u1", "i8", "c8", "U3", "?"]),
    st.sampled_from(["f4", "u1", "i8", "?", "U1"]),
)
def test_any_arrays(shape: list[int], target_shape: list[int], kind: str, target_kind: str):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.npz"
        np.savez(path, inputs=np.ones(shape).astype(kind), targets=np.ones(target_shape).astype(target_kind))
        assert_graceful(outcome_of([*LINEAR, "--data", str(path)]))
