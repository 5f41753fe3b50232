"""The page of results: verdicts first, everything escaped, broken folders told, two folders compared."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from report.made_up import IDS, figure_of, result_of, write_results
from report.test_page import HOSTILE, Outline
from spherometer.figures import HeatPanel, Panel, Panels, Series
from spherometer.recipes.claims import Claim, judge
from spherometer.recipes.recipe import Table
from spherometer.recipes.result import RecipeResult
from spherometer.report.results import Done, Side, compared, read_results, results_page
from spherometer.report.results.marks import interval_mark, stamp
from spherometer.report.results.words import basis, cells, chance, effect, interval, number, told


def done(place: int, **changes) -> Done:
    result = replace(result_of(place), **changes)
    return Done(result, figure_of(place, np.random.default_rng(place)))


def verdict(sentence: str = "it rises", *values: float):
    (found,) = judge([Claim(sentence, lambda _: values or (1.0, 1.2, 0.9))], None)
    return found


def test_a_result_survives_its_file(tmp_path: Path):
    for place in (0, 4):
        result = result_of(place)
        result.write(tmp_path / "r" / "result.json")
        again = RecipeResult.read(tmp_path / "r" / "result.json")
        assert again.to_dict() == result.to_dict()
        assert [found.answer for found in again.verdicts] == [found.answer for found in result.verdicts]
    content = result_of(0).to_dict()
    for wrong in ({}, [], content | {"format": 2}, content | {"verdicts": [{}]}, content | {"runs": [{"key": 1}]}):
        with pytest.raises(ValueError, match="expected"):
            RecipeResult.from_dict(wrong)
    del content["idea"]
    with pytest.raises(ValueError, match="incomplete"):
        RecipeResult.from_dict(content)


def test_verdicts_come_first_and_every_recipe_after_them(tmp_path: Path):
    write_results(tmp_path)
    found, troubles = read_results(tmp_path)
    assert troubles == []
    assert [entry.result.id for entry in found] == IDS
    text = results_page([Side("here", found)])
    outline = Outline(text)
    assert text.index("<h2>Verdicts</h2>") < text.index('<section class="recipe"')
    anchors = {attributes["id"] for tag, attributes in outline.tags if tag == "section" and "id" in attributes}
    links = {str(attributes["href"])[1:] for tag, attributes in outline.tags if tag == "a"} - {""}
    assert len(anchors) == 12
    assert links == anchors
    verdicts = [one for entry in found for one in entry.result.verdicts]
    for answer in ("holds", "fails", "undecided"):
        num = sum(one.answer == answer for one in verdicts)
        assert num > 0
        assert len(re.findall(rf'<tr class="verdict {answer}">', text)) == num
    assert len(outline.scripts) == sum(len(entry.figure.panels) for entry in found if entry.figure) + 2
    for words in (
        "width 32 instead of 512",
        "326.80 ± 182.51",
        "method.learning_rate",
        "libraries.torch",
        "3 min",
    ):
        assert words in text
    assert "1 of 6 runs failed. The first: FloatingPointError: the loss is nan" in text
    assert ">4711<" not in text
    assert "smoke scale" not in text


def test_what_is_shown_is_escaped():
    def page(words: str) -> Outline:
        figure = Panels(
            [
                Panel(
                    words, words, words, [Series(words, [1, 2], [1, 2]), Series("b", [1, 2], [2, 1])], x_names=[words]
                ),
                HeatPanel(words, [[1.0]], [words], [words], x_label=words, y_label=words),
            ],
            caption=words,
        )
        run = {"labels": {words: words}, "key": words, "state": "failed", "seconds": 1.0, "message": words}
        result = RecipeResult(
            id=words, idea=words, paper=words, finding=words, scale=words, departures=[words], settings={words: words},
            runs=[run], seconds=1.0, provenance={words: {words: [words]}}, table=Table([words], [[words]]),
            verdicts=[replace(verdict(), sentence=words, source=words, unit=words, remark=words)],
        )  # fmt: skip
        return Outline(results_page([Side(words, [Done(result, figure)]), Side("b", [Done(result, figure)])], [words]))

    harmless, hostile = page("words"), page(HOSTILE)
    assert [tag for tag, _ in hostile.tags] == [tag for tag, _ in harmless.tags]
    assert len(hostile.scripts) == len(harmless.scripts) == 6
    assert "<img" not in json.dumps(json.loads(hostile.scripts[0])["layout"])  # plotly obeys tags, so they are words
    for tag, attributes in hostile.tags:
        assert not any(name.startswith("on") for name in attributes), (tag, attributes)
        for name in ("src", "href"):
            assert str(attributes.get(name, "data:,")).startswith(("data:,", "#")), (tag, attributes)


def test_colours_are_known_to_the_style_sheet():
    text = results_page([Side("here", [done(0), done(3)])])
    used = set(re.findall(r"var\((--[a-z-]+)\)", text))
    light, dark = (set(re.findall(r"(--[a-z-]+):", part)) for part in text.split("prefers-color-scheme: dark")[:2])
    assert {"--series-a", "--heat-low", "--holds"} <= used
    assert used - {"--columns"} <= light
    assert used - {"--columns"} <= dark


def test_broken_and_unfinished_results_are_told_and_the_rest_is_shown(tmp_path: Path):
    write_results(tmp_path, range(5))
    recipes = tmp_path / "recipes"
    (recipes / "A-F1.laptop" / "result.json").unlink()
    half = (recipes / "A-F2.laptop" / "result.json").read_text(encoding="utf-8")
    (recipes / "A-F2.laptop" / "result.json").write_text(half[:300], encoding="utf-8")
    (recipes / "A-F5.laptop" / "result.json").write_text('{"format": 7}', encoding="utf-8")
    (recipes / "A-F29.laptop" / "figure.json").write_text("[]", encoding="utf-8")
    (recipes / "A-T1.laptop" / "figure.json").unlink()
    (recipes / "a stray file").write_text("x")
    found, troubles = read_results(tmp_path)
    assert [entry.result.id for entry in found] == ["A-F29", "A-T1"]
    assert [entry.figure for entry in found] == [None, None]
    assert [line.split(": ")[0] for line in troubles] == [
        f"{name}.laptop" for name in ("A-F1", "A-F2", "A-F29", "A-F5", "A-T1")
    ]
    for line, words in zip(
        troubles, ("not finished", "half-written", "the rest", "format 1", "no figure.json"), strict=True
    ):
        assert words in line
        assert "\n" not in line
    text = results_page([Side("here", found)], troubles)
    assert "There is no figure." in text
    for line in troubles:
        assert line.split(":")[0] in text
    for folder in (tmp_path / "nowhere", recipes):
        with pytest.raises(ValueError, match="expected a folder of results"):
            read_results(folder)
    (tmp_path / "empty" / "recipes").mkdir(parents=True)
    with pytest.raises(ValueError, match="no result to show"):
        read_results(tmp_path / "empty")


def test_two_folders_are_compared_and_differences_come_first():
    holds, fails = verdict("it rises"), verdict("it falls", -1.0, -1.1, -0.9)
    turned = replace(fails, answer="holds")
    here = Side("here", [done(0, verdicts=[holds]), done(1, verdicts=[holds, fails]), done(2, verdicts=[holds])])
    there = Side("there", [done(0, verdicts=[holds]), done(1, verdicts=[holds, turned]), done(3, verdicts=[fails])])
    blocks = compared([here, there])
    assert [block.first.result.id for block in blocks] == ["A-F2", "A-F1", "A-F5", "A-F29"]
    assert [row.sentence for row in blocks[0].rows] == ["it falls", "it rises"]
    assert [row.differs for row in blocks[0].rows] == [True, False]
    assert [[side is not None for side in block.sides] for block in blocks] == [
        [True, True],
        [True, True],
        [True, False],
        [False, True],
    ]
    text = results_page([here, there])
    assert "<h1>1 answer differs</h1>" in text
    assert text.count("not there") == 4  # two recipes in the list, each with one sentence
    assert "<h3>there, laptop scale</h3>" in text
    assert "No answers differ" in results_page([here, here])


def test_a_scale_that_only_one_side_has_goes_with_the_other():
    here = Side("here", [done(0, scale="laptop"), done(1, scale="laptop")])
    there = Side("there", [done(0, scale="paper"), done(1, scale="laptop"), done(1, scale="paper")])
    blocks = compared([here, there])
    scales = [[side.result.scale if side else None for side in block.sides] for block in blocks]
    assert scales == [["laptop", "paper"], ["laptop", "laptop"], [None, "paper"]]


def test_a_second_result_of_the_same_recipe_is_not_lost():
    both = [done(0), done(0, idea="the same again")]
    assert [block.first.result.idea for block in compared([Side("here", both)])] == [one.result.idea for one in both]
    blocks = compared([Side("here", both), Side("there", [done(0)])])
    assert [[side is not None for side in block.sides] for block in blocks] == [[True, True], [True, False]]


def test_smoke_says_that_it_says_nothing():
    smoke, laptop = done(0, scale="smoke"), done(1)
    text = results_page([Side("here", [smoke, laptop])])
    assert "1 of the results is at smoke scale" in text
    assert f"<h1>{len(laptop.result.verdicts)} claims, tested</h1>" in text
    assert text.count('<tbody class="smoke">') == 1
    assert "<h1>Smoke only: nothing is tested yet</h1>" in results_page([Side("here", [smoke])])


def circles(mark: str) -> list[float]:
    return [float(place) for place in re.findall(r'cx="([-0-9.]+)"', mark)]


def test_the_mark_shows_the_interval_against_the_claim():
    good, bad = interval_mark(verdict()), interval_mark(verdict("x", -1.0, -1.1, -0.9))
    for mark, right in ((good, True), (bad, False)):
        (dot,) = circles(mark)
        border = float(re.findall(r'class="border" d="M([0-9.]+)', mark)[0])
        start, width = (float(re.findall(rf'claimed"[^>]* {name}="([0-9.]+)"', mark)[0]) for name in ("x", "width"))
        assert (dot > border) == right
        assert start == border
        assert start + width == pytest.approx(150)
    assert 'd="M0.0 10H150.0"' in interval_mark(verdict("one seed", 1.0))  # without an interval it may be anywhere
    assert interval_mark(verdict("nothing", math.nan)) == ""


def test_stamps_of_every_kind_of_panel():
    broken = Series("a", range(200), [math.nan if k == 100 else float(k) for k in range(200)], style="dashed")
    line = stamp(Panels([Panel("", "", "", [broken])]))
    assert line.count("M") == 2  # a gap
    assert len(line) < 2500
    dots = stamp(Panels([Panel("", "", "", [Series("a", [1, 2], [1, 1], style="markers")], log_x=True)]))
    assert len(circles(dots)) == 2
    assert stamp(Panels([HeatPanel("", [[1, math.nan], [0, -1]], ["a", "b"], ["a", "b"])])).count("<rect") == 4
    assert "path" not in stamp(Panels([Panel("", "", "", [Series("a", [1], [math.nan])])]))


def test_words():
    assert [number(value) for value in (-0.012345, 12345.0, math.inf, -math.inf, math.nan, 0.0)] == [
        "−0.0123", "1.23e+04", "∞", "−∞", "–", "0",
    ]  # fmt: skip
    assert told({"holds": 1, "fails": 2, "undecided": 0}) == "1 holds, 2 fail"
    assert told({"holds": 0}) == "no claims"
    assert cells({"a": {"b": 1, "c": None}, "d": ["x", 2]}) == {"a.b": "1", "a.c": "–", "d": "x 2"}
    one = verdict("one seed", 1.0)
    assert (interval(one), basis(one)) == ("−∞ … ∞", "1 number")
    assert effect(replace(one, effect=0.5, low=0.25, high=0.75, unit="ln")) == "0.5 (0.25 … 0.75) ln"
    assert effect(replace(one, effect=-1.0, low=-1.0, high=-1.0, unit="")) == "−1"
    assert chance(replace(one, p=0.0004)) == "p < 0.001"
    assert chance(replace(one, p=None)) == ""
    assert basis(replace(one, needed=12)) == "1 number; about 12 would decide it"
