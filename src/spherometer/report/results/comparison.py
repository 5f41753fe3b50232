"""One folder of results, or two side by side: which recipe and which sentence belong together, which answers differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spherometer.recipes.verdicts import Verdict
from spherometer.report.results.folders import Done


@dataclass(frozen=True)
class Side:
    """A folder of results under a name."""

    name: str
    done: Sequence[Done]


@dataclass(frozen=True)
class Row:
    """A sentence, and its verdict on each side; None where a side does not have it."""

    sentence: str
    source: str
    verdicts: Sequence[Verdict | None]

    @property
    def differs(self) -> bool:
        """Whether there are two answers, and not the same."""
        return len({verdict.answer for verdict in self.verdicts if verdict is not None}) > 1


@dataclass(frozen=True)
class Block:
    """A recipe, what each side has of it, and its sentences; those with different answers first."""

    sides: Sequence[Done | None]
    rows: Sequence[Row]

    @property
    def first(self) -> Done:
        """What the leftmost side that has the recipe has of it."""
        return next(done for done in self.sides if done is not None)

    @property
    def differs(self) -> bool:
        """Whether any answer does."""
        return any(row.differs for row in self.rows)


def compared(sides: Sequence[Side]) -> list[Block]:
    """Recipes of all sides in their order, those with different answers first.

    The same recipe at the same scale belongs together; what is left over by id alone, so that a laptop can be held
    against the paper's scale.
    """
    shelves = [{(done.result.id, done.result.scale): done for done in side.done} for side in sides]
    order = list(dict.fromkeys(key for shelf in shelves for key in shelf))
    blocks: list[Block] = []
    for name, scale in order:
        if not any((name, scale) in shelf for shelf in shelves):
            continue  # it went with another scale
        found = [shelf.pop((name, scale), None) for shelf in shelves]
        if None in found and len(sides) > 1:
            found = [
                done or _other_scale(shelf, name, order, shelves) for done, shelf in zip(found, shelves, strict=True)
            ]
        blocks.append(Block(found, _rows(found)))
    return sorted(blocks, key=lambda block: not block.differs)


def _other_scale(
    shelf: dict[tuple[str, str], Done],
    name: str,
    order: list[tuple[str, str]],
    shelves: list[dict[tuple[str, str], Done]],
) -> Done | None:
    """The recipe at a scale that no other side has."""
    for key in order:
        if key[0] == name and key in shelf and sum(key in other for other in shelves) == 1:
            return shelf.pop(key)
    return None


def _rows(found: Sequence[Done | None]) -> list[Row]:
    tables = [{} if done is None else {verdict.sentence: verdict for verdict in done.result.verdicts} for done in found]
    rows = []
    for sentence in dict.fromkeys(sentence for table in tables for sentence in table):
        verdicts = [table.get(sentence) for table in tables]
        source = next(verdict.source for verdict in verdicts if verdict is not None)
        rows.append(Row(sentence, source, verdicts))
    return sorted(rows, key=lambda row: not row.differs)
