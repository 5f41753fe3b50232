"""Programs in processes of their own that tell their peak memory, as the operating system saw it."""

import subprocess
import sys
from pathlib import Path

import pytest

STATUS = Path("/proc/self/status")
PEAK = f"""
from pathlib import Path

def peak():
    return 1024 * int(Path("{STATUS}").read_text().split("VmHWM:")[1].split()[0])
"""

needs_peaks = pytest.mark.skipif(not STATUS.exists(), reason="the peak of a process is read from /proc")


def printed_by(program: str) -> list[int]:
    """The whole numbers that a program prints; it has `peak()`, the most bytes its process has held so far.

    Not `ru_maxrss`, which begins with the peak of the process that started it.
    """
    answer = subprocess.run([sys.executable, "-c", PEAK + program], capture_output=True, text=True, check=True)
    return [int(word) for word in answer.stdout.split()]
