"""A run to be done: what it is, where it goes, and whether it is done already."""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

from spherometer.records import RecordError, RunReader

RunFunction = Callable[[dict[str, Any], Path], None]


class JobError(ValueError):
    """A job that no worker could do; the message says why and what to do."""


@dataclass(frozen=True, eq=False)
class Job:
    """A run to be done: a function by its import path and plain settings; both together are its identity.

    The function is called as `function(settings, folder)`. It writes the folder with `records.RunWriter(folder, ...,
    resume=True)`, and so goes on where an earlier call was interrupted and leaves the state `done` when it ends well.

    Args:
        function: "package.module:function", importable wherever the job is done.
        settings: dictionaries with text as keys, lists, text, finite numbers, True, False and None; the seed included.
        title: for people, not part of the identity.

    Example:
        >>> Job("mypackage.runs:train", {"lr": 0.1, "seed": 0}, title="lr 0.1").folder("results")
        PosixPath('results/runs/67a3c2d062d61325')
    """

    function: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    title: str = ""

    def __post_init__(self) -> None:
        module, _, name = self.function.partition(":")
        if not module or not name:
            raise JobError(f"expected a function as 'package.module:function', got {self.function!r}")
        if module == "__main__":
            raise JobError(f"{self.function}: a worker cannot import the main script: move the function to a module")
        _refuse_what_json_changes(self.settings, "settings")
        object.__setattr__(self, "settings", json.loads(json.dumps(self.settings)))  # a copy nobody else changes

    @cached_property
    def key(self) -> str:
        """16 hexadecimal digits of the SHA-256 of function and settings as canonical JSON."""
        identity = {"function": self.function, "settings": self.settings}
        return sha256(json.dumps(identity, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:16]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __str__(self) -> str:
        return self.title or self.key

    def folder(self, root: str | Path) -> Path:
        """Where the run is, among the other runs of a sweep."""
        return Path(root) / "runs" / self.key

    def is_done(self, root: str | Path) -> bool:
        """Whether the run is there and has ended well; a folder that cannot be read is not."""
        reader = RunReader(self.folder(root))
        try:
            return reader.exists and reader.state == "done"
        except RecordError:
            return False  # the run itself will meet the same error and tell it

    def load(self) -> RunFunction:
        """The function, imported."""
        module, _, name = self.function.partition(":")
        try:
            found: Any = importlib.import_module(module)
            for part in name.split("."):
                found = getattr(found, part)
        except (ImportError, AttributeError) as error:
            raise JobError(f"{self.function}: cannot be imported ({error}): look at the path of the module") from error
        if not callable(found):
            raise JobError(f"{self.function}: expected a function, found {type(found).__name__}")
        function: RunFunction = found
        return function


def _refuse_what_json_changes(content: Any, path: str) -> None:
    """A tuple may become a list; anything else that comes back changed would be another run than was asked for."""
    if isinstance(content, Mapping):
        for key, value in content.items():
            if not isinstance(key, str):
                raise JobError(f"{path}: expected text as keys, got {key!r}")
            _refuse_what_json_changes(value, f"{path}[{key!r}]")
    elif isinstance(content, list | tuple):
        for index, value in enumerate(content):
            _refuse_what_json_changes(value, f"{path}[{index}]")
    elif isinstance(content, float) and not math.isfinite(content):
        raise JobError(f"{path}: expected a finite number, got {content}: write None or text instead")
    elif content is not None and not isinstance(content, str | int | float):
        raise JobError(
            f"{path}: expected plain data (text, numbers, lists, dictionaries), got {type(content).__name__}"
        )
