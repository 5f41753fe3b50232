"""The live page over HTTP: what it tells, what it refuses, and that nothing of a run is ever more than text."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import numpy as np
import pytest

from spherometer.records import Event, RecordError, RunReader, RunWriter
from spherometer.records.schema import DATABASE
from spherometer.report.live import LiveServer, Runs
from spherometer.report.live import runs as runs_module
from spherometer.report.live.document import SCRIPTS, document
from spherometer.report.live.runs import MOST_VALUES, thinned

HOSTILE = """<script>alert(1)</script><img src=x onerror=alert(2)>&'"%{x}"""
NOTHING = {"rows": 0, "events": 0, "arrays": 0}


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every question looks at the folder again."""
    monkeypatch.setattr(runs_module, "PATIENCE", 0)
    monkeypatch.setattr(runs_module, "CALM", 0)


class Client:
    """Asks a server that runs in a thread."""

    def __init__(self, server: LiveServer) -> None:
        self.server, self.port = server, server.server_address[1]

    def request(self, path: str, method: str = "GET", **headers: str) -> tuple[int, bytes, http.client.HTTPMessage]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request(method, path, headers=headers)
            reply = connection.getresponse()
            return reply.status, reply.read(), reply.headers
        finally:
            connection.close()

    def json(self, path: str, **query: object) -> Any:
        status, body, headers = self.request(f"{path}?{urlencode(query)}" if query else path)
        assert status == 200, (status, body)
        assert headers["Content-Type"] == "application/json; charset=utf-8"
        return json.loads(body)

    def only_run(self) -> dict[str, Any]:
        (told,) = self.json("/runs")["runs"]
        return told


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    with LiveServer(Runs(tmp_path), port=0) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield Client(server)
        server.shutdown()


def test_a_run_is_followed_row_by_row(client: Client, tmp_path: Path):
    assert client.json("/runs") == {"folder": str(tmp_path), "runs": []}
    with RunWriter(tmp_path / "a" / "b", title="digits") as run:
        told = client.only_run()
        assert (told["label"], told["title"], told["state"], told["step"]) == ("a/b", "digits", "running", None)
        run.write(10, {"loss": 0.5, "sharpness": float("inf")}, events=[Event(10, "edge of stability", "reached")])
        first = client.json("/news", key=told["key"])
        assert first["rows"] == [[10, "loss", "", 0.5, None, ""], [10, "sharpness", "", None, None, "inf"]]
        assert first["events"] == [[10, "edge of stability", "reached"]]
        assert first["held"] == {"rows": 2, "events": 1, "arrays": 0}
        assert client.only_run()["step"] == 10
        assert client.only_run()["stamp"] != told["stamp"]
        run.write(20, {"loss": 0.4})
        run.write(10, {"loss": 0.6})
        second = client.json("/news", key=told["key"], **first["last"])
        assert [row[:4] for row in second["rows"]] == [[20, "loss", "", 0.4], [10, "loss", "", 0.6]]
        assert (second["events"], second["more"], second["held"]["rows"]) == ([], False, 3)
    assert client.only_run()["state"] == "done"
    last = client.json("/news", key=told["key"], **second["last"])
    assert last["rows"] == []


def test_an_unchanged_run_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with RunWriter(tmp_path / "run") as run:
        run.write(1, {"loss": 1.0})
    runs = Runs(tmp_path)
    before = runs.overview()
    monkeypatch.setattr(RunReader, "_read", lambda *_: pytest.fail("read again"))
    assert runs.overview() == before


def test_a_long_run_comes_in_pieces(client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(runs_module, "MOST", 7)
    with RunWriter(tmp_path / "run") as run:
        for step in range(20):
            run.write(step, {"loss": float(step)})
    key, last, steps, pieces = client.only_run()["key"], NOTHING, [], 0
    while True:
        news = client.json("/news", key=key, **last)
        steps, last, pieces = steps + [row[0] for row in news["rows"]], news["last"], pieces + 1
        if not news["more"]:
            break
    assert steps == list(range(20))
    assert pieces == 3


def test_a_rewound_run_is_noticed_by_its_count(client: Client, tmp_path: Path):
    with RunWriter(tmp_path / "run") as run:
        for step in range(10):
            run.write(step, {"loss": 1.0})
        key = client.only_run()["key"]
        news = client.json("/news", key=key)
        run.rewind(4)
        run.write(5, {"loss": 2.0})
        again = client.json("/news", key=key, **news["last"])
    assert len(again["rows"]) == 1
    assert again["held"]["rows"] == 6 < news["held"]["rows"]


def test_states_of_runs_that_ended_badly(client: Client, tmp_path: Path):
    with pytest.raises(ZeroDivisionError), RunWriter(tmp_path / "failed"):
        raise ZeroDivisionError("one over none")
    code = (
        "import sys, time; from spherometer.records import RunWriter; run = RunWriter(sys.argv[1]); "
        "run.write(1, {'loss': 1.0}); print('ready', flush=True); time.sleep(100)"
    )
    with subprocess.Popen([sys.executable, "-c", code, tmp_path / "killed"], stdout=subprocess.PIPE) as writer:
        writer.stdout.readline()
        running = {told["label"]: told["state"] for told in client.json("/runs")["runs"]}
        os.kill(writer.pid, signal.SIGKILL)
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / DATABASE).write_bytes(b"no database at all" * 100)
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / DATABASE).write_bytes(b"")
    told = {run["label"]: run for run in client.json("/runs")["runs"]}
    assert running["killed"] == "running"
    assert {label: run["state"] for label, run in told.items()} == {
        "damaged": "unreadable",
        "failed": "failed",
        "killed": "killed",
    }
    assert told["failed"]["message"] == "ZeroDivisionError: one over none"
    assert "found another kind of file" in told["damaged"]["message"]
    assert client.json("/news", key=told["killed"]["key"])["rows"][0][:4] == [1, "loss", "", 1.0]
    assert "found another kind of file" in client.json("/news", key=told["damaged"]["key"])["trouble"]


def test_hundreds_of_runs_are_listed_without_reading_them_again(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with RunWriter(tmp_path / "run-000") as run:
        run.write(1, {"loss": 1.0})
    content = (tmp_path / "run-000" / DATABASE).read_bytes()
    for number in range(1, 300):
        folder = tmp_path / f"run-{number:03d}"
        folder.mkdir()
        (folder / DATABASE).write_bytes(content)
    told = client.json("/runs")["runs"]
    assert len({run["key"] for run in told}) == 300
    opened = []
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *address, **how: opened.append(address) or connect(*address, **how))
    assert client.json("/runs")["runs"] == told
    assert not opened
    with RunWriter(tmp_path / "run-007", resume=True) as run:
        run.write(2, {"loss": 0.5})
    opened.clear()
    changed = [run["label"] for run, before in zip(client.json("/runs")["runs"], told, strict=True) if run != before]
    assert changed == ["run-007"]
    assert 0 < len(opened) < 20


def test_snapshots_of_spectra(client: Client, tmp_path: Path):
    with RunWriter(tmp_path / "run") as run:
        values = {"spectrum": np.array([3.0, np.nan, 1.0]), "matrix": np.eye(2), "a/../b&c": np.arange(2)}
        run.write(5, arrays=values)
    key = client.only_run()["key"]
    assert sorted(client.json("/news", key=key)["arrays"]) == sorted([5, name] for name in values)
    assert client.json("/array", key=key, step=5, name="spectrum") == {"shape": [3], "values": [1.0, 3.0]}
    assert client.json("/array", key=key, step=5, name="matrix") == {"shape": [2, 2], "values": None}
    assert client.json("/array", key=key, step=5, name="a/../b&c")["values"] == [0.0, 1.0]
    assert client.request(f"/array?key={key}&step=6&name=spectrum")[0] == 404


def test_long_vectors_keep_their_ends():
    values = np.random.default_rng(0).permutation(10_000).astype(float)
    kept = thinned(values)
    assert len(kept) == MOST_VALUES == len(set(kept))
    assert kept == sorted(kept)
    assert kept[:50] == list(range(50))
    assert kept[-50:] == list(range(9950, 10_000))
    assert max(np.diff(kept)) <= 100


def test_an_array_that_points_outside_its_run_is_refused(client: Client, tmp_path: Path):
    import sqlite3

    from spherometer.records import write_tensors

    write_tensors(tmp_path / "secret.safetensors", {"content": np.arange(3.0)})
    with RunWriter(tmp_path / "run") as run:
        run.write(1, arrays={"spectrum": np.arange(2)})
    with sqlite3.connect(tmp_path / "run" / DATABASE) as connection:
        connection.execute("UPDATE arrays SET content = NULL, file = '../secret.safetensors'")
    connection.close()
    told = client.json("/array", key=client.only_run()["key"], step=1, name="spectrum")
    assert "points outside its run" in told["trouble"]


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "127.0.0.1.evil.example:{port}", "", "@:{port}",
     "user@127.0.0.1:{port}", "127.0.0.1:{port}/x", "[", "0.0.0.0:{port}", "192.168.0.1:{port}"],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/", "/runs"])
def test_other_hosts_are_refused(client: Client, host: str, path: str):
    status, body, _ = client.request(path, Host=host.format(port=client.port))
    assert status == 403
    assert body == f"this page is at {client.server.address}\n".encode()


@pytest.mark.parametrize("host", ["127.0.0.1:{port}", "localhost:{port}", "LOCALHOST:{port}", "[::1]:{port}"])
def test_this_machine_is_welcome(client: Client, host: str):
    assert client.request("/runs", Host=host.format(port=client.port))[0] == 200


def test_a_page_for_the_network_knows_addresses_and_its_own_name(tmp_path: Path):
    with LiveServer(Runs(tmp_path), host="0.0.0.0", port=0) as server:
        port = server.server_address[1]
        for host in ("10.0.0.7", "[fe80::1]", "localhost", socket.gethostname()):
            assert server.knows(f"{host}:{port}")
        for host in ("evil.example", "10.0.0.7.evil.example"):
            assert not server.knows(f"{host}:{port}")
        assert server.address == f"http://127.0.0.1:{port}/"


def test_a_request_without_a_host_is_refused(client: Client):
    with socket.create_connection(("127.0.0.1", client.port), timeout=20) as connection:
        connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert connection.makefile("rb").readline().startswith(b"HTTP/1.1 403 ")


@pytest.mark.parametrize("method", "HEAD POST PUT DELETE PATCH OPTIONS TRACE CONNECT BREW".split())
def test_the_page_can_only_be_read(client: Client, method: str):
    status, body, headers = client.request("/runs", method)
    assert (status, headers["Allow"]) == (405, "GET")
    assert body == (b"" if method == "HEAD" else b"this page can only be read\n")


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/../../etc/passwd", 404),
        ("/%2e%2e/%2e%2e/etc/passwd", 404),
        ("//etc/passwd", 404),
        ("/runs/", 404),
        ("/run/run.db", 404),
        ("/news", 404),
        ("/news?key=..", 404),
        ("/news?key=../secret", 404),
        ("/news?key=run", 404),
        ("/news?key={key}&rows=x", 400),
        ("/news?key={key}&rows=9999999999999999999999", 400),
        ("/news?key=%ff", 400),
        ("/array?key={key}", 404),
        ("/array?key={key}&step=1&name=../../secret", 404),
        ("/array?key={key}&step=one&name=x", 400),
    ],
)
def test_only_what_was_offered_can_be_asked_for(client: Client, tmp_path: Path, path: str, status: int):
    RunWriter(tmp_path / "run").close()
    key = client.only_run()["key"]
    assert client.request(path.format(key=key))[0] == status


def test_what_runs_are_called_is_only_ever_text(client: Client, tmp_path: Path):
    name = HOSTILE.replace("/", "\N{DIVISION SLASH}")
    with RunWriter(tmp_path / name, title=HOSTILE) as run:
        run.write(1, {HOSTILE: 1.0}, arrays={HOSTILE: np.arange(2)}, events=[Event(1, HOSTILE, HOSTILE)])
    before = client.request("/")[1]
    told = client.only_run()
    assert (told["label"], told["title"]) == (name, HOSTILE)
    news = client.json("/news", key=told["key"])
    assert news["rows"][0][1] == news["events"][0][1] == news["arrays"][0][1] == HOSTILE
    assert client.json("/array", key=told["key"], step=1, name=HOSTILE)["values"] == [0.0, 1.0]
    assert client.request(f"/array?key={quote(HOSTILE)}&step=1&name=x")[0] == 404
    assert client.request("/")[1] == before  # the document holds no word of any run
    for path in ("/", "/runs"):
        headers = client.request(path)[2]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert "default-src 'none'; script-src 'sha256-" in headers["Content-Security-Policy"]
        assert "Access-Control-Allow-Origin" not in headers


def test_a_name_that_is_no_text_at_all(client: Client, tmp_path: Path):
    RunWriter(tmp_path / os.fsdecode(b"bad\xff")).close()
    assert client.only_run()["label"] == "bad\udcff"


def test_the_document_needs_nothing_from_anywhere():
    html = document().html.decode()
    folder = Path(runs_module.__file__).parent
    own = "".join((folder / name).read_text() for name in SCRIPTS)
    assert html.count("plotly.js v") == 1
    assert "http:" not in own
    assert "https:" not in own
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", own)
    outside = html.partition("<script>")[0] + html.rpartition("</script>")[2]
    assert not re.search(r"\b(src|href)=(?!\"data:,)", outside)


def test_colours_of_the_scripts_are_known_to_the_style_sheet_in_light_and_dark():
    html = document().html.decode()
    own = html.rpartition("<script>")[2]
    used = set(re.findall(r'"(--[a-z-]+)"', own)) | {f"--run-{number}" for number in range(10)}
    style = html[: html.index("</style>")]
    blocks = re.findall(r"(@media \(prefers-color-scheme: dark\) \{\s*)?:root \{([^}]*)\}", style)
    for is_dark in (False, True):
        known = {
            name for dark, block in blocks if bool(dark) == is_dark for name in re.findall(r"(--[a-z0-9-]+):", block)
        }
        assert used <= known, used - known


def test_a_taken_port_is_told_and_the_usual_one_gives_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with LiveServer(Runs(tmp_path), port=0) as first:
        taken = first.server_address[1]
        with pytest.raises(OSError, match=f"port {taken} of 127.0.0.1 is taken: choose another --port"):
            LiveServer(Runs(tmp_path), port=taken)
        monkeypatch.setattr("spherometer.report.live.server.PORT", taken)
        with LiveServer(Runs(tmp_path)) as second:
            assert second.server_address[1] not in (0, taken)


def test_no_folder_no_page(tmp_path: Path):
    with pytest.raises(RecordError, match="expected a folder with runs, found none"):
        Runs(tmp_path / "none")


def test_a_browser_that_leaves_early_is_no_news(client: Client, capfd: pytest.CaptureFixture[str]):
    with socket.create_connection(("127.0.0.1", client.port)) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        connection.sendall(f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{client.port}\r\n\r\n".encode())
        connection.recv(100)
    time.sleep(0.3)
    assert client.request("/runs")[0] == 200
    assert capfd.readouterr().err == ""


def watching(folder: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "spherometer", "watch", str(folder), *words]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_the_command_tells_its_address_and_ends_with_control_c(tmp_path: Path):
    with watching(tmp_path, "--port", "0") as process:
        line = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        rest, complaints = process.communicate(timeout=30)
    assert re.fullmatch(
        rf"http://127\.0\.0\.1:\d+/ shows {tmp_path} \(no run yet, waiting for the first\); Ctrl-C ends it\n", line
    )
    assert (process.returncode, rest, complaints) == (0, "", "")


def test_the_attached_command_ends_with_its_input(tmp_path: Path):
    RunWriter(tmp_path / "run").close()
    with watching(tmp_path, "--attached", "--json", "--port", "0") as process:
        told = json.loads(process.stdout.readline())
        rest, complaints = process.communicate(timeout=30)
    assert (told["folder"], told["runs"]) == (str(tmp_path), 1)
    assert (process.returncode, rest, complaints) == (0, "", "")


def test_the_command_refuses_in_one_line(tmp_path: Path):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = str(holder.getsockname()[1])
        for words, expected in (
            (("--port", port), f"port {port} of 127.0.0.1 is taken"),
            (("--port", "x"), "expected a port"),
        ):
            with watching(tmp_path, *words) as process:
                out, complaints = process.communicate(timeout=30)
            assert (process.returncode, out, complaints.count("\n")) == (2, "", 1)
            assert complaints.startswith("spherometer: error: ")
            assert expected in complaints
