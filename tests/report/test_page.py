"""The page: whole, self-contained, and safe against what it shows."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from spherometer.figures import density_figure, draw_edge, edge_figure
from spherometer.figures.ticks import log_ticks
from spherometer.report import Facts, Grid, Page, Picture, Prose, prepare, render

HOSTILE = """</script><script>alert("x")</script><img src=x onerror=alert(1)>&'"""


class Outline(HTMLParser):
    """Tags in order, and the text of each script."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self._inside = False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._inside = tag == "script"
        if self._inside:
            self.scripts.append("")

    def handle_endtag(self, tag):
        self._inside = False

    def handle_data(self, data):
        if self._inside:
            self.scripts[-1] += data


def make_page(words: str) -> Page:
    figure = edge_figure([0, 1, 2], [1.0, 2.0, 3.0], [0.1] * 3, [3.0, 2.0, 1.0], threshold=2.5)
    figure["layout"]["annotations"][0]["text"] = words
    sections = [
        Prose([words], words),
        Picture(words, figure, words),
        Grid(words, (words, "b"), [(words, "1\n2")], numeric=(1,), caption=words),
        Facts(words, {words: words}),
    ]
    return Page(words, words, sections, headlines=[(words, words)], footer=words)


def test_what_is_shown_is_escaped():
    harmless, hostile = (Outline(render(make_page(words))) for words in ("words", HOSTILE))
    assert [tag for tag, _ in hostile.tags] == [tag for tag, _ in harmless.tags]
    assert len(hostile.scripts) == 3  # the figure, plotly, our own
    figure = json.loads(hostile.scripts[0])
    assert figure["layout"]["annotations"][0]["text"] == HOSTILE


def test_nothing_is_fetched_from_anywhere():
    outline = Outline(render(make_page("words")))
    for tag, attributes in outline.tags:
        for name in ("src", "href"):
            assert attributes.get(name, "data:,") == "data:,", (tag, attributes)
    own = outline.scripts[2]
    assert "http" not in own
    assert "fetch(" not in own


def test_plotly_is_there_once_and_only_with_pictures():
    page = make_page("words")
    assert render(page).count("plotly.js v") == 1
    assert len(render(Page("t", "l", [Prose(["p"])]))) < 20_000


def test_colours_of_figures_are_known_to_the_style_sheet():
    text = render(make_page("words"))
    used = set(re.findall(r'"var\((--[a-z-]+)\)"', text))
    light, dark = (set(re.findall(r"(--[a-z-]+):", part)) for part in text.split("prefers-color-scheme: dark")[:2])
    assert used
    assert used <= light
    assert used <= dark


def test_figures_are_plain_data():
    grid = [0.1 * k for k in range(50)]
    figures = (
        edge_figure([0, 10], [1.0, 2.0], [0.1, 0.1], [0.5, 0.5], threshold=20.0),
        density_figure(grid, [0.0] * 25 + [1.0] * 25, [0.1] * 50, [4.0, 3.0], threshold=3.0),
    )
    for figure in figures:
        assert json.loads(json.dumps(figure, allow_nan=False)) == figure


def test_round_ticks_on_logarithmic_axes():
    assert log_ticks([0.03, 0.5]) == [0.05, 0.1, 0.2, 0.5]
    assert log_ticks([3.0, 3.0]) == [3.0]
    assert log_ticks([0.0, 3.0]) == [3.0]


def test_a_missing_library_is_asked_for_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("spherometer.report.files.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'spherometer\[report\]'"):
        prepare(tmp_path / "page.html")


def test_the_drawing_is_a_small_picture(tmp_path: Path):
    steps = list(range(0, 2500, 10))
    sharpness = [min(20.0, 12 + 0.02 * step) for step in steps]
    losses = [1 / (1 + step) for step in steps]
    draw_edge(tmp_path / "edge.png", steps, sharpness, [0.1] * len(steps), losses, threshold=20.0)
    content = (tmp_path / "edge.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    assert 5_000 < len(content) < 150_000
