"""The page's server: GET only, for this machine only unless told otherwise."""

from __future__ import annotations

import errno
import ipaddress
import json
import socket
import sys
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from spherometer.records import RecordError
from spherometer.records.reader import COLUMNS
from spherometer.report.live.document import document
from spherometer.report.live.runs import Runs

PORT = 8765  # where the page is if nobody says otherwise and the place is free
LOCAL = ("127.0.0.1", "localhost", "::1")


class LiveServer(ThreadingHTTPServer):
    """Serves the live page of some runs until it is shut down.

    Requests must name a host this page was opened for: a foreign web page that points its own name at 127.0.0.1 (DNS
    rebinding) is refused. Where the page listens to the whole network, any address is fine, and this machine's name.

    Args:
        port: to listen at; None for the usual one, or any free one if that is taken.

    Example:
        >>> with LiveServer(Runs("runs")) as server:
        ...     server.serve_forever()
    """

    daemon_threads = True

    def __init__(self, runs: Runs, *, host: str = "127.0.0.1", port: int | None = None) -> None:
        self.runs, self.host, self.document = runs, host, document()
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, PORT if port is None else port), Handler)
        except OSError as error:
            if port is not None or error.errno != errno.EADDRINUSE:
                raise OSError(_unusable(host, PORT if port is None else port, error)) from None
            super().__init__((host, 0), Handler)

    @property
    def address(self) -> str:
        """Where a browser finds the page."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"http://{f'[{host}]' if ':' in host else host}:{self.server_address[1]}/"

    def knows(self, host: str | None) -> bool:
        """Whether a request for this host is meant for this page."""
        try:
            parts = urlsplit(f"//{host or ''}")
            name, port = parts.hostname or "", parts.port
        except ValueError:
            return False
        if port != self.server_address[1] or parts.username is not None or parts.path:
            return False
        if name == self.host.lower() or (self.host in LOCAL and name in LOCAL):
            return True
        return self.host in ("0.0.0.0", "::") and (name in (*LOCAL, socket.gethostname().lower()) or _is_address(name))

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that leaves in the middle of an answer is nothing to tell."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """The page at /, and beneath it what it asks for as JSON."""

    server: LiveServer
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "Spherometer", ""
    timeout = 60

    def do_GET(self) -> None:
        """Answer one request."""
        if not self.server.knows(self.headers.get("Host")):
            return self._reply(HTTPStatus.FORBIDDEN, f"this page is at {self.server.address}\n")
        where = urlsplit(self.path)
        if where.path == "/":
            return self._reply(HTTPStatus.OK, self.server.document.html, "text/html")
        answer = ANSWERS.get(where.path)
        if answer is None:
            return self._reply(HTTPStatus.NOT_FOUND, "there is no such page\n")
        try:
            query = {
                name: values[-1]
                for name, values in parse_qs(where.query, keep_blank_values=True, errors="strict").items()
            }
            content = answer(self.server.runs, query)
        except KeyError:
            return self._reply(HTTPStatus.NOT_FOUND, "there is no such run, or no such array in it\n")
        except ValueError:
            return self._reply(HTTPStatus.BAD_REQUEST, "expected whole numbers and plain text\n")
        except RecordError as error:
            content = {"trouble": str(error)}
        return self._reply(HTTPStatus.OK, json.dumps(content, allow_nan=False), "application/json")

    def __getattr__(self, name: str) -> Callable[[], None]:
        """Every method but GET is refused in one place."""
        if not name.startswith("do_"):
            raise AttributeError(name)
        return self._refuse

    def _refuse(self) -> None:
        self.close_connection = True
        self._reply(HTTPStatus.METHOD_NOT_ALLOWED, "this page can only be read\n", headers={"Allow": "GET"})

    def _reply(
        self, status: HTTPStatus, content: str | bytes, kind: str = "text/plain", headers: dict[str, str] | None = None
    ) -> None:
        body = content if isinstance(content, bytes) else content.encode()
        told = {
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Length": str(len(body)),
            "Content-Security-Policy": self.server.document.policy,
            "Cross-Origin-Resource-Policy": "same-origin",
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cache-Control": "no-store",
        }
        self.send_response(status)
        for name, value in (told | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the name that http.server asks for
        """Nothing: a page that is looked at is no news."""


Query = dict[str, str]
ANSWERS: dict[str, Callable[[Runs, Query], Any]] = {
    "/runs": lambda runs, _: {"folder": str(runs.folder), "runs": runs.overview()},
    "/news": lambda runs, query: runs.news(query["key"], {table: _whole(query.get(table, "0")) for table in COLUMNS}),
    "/array": lambda runs, query: runs.snapshot(query["key"], _whole(query["step"]), query["name"]),
}


def _whole(text: str) -> int:
    number = int(text)
    if not -(2**63) <= number < 2**63:
        raise ValueError(text)
    return number


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _unusable(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} of {host} is taken: choose another --port, or none for any free one"
    return f"cannot listen at {host}, port {port}: {error.strerror or error}: choose another --host or --port"
