"""Write docs/results from a folder of laptop-scale results: python docs/make_results.py RESULTS

Pictures, the data behind them, every verdict, and one page per paper. Remarks on claims that fail are written by hand
in docs/results/notes.toml and put beside the verdicts.
"""

import csv
import io
import shutil
import sys
import tomllib
from itertools import groupby
from pathlib import Path

from spherometer.recipes.recipe import place, recipes
from spherometer.recipes.result import RecipeResult
from spherometer.report.results import words

HERE = Path(__file__).resolve().parent / "results"
SCALE = "laptop"
PAPERS = {
    "A": "Paper A: sharpness, Jacobians and generalisation",
    "B": "Paper B: sharpness and compression of representations",
    "C": "Paper C: the logit-weight Jacobian and its regularisation",
    "D": "Paper D: flatness, weight decay and adaptive methods",
    "TH": "Theory, evaluated",
}


def main(folder: Path) -> None:
    results = [RecipeResult.read(path) for path in folder.glob(f"recipes/*.{SCALE}/result.json")]
    results.sort(key=lambda result: place(result.id))
    notes = _notes(results)
    for result in results:
        source = folder / "recipes" / f"{result.id}.{SCALE}"
        _shrink(source / "figure.png", HERE / f"{result.id}.png")
        shutil.copyfile(source / "data.csv", HERE / f"{result.id}.csv")
    (HERE / "verdicts.csv").write_text(_verdicts(results), encoding="utf-8")
    papers = [(paper, list(group)) for paper, group in groupby(results, key=lambda result: result.paper)]
    for paper, group in papers:
        (HERE / f"paper-{paper.lower()}.md").write_text(_page(PAPERS[paper], group, notes), encoding="utf-8")
    (HERE / "index.md").write_text(_index(papers), encoding="utf-8")


def _notes(results: list[RecipeResult]) -> dict[str, str]:
    """What was tried to understand each failing claim; a note on a recipe that is not there is a mistake."""
    path = HERE / "notes.toml"
    notes: dict[str, str] = tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    strangers = set(notes) - {result.id for result in results}
    if strangers:
        raise SystemExit(f"{path}: notes on recipes without a result: {', '.join(sorted(strangers))}")
    return notes


def _index(papers: list[tuple[str, list[RecipeResult]]]) -> str:
    results = [result for _, group in papers for result in group]
    verdicts = [verdict for result in results for verdict in result.verdicts]
    counts = words.told(words.tally(verdicts))
    lines = [
        "# Results at laptop scale",
        "",
        f"{len(results)} of {len(recipes())} recipes, run by `spherometer run ID` on two cores, "
        f"{len(verdicts)} claims: {counts}. "
        "A laptop's network is smaller than the paper's, so a verdict is about the mechanism at that size; every "
        "departure is listed with its recipe. Claims and settings were written before the runs, and some were changed "
        "after a first look: [the list](revisions.md). A claim that fails is a finding: the pages say what was tried "
        "to understand it.",
        "",
        "| recipe | idea | holds | fails | undecided |",
        "|---|---|---|---|---|",
    ]
    for paper, group in papers:
        for result in group:
            cells = " | ".join(str(count or "") for count in words.tally(result.verdicts).values())
            lines.append(f"| [{result.id}](paper-{paper.lower()}.md#{result.id.lower()}) | {result.idea} | {cells} |")
    pages = [*(f"paper-{paper.lower()}" for paper, _ in papers), "revisions"]
    return "\n".join([*lines, "", "::::{toctree}", ":hidden:", "", *pages, "::::", ""])


def _page(title: str, group: list[RecipeResult], notes: dict[str, str]) -> str:
    return "\n".join([f"# {title}", "", *(line for result in group for line in _section(result, notes))])


def _section(result: RecipeResult, notes: dict[str, str]) -> list[str]:
    lines = [f"({result.id.lower()})=", f"## {result.id}: {result.idea}", ""]
    lines += [f"The paper finds: {result.finding}.", "", f"![{result.id}]({result.id}.png)", ""]
    lines += ["| claim | verdict | effect (95 % interval) | chance |", "|---|---|---|---|"]
    for verdict in result.verdicts:
        remark = f"<br>{verdict.remark}" if verdict.remark else ""
        answer = f"{words.SYMBOLS[verdict.answer]} {verdict.answer}"
        lines.append(_row(verdict.sentence, answer, words.effect(verdict) + remark, words.chance(verdict)))
    if result.table is not None:
        lines += ["", _row(*result.table.columns), _row(*("---" for _ in result.table.columns))]
        lines += [_row(*row) for row in result.table.rows]
    if result.id in notes:
        lines += ["", f"**What was tried:** {notes[result.id].strip()}"]
    lines += ["", "Departures from the paper:", "", *(f"- {text}" for text in result.departures)]
    seconds = sum(float(run["seconds"]) for run in result.runs)
    lines += [
        "",
        f"{len(result.runs)} runs, {seconds / 60:.1f} minutes of computing; data: [{result.id}.csv]({result.id}.csv)",
        "",
    ]
    return lines


def _row(*cells: str) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _verdicts(results: list[RecipeResult]) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    columns = ("sentence", "source", "answer", "effect", "low", "high", "unit", "p", "num", "remark")
    writer.writerow(("recipe", *columns))
    for result in results:
        writer.writerows((result.id, *(getattr(verdict, name) for name in columns)) for verdict in result.verdicts)
    return stream.getvalue()


def _shrink(source: Path, target: Path) -> None:
    """A picture of at most 1,100 pixels, 2,200 where it has many panels, in 128 colours: small enough to be kept."""
    from PIL import Image

    HERE.mkdir(exist_ok=True)
    with Image.open(source) as picture:
        factor = min(1.0, (1100 if picture.width < 3000 else 2200) / picture.width)
        size = round(picture.width * factor), round(picture.height * factor)
        picture.convert("RGB").resize(size, Image.Resampling.LANCZOS).quantize(128).save(target, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
