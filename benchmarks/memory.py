"""Whether a stated limit is kept: the top eigenvalue under ever less memory, each in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import torch

import spherometer as sm
from benchmarks.contest import Row, console
from benchmarks.networks import setting

LIMITS = {"3FCN": (1e9, 5e7, 1e7), "6CNN": (4e9, 1e9, 2.5e8)}  # bytes; the first holds every graph of the network


def rows(*, quick: bool) -> list[Row]:
    """Peak memory above what the process has before the measurement, and the time that recomputing costs."""
    name = "3FCN" if quick else "6CNN"
    found = [_in_own_process(name, limit) for limit in LIMITS[name]]
    return [
        Row(
            f"top eigenvalue, memory={limit:.3g} B", name, "spherometer", str(one["products"]), one["seconds"],
            one["seconds"] / found[0]["seconds"], "", f"peak {one['peak'] / 1e9:.2f} GB",
        )
        for limit, one in zip(LIMITS[name], found, strict=True)
    ]  # fmt: skip


def _in_own_process(name: str, limit: float) -> dict[str, float]:
    console.print(f"  memory, {name}: {limit:.3g} bytes", style="dim")
    command = [sys.executable, "-m", "benchmarks.memory", name, str(limit)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _measure(name: str, limit: float) -> dict[str, float]:
    one = setting(name)
    torch.nn.functional.cross_entropy(one.model(one.inputs[:8]), one.targets[:8]).backward()  # libraries load now
    before, began = _resident(), time.perf_counter()
    _forget_peak()
    problem = sm.Problem(one.model, one.loss, (one.inputs, one.targets), memory=limit)
    estimate = sm.eigenvalues(sm.Hessian(problem), rtol=1e-3, memory=limit)
    return {"peak": _peak() - before, "seconds": time.perf_counter() - began, "products": estimate.products}


def _forget_peak() -> None:
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def _peak() -> float:
    return _status("VmHWM")


def _resident() -> float:
    return _status("VmRSS")


def _status(entry: str) -> float:
    with open("/proc/self/status") as file:
        line = next(line for line in file if line.startswith(entry))
    return 1024 * float(line.split()[1])


if __name__ == "__main__":
    print(json.dumps(_measure(sys.argv[1], float(sys.argv[2]))))
