"""The 1,797 handwritten digits of E. Alpaydin and C. Kaynak (UCI, CC BY 4.0), embedded: see digits.txt."""

from __future__ import annotations

from importlib.resources import files

import numpy as np

from spherometer.zoo.datasets.images import RawImages

NUM_TRAIN = 1437  # four fifths, in file order
BRIGHTEST = 16


def read_digits(*, train: bool | None = None) -> RawImages:
    """All digits, or the first 1,437 (`train=True`), or the last 360 (`train=False`); pixels from 0 to 16."""
    with (files(__package__) / "digits.npz").open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
        pixels, labels = arrays["inputs"][:, None], arrays["targets"].astype(np.int64)
    chosen = {None: slice(None), True: slice(0, NUM_TRAIN), False: slice(NUM_TRAIN, None)}[train]
    return RawImages(pixels[chosen], labels[chosen], official=True)
