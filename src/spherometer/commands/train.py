"""`spherometer train`: a configuration in, a run folder out; the same command again goes on where it was killed."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from spherometer.commands.kinds import CountOrAuto, Folder
from spherometer.training.settings import Settings

if TYPE_CHECKING:
    from spherometer.training.runs import Trained


@dataclass(frozen=True)
class Train:
    """Train a model and write the run: rows of losses and accuracies, checkpoints, and the weights at the end.

    A TOML file may come first; its tables are those of the groups below, and words on the command line win over it.
    The same command again continues an interrupted run, with the numbers of an undisturbed one.
    """

    settings: Annotated[tyro.conf.OmitArgPrefixes[Settings], tyro.conf.arg(name="")] = field(default_factory=Settings)
    out: Folder = Path("spherometer-run")
    """folder of the run"""
    threads: CountOrAuto = None
    """processor threads"""
    json: bool = False
    """print JSON instead of a table"""

    @staticmethod
    def expand(words: list[str]) -> list[str]:
        """A configuration file as the options it stands for, those on the command line left out."""
        from spherometer.commands.configuration import with_configuration

        return with_configuration(words)

    def run(self) -> int:
        """Train, evaluate, print."""
        from spherometer.commands.machine import threads
        from spherometer.commands.output import show, show_json
        from spherometer.training.runs import train_in_folder

        self.settings.checked()
        with threads(self.threads):
            trained = train_in_folder(self.settings, self.out)
        if self.json:
            show_json(trained.to_dict())
        else:
            show(*_report(trained, self.out))
        return 0


def _report(trained: Trained, out: Path) -> list[Any]:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("quantity", style="bold")
    table.add_column("value")
    for name, value in trained.shown().items():
        table.add_row(name.replace("_", " "), value)
    return [trained.headline, table, f"Rows, checkpoint and weights: {out}"]
