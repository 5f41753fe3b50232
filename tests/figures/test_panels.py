"""One description, three renderers: what is told is drawn, nothing that is told is lost."""

from __future__ import annotations

import csv
import io
import json
import math
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

from spherometer.figures import (
    HeatPanel,
    Line,
    Panel,
    Panels,
    Series,
    draw_panels,
    over_seeds,
    panels_csv,
    plotly_panels,
)
from spherometer.figures.panels import drawing
from spherometer.figures.panels.palette import PAPER

HOSTILE = "<b>$x$</b> & %{y} $"


def every_kind() -> Panels:
    curve = Series("curve", [1, 2, 3, 4], [1.0, math.nan, 3.0, math.inf], [0.5, 0, -1, 0], [2, 3, 4, 5], "dashed")
    dots = Series(HOSTILE, [1, 2], [1.0, -2.0], [0.5, -3], [1.5, -1], "markers")
    bars = [Series(name, [0, 1], [3.0, 4.0], [2, 3], [4, 5], style="bars") for name in ("SGD", "EJR")]
    matrix = [[1.0, math.nan], [-0.5, 1.0]]
    return Panels(
        [
            Panel("sharpness", "step", "λ₁", [curve, dots], lines=[Line("2/lr", y=2.5), Line("start", x=2, colour=1)]),
            Panel("norm", "step", "‖J‖", [curve, dots], log_x=True, log_y=True, lines=[Line("one", y=1.0)]),
            Panel(HOSTILE, HOSTILE, HOSTILE, bars, x_names=["low", "a rather long name"]),
            HeatPanel("r", matrix, ["a", HOSTILE], ["a", "b"], 1.0, matrix, matrix, numbers=True),
        ],
        columns=2,
        caption="what to see",
    )


def test_a_figure_survives_json():
    figure = every_kind()
    content = json.loads(json.dumps(figure.to_dict(), allow_nan=False))
    again = Panels.from_dict(content)
    assert again.to_dict() == figure.to_dict()
    first = again.panels[0]
    assert isinstance(first, Panel)
    assert math.isnan(first.series[0].y[1])
    assert first.series[0].y[3] == math.inf
    assert first.lines == (Line("2/lr", y=2.5), Line("start", x=2, colour=1))
    for wrong in ({}, {"panels": [{"kind": "pie"}], "columns": 1, "caption": ""}, {"panels": 3}, []):
        with pytest.raises(ValueError, match="expected"):
            Panels.from_dict(wrong)


def test_files_are_whole_and_the_same_every_time(tmp_path: Path):
    starts = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}
    for name, endings in (("one", starts), ("other", reversed(starts))):
        draw_panels(every_kind(), *(tmp_path / f"{name}.{ending}" for ending in endings))
    for ending, start in starts.items():
        content = (tmp_path / f"one.{ending}").read_bytes()
        assert content == (tmp_path / f"other.{ending}").read_bytes()
        assert content.startswith(start)
    assert len(list(tmp_path.iterdir())) == 6


def test_the_drawing_shows_everything(tmp_path: Path):
    """Each thing told moves ink: leaving it out changes the picture."""
    x = [1.0, 2.0, 3.0]
    base = Series("a", x, [1.0, 2.0, 1.5])
    pictures = set()
    for place, panel in enumerate(
        [
            Panel("", "", "", [base]),
            Panel("t", "", "", [base]),
            Panel("", "x", "", [base]),
            Panel("", "", "y", [base]),
            Panel("", "", "", [base], log_y=True),
            Panel("", "", "", [base], log_x=True),
            Panel("", "", "", [base], lines=[Line("", y=1.5)]),
            Panel("", "", "", [base], lines=[Line("named", y=1.5)]),
            Panel("", "", "", [base], lines=[Line("", x=1.5)]),
            Panel("", "", "", [base], x_names=["a", "b"]),
            Panel("", "", "", [Series("", x, base.y)]),
            *(
                Panel("", "", "", [Series("a", x, base.y, style=style)])
                for style in ("dashed", "dotted", "markers", "bars")
            ),
            Panel("", "", "", [Series("a", x, base.y, [0, 1, 1], [2, 3, 2])]),
            Panel("", "", "", [Series("a", x, base.y, [0, 1, 1], [2, 3, 2], style="markers")]),
            Panel("", "", "", [Series("a", x, base.y, colour=3)]),
        ]
    ):
        path = tmp_path / f"{place}.svg"
        draw_panels(Panels([panel]), path)
        pictures.add(path.read_bytes())
    assert len(pictures) == 18


def test_the_legend_is_shared_where_all_panels_name_the_same(tmp_path: Path):
    def names(figure: Panels) -> int:
        draw_panels(figure, tmp_path / "f.svg")
        tree = ElementTree.parse(tmp_path / "f.svg")
        return sum("legend" in (element.get("id") or "") for element in tree.iter())

    series = [Series(name, [1, 2], [1, 2]) for name in ("a", "b")]
    same = [Panel(str(k), "x", "y", series) for k in range(3)]
    assert names(Panels(same)) == 1
    assert names(Panels([*same, Panel("other", "x", "y", series[:1])])) == 4


