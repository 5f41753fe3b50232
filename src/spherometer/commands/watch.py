"""`spherometer watch`: the live page of the runs in a folder, until Ctrl-C."""

from __future__ import annotations

import json
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import tyro

from spherometer.commands.kinds import Folder, PortOrFree

if TYPE_CHECKING:
    from spherometer.report.live import LiveServer


@dataclass(frozen=True)
class Watch:
    """Serve a page that follows every run in a folder and below it: loss, sharpness against its thresholds, Jacobian
    norms, impurity, spectra, events, overhead. It only reads, needs no internet, and ends with Ctrl-C.
    """

    folder: Annotated[Folder, tyro.conf.Positional, tyro.conf.arg(name="DIR")]
    """folder of runs, or of one run; it may still be empty"""
    port: PortOrFree = None
    """where to listen; 0 is any free one"""
    host: str = "127.0.0.1"
    """address to listen at; others than this machine's own let other people read the runs"""
    attached: bool = False
    """end when standard input ends, for programs that start the page"""
    json: bool = False
    """print the address as a line of JSON"""

    def run(self) -> int:
        """Serve until interrupted."""
        from spherometer.report.live import LiveServer, Runs

        with suppress(KeyboardInterrupt), LiveServer(Runs(self.folder), host=self.host, port=self.port) as server:
            self._tell(server)
            if self.attached:
                threading.Thread(target=_end_with_input, args=(server,), daemon=True).start()
            server.serve_forever()
        return 0

    def _tell(self, server: LiveServer) -> None:
        num = len(server.runs.overview())
        if self.json:
            words = json.dumps({"address": server.address, "folder": str(self.folder), "runs": num})
        else:
            there = f"{num} run{'s' * (num != 1)}" if num else "no run yet, waiting for the first"
            words = f"{server.address} shows {self.folder} ({there}); Ctrl-C ends it"
        sys.stdout.write(f"{words}\n")
        sys.stdout.flush()


def _end_with_input(server: LiveServer) -> None:
    sys.stdin.read()
    server.shutdown()
