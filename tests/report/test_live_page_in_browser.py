"""The live page in a real browser: it draws, follows a run that goes on, filters, and shows hostile names as text."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from report.browser import PROGRAM, Browser
from spherometer.records import Event, RunWriter
from spherometer.report.live import LiveServer, Runs

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="no chromium on this machine: apt-get install chromium"),
]

HOSTILE = """<b>&lt;</b><script>alert(1)</script><img src=x onerror=alert(2)>&'"%{x}"""
WRITER = """
import sys, time
from spherometer.records import Event, RunWriter
with RunWriter(sys.argv[1], title="a run that goes on") as run:
    for step in range(10_000):
        values = {"training_loss": 2 / (1 + step), "sharpness": min(20.0, 5 + step), "gradient_descent_threshold": 20.0}
        events = [Event(step, "edge of stability", "the stability ratio reached 1")] if step == 15 else []
        run.write(step, values, events=events)
        time.sleep(0.1)
"""


@pytest.fixture
def page(tmp_path: Path) -> Iterator[tuple[LiveServer, Browser]]:
    with LiveServer(Runs(tmp_path), port=0) as server, Browser() as browser:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server, browser
        assert browser.complaints == []
        assert {
            url for url in browser.requests if not url.startswith((server.address, "data:", "blob:", "about:"))
        } == set()
        server.shutdown()


def write_run(folder: Path, *, num_steps: int = 30, name: str = "input_jacobian_norm", title: str = "") -> None:
    with RunWriter(folder, title=title) as run:
        for step in range(num_steps):
            values = {"training_loss": 1 / (1 + step), "sharpness": 5.0 + step, "impurity": 0.5, name: 2.0 + step}
            values |= {"gradient_descent_threshold": 20.0, "stability_ratio": 0.1 * step, "tracking_overhead": 0.1}
            run.write(step, values, arrays={"spectrum": np.arange(5.0) * step} if step % 10 == 0 else None)


def points_of(browser: Browser, panel: str) -> int:
    return browser.evaluate(f"Number(document.querySelector('[data-panel={panel}]').dataset.points || 0)")


def drawn(panel: str) -> str:
    """Lines and marks that plotly has really drawn."""
    return f"document.querySelectorAll('[data-panel={panel}] .scatterlayer .trace path').length"


def shown_runs(browser: Browser) -> list[str]:
    return browser.evaluate(
        "[...document.querySelectorAll('#runs li:not([hidden]) .name')].map((name) => name.textContent)"
    )


def click(browser: Browser, label: str) -> None:
    entries = "[...document.querySelectorAll('#runs label')]"
    wanted = f"(entry) => entry.querySelector('.name').textContent === {json.dumps(label)}"
    browser.evaluate(f"{entries}.find({wanted}).click()")


def test_a_finished_run_is_drawn_in_every_panel(page, tmp_path: Path):
    server, browser = page
    write_run(tmp_path / "done")
    browser.open(server.address)
    browser.wait_for("document.documentElement.dataset.rows > 0")
    for panel in ("loss", "sharpness", "ratio", "jacobian", "impurity", "spectrum", "overhead"):
        browser.wait_for(f"{drawn(panel)} > 0")
    assert points_of(browser, "loss") == 30
    assert points_of(browser, "sharpness") == 60  # and its threshold
    assert points_of(browser, "spectrum") == 15  # three snapshots of five values
    assert browser.evaluate("document.querySelector('.card dd').textContent") == "0.03333"
    assert browser.evaluate("document.getElementById('others').hidden")


def test_a_logarithmic_axis_leaves_out_what_it_cannot_show(page, tmp_path: Path):
    server, browser = page
    with RunWriter(tmp_path / "run") as run:
        for step, value in enumerate([1.0, 0.0, -1.0, 0.1, float("nan"), 0.01]):
            run.write(step, {"training_loss": value})
    browser.open(server.address)
    browser.wait_for(f"{drawn('loss')} > 0")
    values = "JSON.stringify(document.querySelector('[data-panel=loss] .plot').data[0].y)"
    assert json.loads(browser.evaluate(values)) == [1, None, None, 0.1, None, 0.01]
    browser.evaluate("document.querySelector('[data-panel=loss] button').click()")
    assert json.loads(browser.evaluate(values)) == [1, 0, -1, 0.1, None, 0.01]


