"""The machine a table was made on, and the one switch of it that all tools of a run share."""

from __future__ import annotations

import platform

import torch

from spherometer.commands.machine import keep_freed_memory

_switches: list[str] = []


def keep_memory() -> None:
    """Let the process keep freed memory, for every tool in it."""
    keep_freed_memory()
    _switches.append("freed memory kept in the process")


def machine() -> str:
    """Versions, threads and switches, for the head of a table."""
    return ", ".join(
        [f"torch {torch.__version__}", f"{torch.get_num_threads()} threads", platform.machine(), *_switches]
    )
