"""Help that teaches, and is there at once."""

from __future__ import annotations

import subprocess
import sys

import pytest

from spherometer.commands import COMMANDS


@pytest.mark.parametrize("words", [(), ("--help",), ("-h",), ("help",)])
def test_the_overview_teaches_every_command(run, words):
    outcome = run(*words)
    assert outcome.code == 0
    assert outcome.err == ""
    assert outcome.out.startswith("Spherometer measures the geometry of neural networks")
    for command in COMMANDS.values():
        assert f"  {command.name:<9} {command.summary}\n            $ {command.examples[0]}\n" in outcome.out
    assert "--version" not in outcome.out.partition("options for every command:")[2].partition("\n\n")[0]
    assert "\nspherometer --version   the version, and that of torch\n" in outcome.out
    assert "exit codes: 0 done, 1 something that was to hold does not, 2 wrong use" in outcome.out
    assert max(map(len, outcome.out.splitlines())) <= 86


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_explains_itself(run, name):
    outcome = run(name, "--help")
    assert outcome.code == 0
    assert outcome.err == ""
    assert f"usage: spherometer {name} [-h]" in outcome.out
    for example in COMMANDS[name].examples:
        assert f"  $ {example}\n" in outcome.out
    assert "--json" in outcome.out
    words_before_options = outcome.out.partition("examples:")[0]
    assert "\n " not in words_before_options


def test_what_may_be_left_out_is_in_brackets(run):
    assert "usage: spherometer metrics [-h] [NAME] [--json]" in run("metrics", "--help").out


def test_help_of_measure_in_full_words(run):
    text = " ".join(run("measure", "--help").out.replace("│", " ").split())
    for words in (
        "MODEL name of the zoo, package.module:function that returns a model, timm:NAME or hf:NAME (required)",
        "--weights FILE safetensors file or torch state dict; pickled code is never run (default: fresh)",
        "--num N the first so many samples, in file order (default: all)",
        "--loss {auto,cross-entropy,half-squared-error,mse}",
        "--memory BYTES",
        "(default: 4GB)",
        "--keep-memory",
        "(default: '$SPHEROMETER_DATA, ./data, share/datasets of the system')",
    ):
        assert words in text


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_no_types_of_python(run, name):
    text = run(name, "--help").out
    for strange in ("None", "default: )", "settings."):
        assert strange not in text
    if name == "train":
        assert " data options " in text
        assert "--batch-size INT" in text


def test_what_may_be_none_can_be_said():
    from spherometer.commands.parsing import read_options

    said = ["--batch-size", "none", "--batchnorm", "none", "--width", "8", "--classes", "1", "2"]
    settings = read_options(COMMANDS["train"], said).settings
    assert (settings.loop.batch_size, settings.model.batchnorm, settings.model.width) == (None, None, 8)
    assert settings.data.classes == (1, 2)


def test_help_of_run_names_every_kind_of_cluster(run):
    text = " ".join(run("run", "--help").out.replace("│", " ").split())
    assert "address of a Ray cluster instead: local (started here), auto, host:port, or ray://host:port" in text


def test_examples_of_the_help_can_be_read():
    from spherometer.commands.parsing import read_options

    for command in COMMANDS.values():
        for example in command.examples:
            program, name, *words = example.split()
            assert (program, name) == ("spherometer", command.name)
            assert isinstance(read_options(command, words), command.options)


@pytest.mark.parametrize("words", [["--help"], ["mesure"]])
def test_nothing_heavy_is_imported_for_help(words):
    code = (
        "import sys; from spherometer.cli import main; main(sys.argv[1:]); "
        "sys.exit(any(name in sys.modules for name in ('torch', 'numpy', 'scipy', 'tyro', 'rich')))"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_version(run):
    from spherometer import __version__

    outcome = run("--version")
    assert outcome.code == 0
    assert outcome.out.startswith(f"spherometer {__version__}, torch ")
