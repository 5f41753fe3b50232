"""The page of results in a real browser: desktop, phone, dark, print; hostile names are words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from report.browser import PROGRAM, Browser
from report.made_up import figure_of, result_of
from spherometer.figures import Panel, Panels, Series
from spherometer.report.results import Done, Side, results_page

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="no chromium on this machine: apt-get install chromium"),
]

HOSTILE = """<b>bold</b><script>alert(1)</script><img src=x onerror=alert(2)>&'"%{x}"""
DRAWN = "document.querySelectorAll('.plot .main-svg').length > 0"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    done = [Done(result_of(place), figure_of(place, np.random.default_rng(place))) for place in range(12)]
    strange = Panels([Panel(HOSTILE, HOSTILE, HOSTILE, [Series(HOSTILE, [1, 2], [1, 2]), Series("b", [1, 2], [2, 1])])])
    done.insert(0, Done(replace(result_of(0), id="A-F0", idea=HOSTILE, finding=HOSTILE), strange))
    path: Path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(results_page([Side("here", done), Side("there", done[1:6])]), encoding="utf-8")
    return path.as_uri()


@pytest.mark.parametrize("width", [1300, 380])
@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_draws_what_is_near_and_asks_nobody(page, width, dark):
    with Browser() as browser:
        browser.look(width, dark=dark)
        browser.open(page)
        assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert browser.evaluate("document.querySelectorAll('.plot .main-svg').length") == 0  # far below the verdicts
        browser.evaluate("document.querySelector('section.recipe').scrollIntoView()")
        browser.wait_for(DRAWN)
        assert "<b>bold</b>" in browser.wait_for("document.querySelector('.plot').textContent")
        assert browser.evaluate("document.querySelectorAll('.plot img, .plot b').length") == 0
        colour = browser.evaluate("document.querySelector('.plot .scatterlayer path.js-line').style.stroke")
        assert colour == ("rgb(74, 168, 224)" if dark else "rgb(0, 114, 178)")
        assert browser.complaints == []
        assert all(address.startswith(("file:", "data:", "blob:")) for address in browser.requests)


def test_filters_and_print(page):
    with Browser() as browser:
        browser.look(1300)
        browser.open(page)
        shown = "[...document.querySelectorAll('tr.verdict')].filter((row) => row.offsetParent).length"
        everything = browser.evaluate(shown)
        browser.evaluate("document.querySelector('input[value=fails]').click()")
        assert 0 < browser.evaluate(shown) < everything
        browser.evaluate("dispatchEvent(new Event('beforeprint'))")
        num = browser.evaluate("document.querySelectorAll('.plot').length")
        browser.wait_for(
            f"[...document.querySelectorAll('.plot')].filter((p) => p.querySelector('.main-svg')).length === {num}"
        )
        assert browser.evaluate("[...document.querySelectorAll('details')].every((entry) => entry.open)")
        assert browser.complaints == []