def test_a_label_is_named_once_and_short_logarithmic_axes_have_round_ticks():
    twice = [Series("trial", [1, 2], [3, 40]), Series("trial", [1, 2], [4, 50]), Series("", [1, 2], [1, 2])]
    figure = plotly_panels(Panels([Panel("", "", "", twice, log_y=True)]))[0]
    assert [trace["showlegend"] for trace in figure["data"]] == [True, False, False]
    assert figure["layout"]["yaxis"]["tickvals"] == [1, 2, 5, 10, 20, 50]
    far = plotly_panels(Panels([Panel("", "", "", [Series("a", [1, 2], [1e-6, 1e3])], log_y=True)]))[0]
    assert "tickvals" not in far["layout"]["yaxis"]


def test_equal_labels_have_equal_colours():
    a, b, c = (Series(name, [1], [1]) for name in "abc")
    figure = Panels([Panel("1", "", "", [a, b]), Panel("2", "", "", [c, b, Series("d", [1], [1], colour=7)])])
    assert [figure.colour_of(entry) for entry in (a, b, c)] == [0, 1, 2]
    data = plotly_panels(figure)[1]["data"]
    assert [trace["line"]["color"] for trace in data] == ["var(--series-c)", "var(--series-b)", "var(--series-h)"]


def test_plotly_descriptions_are_plain_and_harmless():
    figures = plotly_panels(every_kind())
    text = json.dumps(figures, allow_nan=False)
    assert "<b>" not in text
    assert "$" in text
    assert figures[0]["layout"]["shapes"][0]["y0"] == 2.5
    assert figures[1]["layout"]["annotations"][0]["y"] == 0.0  # log10(1): annotations go by the logarithm
    assert [figure["layout"]["showlegend"] for figure in figures[:3]] == [True, True, True]
    curve = next(trace for trace in figures[0]["data"] if trace.get("name") == "curve")
    assert curve["y"] == [1.0, None, 3.0, None]
    assert figures[2]["data"][0]["x"] == [-0.2, 0.8]
    assert figures[2]["data"][1]["x"] == [0.2, 1.2]


def test_bands_break_at_gaps_and_end_above_zero_on_a_logarithmic_axis():
    band, _ = plotly_panels(
        Panels([Panel("", "", "", [Series("a", range(5), [1, 2, math.nan, 3, 4], range(5), [9] * 5)])])
    )[0]["data"]
    assert band["x"] == [0, 1, 1, 0, None, 3, 4, 4, 3]
    assert band["y"] == [9, 9, 1, 0, None, 9, 9, 4, 3]
    band, _ = plotly_panels(Panels([Panel("", "", "", [Series("a", [0, 1], [1, 2], [-5, 1.5], [9, 9])], log_y=True)]))[
        0
    ]["data"]
    assert band["y"] == [9, 9, 1.5, 0.5]


def test_long_series_are_thinned_without_losing_extremes():
    x = np.arange(50_000)
    y = np.sin(x / 3000)
    y[31_234], y[7_777] = 9.0, -9.0
    (trace,) = plotly_panels(Panels([Panel("", "", "", [Series("a", x, y)])]))[0]["data"]
    assert len(trace["x"]) <= 1502
    assert (max(trace["y"]), min(trace["y"])) == (9.0, -9.0)
    assert trace["x"] == sorted(trace["x"])
    assert (trace["x"][0], trace["x"][-1]) == (0, 49_999)


def test_the_table_holds_every_number():
    rows = list(csv.DictReader(io.StringIO(panels_csv(every_kind()))))
    assert rows[0] == {
        "panel": "sharpness", "kind": "point", "series": "curve", "x": "1", "y": "1", "low": "0.5", "high": "2",
    }  # fmt: skip
    assert [row["y"] for row in rows[:4]] == ["1", "nan", "3", "inf"]
    assert [row["kind"] for row in rows].count("line") == 3
    cells = [row for row in rows if row["kind"] == "cell"]
    assert [(row["series"], row["x"], row["y"]) for row in cells][1:3] == [("a", "b", "nan"), (HOSTILE, "a", "-0.5")]
    assert [row["x"] for row in rows if row["series"] == "EJR"] == ["low", "a rather long name"]
    assert len(rows) == 6 + 2 + 6 + 1 + 4 + 4
    precise = Panels([Panel("p", "", "", [Series("a", [0.1], [1 / 3])])])
    assert panels_csv(precise).splitlines()[1] == "p,point,a,0.1,0.3333333333333333,,"


