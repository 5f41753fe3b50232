"""Eight colours that colour-blind eyes can tell apart (after Okabe and Ito), on paper; the page has its own in CSS."""

from __future__ import annotations

PAPER = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#3b3b3b", "#56b4e9", "#8c5a2b")
PAGE = tuple(f"var(--series-{letter})" for letter in "abcdefgh")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
SYMBOLS = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "x", "star")
