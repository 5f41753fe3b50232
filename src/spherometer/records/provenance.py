"""Where numbers come from: code, libraries, machine, command; what one wants to know a year later."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from spherometer import __version__

LIBRARIES = ("torch", "numpy", "scipy", "safetensors", "lightning", "transformers", "pytorch-ignite")


def provenance() -> dict[str, Any]:
    """Plain data that describes this session."""
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "spherometer": __version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "libraries": {name: version for name in LIBRARIES if (version := _version(name))},
        "machine": {
            "host": platform.node(),
            "system": platform.platform(),
            "processor": platform.machine(),
            "cores": os.cpu_count(),
        },
        "process": os.getpid(),
        "command": sys.argv,
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit of the working folder, with a + if it has changes; None outside a repository."""
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--abbrev=40", "--dirty=+", "--exclude=*"],
            cwd=Path.cwd(),
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()
