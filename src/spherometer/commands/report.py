"""`spherometer report`: one HTML file of all results in a folder, or of two folders side by side."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from spherometer.commands.kinds import Folder, OtherFolder, PageFile

if TYPE_CHECKING:
    from spherometer.report.results import Side


@dataclass(frozen=True)
class Report:
    """Put the results of `spherometer run` into one HTML file: the verdicts first, then every recipe with its figure,
    settings, departures from the paper and provenance. It needs no internet, fits a phone and can be printed.
    """

    folder: Annotated[Folder, tyro.conf.Positional, tyro.conf.arg(name="DIR")]
    """folder of results"""
    out: Annotated[PageFile, tyro.conf.arg(aliases=["-o"])] = None
    """file to write"""
    compare: OtherFolder = None
    """another folder of results, put beside the first; answers that differ come first"""
    json: bool = False
    """print the verdicts as JSON"""

    def run(self) -> int:
        """Read, write, say what was found."""
        from spherometer.commands.output import show, show_json
        from spherometer.records.files import write_whole
        from spherometer.report import prepare
        from spherometer.report.results import results_page

        page = self.out or self.folder / "report.html"
        sides, troubles = self._read()
        prepare(page)
        write_whole(page, results_page(sides, troubles).encode())
        if self.json:
            show_json(_plain(sides, troubles, page))
        else:
            show(*_lines(sides, troubles), f"The page: {page}")
        return 0

    def _read(self) -> tuple[list[Side], list[str]]:
        from spherometer.report.results import Side, read_results

        folders = [self.folder, *([self.compare] if self.compare is not None else [])]
        names = [folder.resolve().name for folder in folders]
        if len(set(names)) < len(names):
            names = [str(folder) for folder in folders]
        sides, told = [], []
        for name, folder in zip(names, folders, strict=True):
            done, troubles = read_results(folder)
            sides.append(Side(name, done))
            told += [f"{name}: {trouble}" if len(folders) > 1 else trouble for trouble in troubles]
        return sides, told


def _lines(sides: list[Side], troubles: list[str]) -> list[str]:
    from spherometer.report.results import compared, counted
    from spherometer.report.results.words import tally, told

    lines = []
    for side in sides:
        num, smoke = len(side.done), sum(done.result.scale == "smoke" for done in side.done)
        words = f"{side.name}: {num} recipe{'s' * (num != 1)}; {told(tally(counted(side)))}"
        lines.append(f"{words}; {smoke} at smoke scale, which says nothing" if smoke else words)
    if len(sides) > 1:
        rows = [(block, row) for block in compared(sides) for row in block.rows if row.differs]
        lines.append(f"{len(rows)} answer{'s differ' if len(rows) != 1 else ' differs'}")
        for block, row in rows:
            answers = " / ".join(verdict.answer for verdict in row.verdicts if verdict)
            lines.append(f"  {block.first.result.id}: {row.sentence}: {answers}")
    return [*lines, *(f"left out: {trouble}" for trouble in troubles)]


def _plain(sides: list[Side], troubles: list[str], page: Path) -> dict[str, Any]:
    return {
        "page": str(page),
        "troubles": troubles,
        "folders": {
            side.name: [
                {
                    "id": done.result.id,
                    "scale": done.result.scale,
                    "verdicts": [verdict.to_dict() for verdict in done.result.verdicts],
                }
                for done in side.done
            ]
            for side in sides
        },
    }
