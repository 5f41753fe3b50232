"""Write docs/results from a folder of laptop-scale results: python docs/make_results.py RESULTS

Pictures, the data behind them, every verdict, and one page per paper. A recipe that is not in the folder keeps the
result it has. Remarks on claims that fail are written by hand in docs/results/notes.toml and put beside the verdicts.
"""

import csv
import re
import shutil
import sys
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
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
COLUMNS = ("sentence", "source", "answer", "effect", "low", "high", "unit", "p", "num", "remark")
SECTION = re.compile(r"^(?=\([a-z0-9-]+\)=$)", re.MULTILINE)  # begins with the label that links go to
Row = Sequence[object]


def main(folder: Path) -> None:
    results = [RecipeResult.read(path) for path in folder.glob(f"recipes/*.{SCALE}/result.json")]
    sections, verdicts = _kept_sections(), _kept_verdicts()
    notes = _notes({*sections, *(result.id for result in results)})
    for result in results:
        source = folder / "recipes" / f"{result.id}.{SCALE}"
        _shrink(source / "figure.png", HERE / f"{result.id}.png")
        shutil.copyfile(source / "data.csv", HERE / f"{result.id}.csv")
        sections[result.id] = "\n".join(_section(result, notes))
        verdicts[result.id] = [[getattr(verdict, name) for name in COLUMNS] for verdict in result.verdicts]
    ids = sorted(sections, key=place)
    for paper, group in groupby(ids, key=_paper):
        text = "\n".join([f"# {PAPERS[paper]}", "", *(sections[name] for name in group)])
        _page(paper).write_text(text, encoding="utf-8")
    _write_verdicts({name: verdicts.get(name, []) for name in ids})
    answers = {name: [str(row[COLUMNS.index("answer")]) for row in verdicts.get(name, [])] for name in ids}
    (HERE / "index.md").write_text(_index(answers), encoding="utf-8")


def _kept_sections() -> dict[str, str]:
    """The sections of the pages that are there, by the ids of their recipes."""
    pages = [_page(paper).read_text(encoding="utf-8") for paper in PAPERS if _page(paper).exists()]
    sections = [section for page in pages for section in SECTION.split(page)[1:]]
    return {_id_of(section): section.rstrip("\n") + "\n" for section in sections}


def _id_of(section: str) -> str:
    return section[1 : section.index(")")].upper()


def _kept_verdicts() -> dict[str, list[Row]]:
    with (HERE / "verdicts.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))[1:]
    return {name: [row[1:] for row in group] for name, group in groupby(rows, key=lambda row: row[0])}


def _write_verdicts(verdicts: Mapping[str, Sequence[Row]]) -> None:
    with (HERE / "verdicts.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("recipe", *COLUMNS))
        writer.writerows((name, *row) for name, rows in verdicts.items() for row in rows)


def _paper(name: str) -> str:
    return name.partition("-")[0]


def _page(paper: str) -> Path:
    return HERE / f"paper-{paper.lower()}.md"


def _notes(known: set[str]) -> dict[str, str]:
    """What was tried to understand each failing claim; a note on a recipe that is not there is a mistake."""
    path = HERE / "notes.toml"
    notes: dict[str, str] = tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if strangers := set(notes) - known:
        raise SystemExit(f"{path}: notes on recipes without a result: {', '.join(sorted(strangers))}")
    return notes


def _index(answers: Mapping[str, Sequence[str]]) -> str:
    """The table of all recipes with a result, from the answers to the claims of each."""
    given = [answer for row in answers.values() for answer in row]
    lines = [
        "# Results at laptop scale",
        "",
        f"{len(answers)} of {len(recipes())} recipes, run by `spherometer run ID` on two cores, "
        f"{len(given)} claims: {words.told(_tally(given))}. "
        "A laptop's network is smaller than the paper's, so a verdict is about the mechanism at that size; every "
        "departure is listed with its recipe. Claims and settings were written before the runs, and some were changed "
        "after a first look: [the list](revisions.md). A claim that fails is a finding: the pages say what was tried "
        "to understand it.",
        "",
        "| recipe | idea | holds | fails | undecided |",
        "|---|---|---|---|---|",
    ]
    for name, row in answers.items():
        cells = " | ".join(str(count or "") for count in _tally(row).values())
        link = f"{_page(_paper(name)).name}#{name.lower()}"
        lines.append(f"| [{name}]({link}) | {recipes()[name].idea} | {cells} |")
    pages = [*(_page(paper).stem for paper in dict.fromkeys(map(_paper, answers))), "revisions"]
    return "\n".join([*lines, "", "::::{toctree}", ":hidden:", "", *pages, "::::", ""])


def _tally(answers: Sequence[str]) -> dict[str, int]:
    counts = Counter(answers)
    return {answer: counts[answer] for answer in words.ANSWERS}


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
