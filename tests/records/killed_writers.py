"""A script without torch: writers are killed at random moments, and what they had been told was written is looked for.

Prints one JSON object: kills, rows acknowledged, rows lost, and the states seen.
"""

import json
import os
import random
import signal
import sqlite3
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np

from spherometer.records import Event, RunReader, RunWriter
from spherometer.records.schema import DATABASE


def write_forever(folder: Path, first: int, pipe: int) -> None:
    with RunWriter(folder, settings={"lr": 0.1}, resume=True) as run:
        os.write(pipe, b"open\n")
        for step in range(first, 10**9):
            large = {"large": np.full(150_000, step, dtype=float)} if step % 7 == 0 else {}
            run.write(
                step,
                {"square": step**2, "half": step / 2},
                arrays={"small": np.full(5, step)} | large,
                events=[Event(step, "tick", "a step", {"step": step})],
            )
            os.write(pipe, f"{step}\n".encode())


def killed_after(num_words: int, delay: float, folder: Path, first: int) -> list[int]:
    """Start a writer, kill it some time after so many words from it, and return the steps it knows to be on disk."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        write_forever(folder, first, writing)
    os.close(writing)
    with os.fdopen(reading) as stream:
        heard = [stream.readline() for _ in range(num_words)]
        time.sleep(delay)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        heard += stream.readlines()
    return [int(word) for word in heard if word.strip().isdigit()]


def lost_of(reader: RunReader, acknowledged: list[int]) -> int:
    """How many acknowledged steps are not all there."""
    rows = {(row[1], row[2]): row[4] for row in reader.rows()}
    ticks = {event["details"]["step"] for event in reader.events()}
    arrays = {(step, name) for _, step, name in reader.arrays()}
    lost = 0
    for step in acknowledged:
        whole = rows.get((step, "square")) == step**2 and rows.get((step, "half")) == step / 2 and step in ticks
        wanted = {"small"} | ({"large"} if step % 7 == 0 else set())
        lost += not (whole and {(step, name) for name in wanted} <= arrays)
        lost += any((reader.array(step, name) != step).any() for name in wanted if (step, name) in arrays)
    return lost


def main(root: Path, num_kills: int) -> None:
    chance = random.Random(0)
    folder, acknowledged, lost, states = root / "run", [], 0, Counter()
    for number in range(num_kills):
        first = acknowledged[-1] + 1 if acknowledged else 0
        words = chance.randrange(10) if number % 5 else 0  # every fifth is killed while it opens the folder
        acknowledged += killed_after(words, 0.03 * chance.random() ** 2, folder, first)
        reader = RunReader(folder)
        if not reader.exists:
            continue
        lost += lost_of(reader, acknowledged[-200:])
        states[reader.state] += 1
        with sqlite3.connect(folder / DATABASE) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    lost += lost_of(RunReader(folder), acknowledged)
    found = {"kills": num_kills, "acknowledged": len(acknowledged), "lost": lost, "states": states}
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
