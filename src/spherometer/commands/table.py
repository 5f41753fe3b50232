"""What there is to call.  Nothing heavy is imported here, so that help is there at once."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from typing import Protocol


class Runnable(Protocol):
    """The options of a command, read from the command line; running it answers with an exit code."""

    def run(self) -> int:
        """0: done; 1: something that was to hold does not."""


@dataclass(frozen=True)
class Command:
    """A command: what it does in a line, and examples that teach it."""

    name: str
    summary: str
    examples: tuple[str, ...]

    @property
    def options(self) -> type[Runnable]:
        """The frozen dataclass of its options, imported now: `Measure` of `commands/measure.py`."""
        found: type[Runnable] = getattr(import_module(f"spherometer.commands.{self.name}"), self.name.capitalize())
        return found


COMMANDS = {
    command.name: command
    for command in (
        Command(
            "demo",
            "train a small network to the edge of stability, measure it, write a page",
            ("spherometer demo", "spherometer demo --steps 500 --out edge"),
        ),
        Command(
            "measure",
            "measure a model on data: sharpness, traces, norms, each with its error bar",
            (
                "spherometer measure digits-mlp",
                "spherometer measure resnet20 --weights w.safetensors --data cifar10 --num 200",
                "spherometer measure my_package.models:build --data my.npz --metrics top_eigenvalues:num=10",
            ),
        ),
        Command(
            "train",
            "train by SGD, SAM, EJR, against an adversary, ...; killed runs go on",
            (
                "spherometer train --epochs 10 --batch-size 64",
                "spherometer train --method sam --rho 0.1 --momentum 0.9 --epochs 10 --batch-size 64 --out sam",
                "spherometer train --epochs 20 --batch-size 64 --defence at --radius 0.1 --attack-steps 5 --out at",
            ),
        ),
        Command(
            "bound",
            "paper A's theorems on a fitted model: both sides, and what holds",
            (
                "spherometer bound",
                "spherometer bound cube --dimension 2 --num 400 --epsilon 0.05",
                "spherometer bound sphere --dimension 1 --model coordinate-relu --steps 500 --json",
            ),
        ),
        Command(
            "recipes",
            "the papers' experiments: what each should find, and what was done",
            ("spherometer recipes", "spherometer recipes A-F1"),
        ),
        Command(
            "run",
            "rerun experiments of the papers, training to verdict; killed runs go on",
            ("spherometer run A-F1 --scale smoke", "spherometer run C --workers 4", "spherometer run A-F1 --ray auto"),
        ),
        Command(
            "report",
            "one HTML file of all results: verdicts, figures, settings, provenance",
            (
                "spherometer report spherometer-results",
                "spherometer report laptop -o laptop.html --compare paper",
            ),
        ),
        Command(
            "watch",
            "a live page on this machine that follows the runs in a folder",
            ("spherometer watch runs", "spherometer watch runs --port 9000"),
        ),
        Command(
            "metrics",
            "the catalogue of quantities: symbol, formula, source, cost, options",
            ("spherometer metrics", "spherometer metrics sharpness"),
        ),
        Command(
            "check",
            "hold the instrument against exact float64 answers on this machine",
            ("spherometer check",),
        ),
    )
}


def overview() -> str:
    """The text of `spherometer --help`."""
    lines = [
        "Spherometer measures the geometry of neural networks: how sharp the loss is",
        "around the weights, and how it gets there. Every number carries its error bar.",
        "",
        "usage: spherometer COMMAND [OPTIONS]",
        "",
        "commands:",
    ]
    for command in COMMANDS.values():
        lines += [f"  {command.name:<9} {command.summary}", f"            $ {command.examples[0]}"]
    return "\n".join(
        [
            *lines,
            "",
            "Each command explains itself: spherometer measure --help",
            "",
            "options for every command:",
            "  --json      numbers as JSON on standard output, and nothing else there",
            "  --debug     on an error, show where in the program it arose",
            "",
            "spherometer --version   the version, and that of torch",
            "",
            "exit codes: 0 done, 1 something that was to hold does not, 2 wrong use",
        ]
    )


def nearest(word: str, known: list[str]) -> str:
    """`did you mean 'measure'?`, or all there is when nothing is near."""
    near = get_close_matches(word.lower(), known, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else f"there is {', '.join(known)}"
