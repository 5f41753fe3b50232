"""The live page of a run, in a process of its own: training shares neither its time nor its fate."""

from __future__ import annotations

import json
import subprocess
import sys
import weakref
from pathlib import Path

PATIENCE = 5.0  # seconds for the page to end by itself


class LivePage:
    """`spherometer watch` on a folder, for as long as this object or this process lives, however that ends."""

    def __init__(self, folder: Path) -> None:
        words = [sys.executable, "-m", "spherometer", "watch", str(folder.resolve()), "--attached", "--json"]
        self._process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,  # its end is the sign to go; the system closes it even for a killed process
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the training
        )
        weakref.finalize(self, _end, self._process)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            reason = self._process.communicate()[1].decode(errors="replace").strip()
            raise RuntimeError(f"the live page could not be started: {reason}")
        self.address = str(json.loads(line)["address"])


def _end(process: subprocess.Popen[bytes]) -> None:
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()
    try:
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