def test_a_page_of_no_runs_waits_for_the_first(page, tmp_path: Path):
    server, browser = page
    browser.open(server.address)
    browser.wait_for("document.getElementById('waiting').textContent.includes('waiting for the first')")
    write_run(tmp_path / "late")
    browser.wait_for(f"{drawn('loss')} > 0")
    assert browser.evaluate("document.getElementById('waiting').hidden")


def test_a_run_is_followed_until_it_is_killed(page, tmp_path: Path):
    server, browser = page
    write_run(tmp_path / "old")
    with subprocess.Popen([sys.executable, "-c", WRITER, tmp_path / "going"]) as writer:
        browser.open(server.address)
        browser.wait_for("document.documentElement.dataset.rows > 0")
        assert browser.evaluate("document.querySelector('.card .name').textContent") == "going"
        first = points_of(browser, "loss")
        browser.wait_for(f"Number(document.querySelector('[data-panel=loss]').dataset.points) > {first + 10}")
        event = browser.wait_for("document.querySelector('#events li')?.textContent")
        assert event == "step 15edge of stability: the stability ratio reached 1"
        browser.wait_for("document.querySelector('[data-panel=sharpness] .shapelayer path') !== null")
        assert browser.evaluate("document.querySelector('.card .state').dataset.state") == "running"
        os.kill(writer.pid, signal.SIGKILL)
    browser.wait_for("document.querySelector('.card .state').dataset.state === 'killed'")
    assert points_of(browser, "loss") > first + 10


def test_runs_are_filtered_and_chosen(page, tmp_path: Path):
    server, browser = page
    for number in range(40):
        write_run(tmp_path / f"lr{0.05 * (1 + number % 4):g}" / f"seed{number}", num_steps=3)
    browser.open(server.address)
    browser.wait_for("document.documentElement.dataset.rows > 0")
    assert len(shown_runs(browser)) == 40
    assert shown_runs(browser)[:3] == ["lr0.05/seed0", "lr0.05/seed4", "lr0.05/seed8"]
    browser.evaluate("(() => { const box = document.getElementById('filter'); box.value = 'LR0.1/ done';"
                     " box.dispatchEvent(new Event('input')); })()")  # fmt: skip
    assert shown_runs(browser) == [f"lr0.1/seed{number}" for number in range(1, 40, 4)]
    assert browser.evaluate("document.getElementById('tally').textContent") == "(10 of 40)"
    browser.evaluate("document.getElementById('choose').click()")
    browser.wait_for(
        "document.documentElement.dataset.chosen === '10' && document.documentElement.dataset.rows === '210'"
    )
    assert points_of(browser, "loss") == 30
    click(browser, "lr0.1/seed1")
    browser.wait_for("document.documentElement.dataset.chosen === '9'")
    address = browser.evaluate("location.href")  # which remembers what was chosen
    browser.open("about:blank")
    browser.open(address)
    browser.wait_for("document.documentElement.dataset.chosen === '9'")
    browser.evaluate("document.getElementById('choose').click()")
    browser.wait_for("!document.getElementById('notice').hidden && document.documentElement.dataset.chosen === '24'")


