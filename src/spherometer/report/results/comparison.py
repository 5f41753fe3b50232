"""One folder of results, or two side by side: which recipe and which sentence belong together, which answers differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spherometer.recipes.verdicts import Verdict
from spherometer.report.results.folders import Done

Shelf = dict[tuple[str, str, int], Done]


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
    shelves = [_shelf(side.done) for side in sides]
    order = list(dict.fromkeys(key for shelf in shelves for key in shelf))
    blocks: list[Block] = []
    for key in order:
        alone = sum(key in shelf for shelf in shelves) == 1
        found = [shelf.pop(key, None) for shelf in shelves]
        if alone and len(sides) > 1:
            found = [done or _other_scale(shelf, key[0], shelves) for done, shelf in zip(found, shelves, strict=True)]
        if any(found):  # otherwise it went with another scale
            blocks.append(Block(found, _rows(found)))
    return sorted(blocks, key=lambda block: not block.differs)


def _shelf(done: Sequence[Done]) -> Shelf:
    """Results by id and scale; a second one with the same is kept as the second."""
    found: Shelf = {}
    for one in done:
        place = 0
        while (one.result.id, one.result.scale, place) in found:
            place += 1
        found[one.result.id, one.result.scale, place] = one
    return found


def _other_scale(shelf: Shelf, name: str, shelves: Sequence[Shelf]) -> Done | None:
    """The recipe at a scale that no other side has."""
    for key in shelf:
        if key[0] == name and sum(key in other for other in shelves) == 1:
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