def test_over_seeds_is_mean_and_standard_deviation_at_common_steps():
    curves = [([0, 10, 20], [1.0, 2.0, 3.0]), ([0, 10, 20, 30], [3.0, 2.0, 7.0, 9.0])]
    found = over_seeds(curves, "a", style="dotted", colour=2)
    assert found.x == (0, 10, 20)
    assert found.y == (2.0, 2.0, 5.0)
    spread = math.sqrt(2)
    assert found.low == pytest.approx((2 - spread, 2.0, 5 - 2 * spread))
    assert found.high == pytest.approx((2 + spread, 2.0, 5 + 2 * spread))
    assert (found.style, found.colour) == ("dotted", 2)
    assert over_seeds(curves[:1], "a").low is None
    assert over_seeds([([], []), *curves], "a") == over_seeds(curves, "a")  # a run that failed
    assert over_seeds([([], []), curves[0]], "a").low is None
    assert over_seeds([([], [])] * 2, "a").x == ()
    diverged = over_seeds([([0, 1], [1.0, 2.0]), ([0, 1], [1.0, math.inf])], "a")
    assert math.isnan(diverged.y[1])


def test_smoothing_is_a_running_mean_of_each_curve():
    values = [4.0, 0.0, math.nan, 6.0, 2.0, 1.0]
    found = over_seeds([(range(6), values)], "a", smooth=3).y
    assert found[:2] == (2.0, 2.0)
    assert math.isnan(found[2])
    assert found[3:] == (4.0, 3.0, 1.5)
    assert over_seeds([(range(6), [1.0] * 6)], "a", smooth=50).y == (1.0,) * 6


def test_wrong_descriptions_are_told(tmp_path: Path):
    fine = Series("a", [1], [1])
    for wrong, words in (
        (lambda: Series("a", [1, 2], [1]), "expected 2 y, got 1"),
        (lambda: Series("a", [1], [1], style="wavy"), "expected a style of solid"),
        (lambda: Series("a", [1], [1], low=[0]), "expected low and high, or neither"),
        (lambda: Line("a"), "expected x or y"),
        (lambda: Line("a", x=1, y=1), "expected x or y"),
        (lambda: Line("a", y=math.nan), "expected a finite place"),
        (lambda: Panels([]), "expected panels"),
        (lambda: HeatPanel("h", [[1]], ["a"], ["a", "b"]), "expected 2 columns of matrix, got 1"),
        (lambda: HeatPanel("h", [[1]], ["a"], ["a"], limit=0.0), "expected a positive limit"),
        (lambda: HeatPanel("h", [[1]], ["a"], ["a"], low=[[1]]), "expected low and high"),
        (lambda: over_seeds([], "a"), "at least one seed"),
        (lambda: over_seeds([([0], [1]), ([1], [1])], "a"), "no step in common"),
        (lambda: over_seeds([([0], [1])], "a", smooth=0), "at least 1 point"),
        (lambda: draw_panels(Panels([Panel("", "", "", [fine])]), tmp_path / "f.gif"), "ends in .png, .svg or .pdf"),
    ):
        with pytest.raises(ValueError, match=words):
            wrong()
    assert not list(tmp_path.iterdir())


CONFUSIONS = {  # linear RGB of severe colour blindness (Machado, Oliveira, Fernandes 2009)
    "none": np.eye(3),
    "protan": np.array([[0.1523, 1.0526, -0.2049], [0.1145, 0.7863, 0.0992], [-0.0039, -0.0481, 1.0520]]),
    "deutan": np.array([[0.3673, 0.8606, -0.2280], [0.2801, 0.6725, 0.0474], [-0.0118, 0.0429, 0.9689]]),
    "tritan": np.array([[1.2555, -0.0767, -0.1788], [-0.0784, 0.9308, 0.1476], [0.0047, 0.6914, 0.3039]]),
}


def lab(colour: str, eyes: np.ndarray) -> np.ndarray:
    """CIE Lab of a colour as it looks to some eyes."""
    rgb = np.array([int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)])
    linear = np.clip(eyes @ np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4), 0, 1)
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ linear
    f = np.cbrt(np.maximum(xyz / [0.9505, 1.0, 1.089], 0.008856))
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def closest(colours: tuple[str, ...], eyes: np.ndarray) -> float:
    places = [lab(colour, eyes) for colour in colours]
    return min(float(np.linalg.norm(a - b)) for k, a in enumerate(places) for b in places[:k])


@pytest.mark.parametrize("eyes", CONFUSIONS)
def test_the_palette_can_be_told_apart_by_all_eyes(eyes):
    assert closest(PAPER[:5], CONFUSIONS[eyes]) > 15  # 2.3 is a just noticeable difference
    assert closest(PAPER, CONFUSIONS[eyes]) > 8
    if eyes in ("protan", "deutan"):
        assert closest(("#d62728", "#2ca02c"), CONFUSIONS[eyes]) < 45  # the usual red and green come close


def test_a_line_at_the_top_is_named_below_itself_and_not_inside_the_title():
    series = [Series("", [0.0, 1.0], [0.0, 1.0])]
    lines = [Line("top", y=2.0), Line("middle", y=1.0)]
    drawn = drawing._figure(Panels([Panel("title", "x", "y", series, lines=lines)]))
    places = {text.get_text(): text.get_verticalalignment() for text in drawn.axes[0].texts}
    assert places == {"top": "top", "middle": "bottom"}
