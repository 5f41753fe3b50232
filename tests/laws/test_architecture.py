"""A folder imports only from folders above it, in the order of the list below."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import spherometer

ROOT = Path(spherometer.__file__).parent
ORDER = (
    "values problems operators estimators metrics theory records zoo training integrations sweeps figures recipes "
    "report commands cli"
).split()  # commands: the insides of cli
OUTSIDE = {"__init__", "__main__"}  # the shop window may show everything


def room_of(path: Path) -> str:
    first = path.relative_to(ROOT).parts[0]
    return first.removesuffix(".py")


def imported_rooms(source: str, package: str) -> Iterator[tuple[int, str]]:
    """Line and folder of every import from the package, at the top of a file or inside a function."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
            if node.module == package:
                names = [f"{package}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, "a relative import"
            continue
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == package:
                yield node.lineno, parts[1] if len(parts) > 1 else "the package itself"


def violations(source: str, room: str) -> list[str]:
    """Imports of a file in `room` that do not come from the same room or one above it."""
    allowed = {*ORDER[: ORDER.index(room) + 1], "__version__"}
    return [f"line {line}: {name}" for line, name in imported_rooms(source, "spherometer") if name not in allowed]


FILES = sorted(path for path in ROOT.rglob("*.py") if room_of(path) not in OUTSIDE)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_folder_imports_only_from_folders_above_it(path):
    assert room_of(path) in ORDER, f"{room_of(path)} is not part of the design"
    wrong = violations(path.read_text(), room_of(path))
    assert not wrong, f"{path.relative_to(ROOT)} is in {room_of(path)} and imports from below: {wrong}"


@pytest.mark.parametrize(
    ("source", "room", "wrong"),
    [
        ("from spherometer.metrics import measure", "operators", 1),
        ("def f():\n    import spherometer.zoo.models", "metrics", 1),
        ("from spherometer import zoo", "estimators", 1),
        ("from spherometer import Hessian", "metrics", 1),
        ("from . import middle", "operators", 1),
        ("import spherometer", "training", 1),
        ("from spherometer.values import Estimate\nfrom spherometer.problems import Problem", "operators", 0),
        ("from spherometer.operators.middle import x", "operators", 0),
        ("from spherometer import __version__", "records", 0),
        ("import torch\nfrom collections import abc", "values", 0),
    ],
)
def test_the_law_notices_wrong_imports(source, room, wrong):
    assert len(violations(source, room)) == wrong