def test_hostile_names_are_shown_as_they_are(page, tmp_path: Path):
    server, browser = page
    name = HOSTILE.replace("/", "\N{DIVISION SLASH}")
    write_run(tmp_path / name, name=HOSTILE, title=HOSTILE)
    with RunWriter(tmp_path / name, resume=True) as run:
        run.write(30, {HOSTILE + "loss": 1.0, HOSTILE + "_loss": 1.0}, events=[Event(30, HOSTILE, HOSTILE)],
                  arrays={HOSTILE: np.arange(3)})  # fmt: skip
    write_run(tmp_path / "b")
    browser.open(server.address)
    browser.wait_for("document.documentElement.dataset.rows > 0")
    click(browser, name)
    browser.wait_for("document.documentElement.dataset.chosen === '2' && document.querySelector('#events li') !== null")
    browser.evaluate("document.getElementById('others').open = true")
    browser.wait_for("document.querySelector('#other-panels .scatterlayer .trace path') !== null")
    assert name in browser.evaluate("[...document.querySelectorAll('.card .name')].map((card) => card.textContent)")
    assert HOSTILE in browser.evaluate("document.querySelector('#events li').textContent")
    assert (
        browser.evaluate(
            "document.querySelectorAll('img, iframe, script:not(body > script), #panels b, main a').length"
        )
        == 0
    )
    labels = browser.evaluate(
        "[...document.querySelectorAll('.shapelayer text, .shape-group text')].map((text) => text.textContent)"
    )
    assert HOSTILE[:40] in labels
    plot = "document.querySelector('#other-panels .panel:not([hidden]) .plot')"
    browser.evaluate(f"Plotly.Fx.hover({plot}, [{{curveNumber: 0, pointNumber: 0}}]); 1")
    text = browser.wait_for("document.querySelector('#other-panels .hoverlayer .hovertext')?.textContent")
    assert HOSTILE in text


def test_a_rewound_run_forgets_what_came_after(page, tmp_path: Path):
    server, browser = page
    write_run(tmp_path / "run")
    browser.open(server.address)
    browser.wait_for(f"{drawn('loss')} > 0")
    with RunWriter(tmp_path / "run", resume=True) as run:
        run.rewind(9)
        run.write(10, {"training_loss": 3.0})
        browser.wait_for("document.querySelector('[data-panel=loss]').dataset.points === '11'")
    browser.wait_for("document.querySelector('.card .state').dataset.state === 'done'")
    assert points_of(browser, "spectrum") == 5


def test_light_dark_and_a_telephone(page, tmp_path: Path):
    server, browser = page
    write_run(tmp_path / "run")
    colours = []
    for width, dark in ((1400, False), (1400, True), (360, False)):
        browser.look(width, dark=dark)
        browser.open(server.address)
        browser.wait_for(f"document.documentElement.dataset.rows > 0 && {drawn('loss')} > 0")
        colours.append(
            browser.evaluate("getComputedStyle(document.querySelector('[data-panel=loss] .trace path.js-line')).stroke")
        )
        assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert colours[0] == colours[2] != colours[1]


def test_the_browser_hears_complaints(tmp_path: Path):
    with LiveServer(Runs(tmp_path), port=0) as server, Browser() as browser:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        browser.open(server.address)
        browser.evaluate("console.error('a'); setTimeout(() => { throw new Error('b'); }); fetch('nothing'); 1")
        browser.evaluate("(() => { const made = document.createElement('script'); made.textContent = 'window.bad = 1';"
                         " document.body.append(made); })()")  # fmt: skip
        browser.wait_for("new Promise((done) => setTimeout(() => done(true), 500))")
        heard = " ".join(browser.complaints)
        for word in ('"a"', "Error: b", "404", "Content Security Policy"):
            assert word in heard, heard
        assert browser.evaluate("window.bad === undefined")
        server.shutdown()


def test_a_page_without_its_server_says_so(tmp_path: Path):
    write_run(tmp_path / "run")
    command = [sys.executable, "-m", "spherometer", "watch", str(tmp_path), "--port", "0", "--json"]
    with Browser() as browser, subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        browser.open(json.loads(process.stdout.readline())["address"])
        browser.wait_for(f"{drawn('loss')} > 0")
        process.send_signal(signal.SIGINT)
        browser.wait_for("document.getElementById('pulse').textContent.includes('has gone')")
        assert browser.evaluate(f"{drawn('loss')} > 0")
