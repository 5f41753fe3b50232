"""3 x 3 convolutions of many channels with fewer multiplications, and their derivatives of first and second order.

oneDNN multiplies nine times for each pixel and pair of channels. Minimal filtering (Winograd 1980, Lavin and Gray 2016)
lifts images and weights to where a convolution is one product of matrices for each of k places, and multiplies 2.25
times in tiles of 4 x 4 pixels, 4 times in tiles of 2 x 2, and 2.25 times again in images that have but 2 x 2 pixels.
Lifting is linear, so derivatives are lifted alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from math import ceil

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.weak import WeakIdKeyDictionary

from spherometer.operators import places, products
from spherometer.operators.pixels import images_of, pixels_of
from spherometer.operators.workspace import Workspace

# Pairs of an input and an output channel, below which lifting costs what the products save. Where images are saved
# lifted, less is to be lifted. With wide vectors oneDNN convolves twice as fast: more than single tiles then pay where
# matrices are large.
MIN_PAIRS, MIN_PAIRS_SAVED, MIN_PAIRS_WIDE = 64 * 64, 32 * 64, 128 * 256
MIN_CHANNELS = 32  # on either side
MAX_MULTIPLICATIONS = 6.0  # for each pixel and pair of channels; of the nine, some fall on the padding of small images
PIECE = 2**20  # numbers of a lifted piece of images, which stays near the processor

Lifting = tuple[list[list[float]], list[list[float]], list[list[float]]]  # A, B and G, by rows

# y = A'((G w) ⊙ (B x)) along both axes: y has as many numbers as a tile is long, x two more, w three.
_LIFTS: dict[int, Lifting] = {
    2: (
        [[1, 0], [1, 1], [1, -1], [0, -1]],
        [[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]],
        [[1, 0, 0], [1 / 2, 1 / 2, 1 / 2], [1 / 2, -1 / 2, 1 / 2], [0, 0, 1]],
    ),
    4: (
        [[1, 0, 0, 0], [1, 1, 1, 1], [1, -1, 1, -1], [1, 2, 4, 8], [1, -2, 4, -8], [0, 0, 0, 1]],
        [
            [4, 0, -5, 0, 1, 0],
            [0, -4, -4, 1, 1, 0],
            [0, 4, -4, -1, 1, 0],
            [0, -2, -1, 2, 1, 0],
            [0, 2, -1, -2, 1, 0],
            [0, 4, 0, -5, 0, 1],
        ],
        [
            [1 / 4, 0, 0],
            [-1 / 6, -1 / 6, -1 / 6],
            [-1 / 6, 1 / 6, -1 / 6],
            [1 / 24, 1 / 12, 1 / 6],
            [1 / 24, -1 / 12, 1 / 6],
            [0, 0, 1],
        ],
    ),
}
# The same for an axis of two pixels with zeros on both sides.
_LIFT_OF_TWO: Lifting = (
    [[0, 1], [1, 1], [1, 0]],
    [[1, 0], [1, 1], [0, 1]],
    [[1, -1, 0], [0, 1, 0], [0, -1, 1]],
)


class Tiling:
    """Images of one size, padded by one pixel, in tiles of `edge` x `edge` pixels.

    With x̂, ŵ, ĝ the lifted input, weight and gradient of the output, <g, x * w> = Σ_k <ĝ_k, x̂_k ŵ_k'>. What is lifted
    is (k, tiles of all samples, channels), or (k, output channels, input channels) for weights; `lower_...` is the
    transpose of `lift_...`. Where images are asked for, they may be given lifted.
    """

    def __init__(self, edge: int, height: int, width: int, dtype: torch.dtype = torch.float32) -> None:
        self.edge, self.size = edge, (height, width)
        self.rows, self.columns = ceil(height / edge), ceil(width / edge)
        along = self._along_axes()
        self.places = (len(along[0][0]), len(along[1][0]))
        self._a, self._b, self._g = (_both_axes(*matrices, dtype) for matrices in zip(*along, strict=True))

    def _along_axes(self) -> tuple[Lifting, Lifting]:
        return _LIFTS[self.edge], _LIFTS[self.edge]

    @property
    def num_places(self) -> int:
        """k, those along one axis times those along the other."""
        return self.places[0] * self.places[1]

    @property
    def multiplications(self) -> float:
        """For each pixel and pair of channels."""
        return self.num_places * self.rows * self.columns / (self.size[0] * self.size[1])

    def spares_work(self, num_pairs: int, *, saved: bool) -> bool:
        """Whether so many pairs of channels are worth lifting, measured; where images are saved lifted if asked."""
        least = (
            MIN_PAIRS_WIDE if products.WIDE_VECTORS and self._num_tiles > 1 else MIN_PAIRS_SAVED if saved else MIN_PAIRS
        )
        return num_pairs >= least and self.multiplications <= MAX_MULTIPLICATIONS

    def lift_weight(self, w: Tensor, out: Tensor | None = None) -> Tensor:
        """ŵ = G w, in new memory or in that of `out`."""
        flat = None if out is None else out.view(self.num_places, -1)
        return torch.mm(self._g, w.reshape(-1, 9).T, out=flat).view(-1, *w.shape[:2])

    def lower_weight(self, lifted: Tensor) -> Tensor:
        """G'ŵ."""
        return _lower(self._g, lifted).unflatten(1, (3, 3)).permute(0, 3, 1, 2)

    def lift_input(self, x: Tensor) -> Tensor:
        """x̂ = B x, of the pixels below each tile and one more on each side."""
        edge, (height, width) = self.edge, self.size
        below, right = edge * self.rows - height + 1, edge * self.columns - width + 1
        padded = functional.pad(x.permute(0, 2, 3, 1), (0, 0, 1, right, 1, below))
        shape = (len(x), self.rows, self.columns, edge + 2, edge + 2, x.shape[1])
        image, row, pixel, channel = padded.stride()
        return _lift(self._b, padded.as_strided(shape, (image, edge * row, edge * pixel, row, pixel, channel)))

    def lower_input(self, lifted: Tensor) -> Tensor:
        """B'x̂, added up where tiles overlap."""
        edge, (height, width) = self.edge, self.size
        rows, columns, channels = self.rows, self.columns, lifted.shape[2]
        tiles = _lower(self._b, lifted).view(-1, rows, columns, edge + 2, edge + 2, channels)
        padded = lifted.new_empty(len(tiles), rows + 1, edge, columns + 1, edge, channels)
        padded[:, -1], padded[:, :, :, -1] = 0.0, 0.0
        cells = padded.transpose(2, 3)  # a tile reaches two pixels into the cells below and to the right
        cells[:, :-1, :-1] = tiles[:, :, :, :edge, :edge]
        cells[:, 1:, :-1, :2] += tiles[:, :, :, edge:, :edge]
        cells[:, :-1, 1:, :, :2] += tiles[:, :, :, :edge, edge:]
        cells[:, 1:, 1:, :2, :2] += tiles[:, :, :, edge:, edge:]
        return padded.flatten(3, 4).flatten(1, 2)[:, 1 : height + 1, 1 : width + 1].permute(0, 3, 1, 2)

    def lift_output(self, g: Tensor) -> Tensor:
        """ĝ = A g."""
        edge, (height, width) = self.edge, self.size
        below, right = edge * self.rows - height, edge * self.columns - width
        pixels = g.permute(0, 2, 3, 1)
        padded = functional.pad(pixels, (0, 0, 0, right, 0, below)) if below or right else pixels
        return _lift(self._a, padded.reshape(len(g), self.rows, edge, self.columns, edge, -1).transpose(2, 3))

    def lower_output(self, lifted: Tensor) -> Tensor:
        """A'ĝ."""
        edge, (height, width) = self.edge, self.size
        cells = _lower(self._a, lifted).view(-1, self.rows, self.columns, edge, edge, lifted.shape[2])
        images = cells.transpose(2, 3).flatten(3, 4).flatten(1, 2)
        return images[:, :height, :width].permute(0, 3, 1, 2)

    def whole(self, lift: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
        """All images lifted by `lift_input` or `lift_output`, for more than one use."""
        num, channels = images.shape[:2]
        total = images.new_empty(num * self._num_tiles, self.num_places, channels).transpose(0, 1)
        for piece in self._pieces(num, channels, channels):
            total[:, self._tiles(piece)] = lift(images[piece])
        return total

    def convolved(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        """The sum of x * w over pairs of an input and a lifted weight."""
        _, outputs, inputs = pairs[0][1].shape
        total = self._images(pairs[0][0], outputs)
        for piece in self._pieces(len(total), outputs, inputs):
            summed = places.to_outputs((self._lifted(self.lift_input, x, piece), w) for x, w in pairs)
            total[piece] = self.lower_output(summed)
        return total

    def gradients(
        self, g: Tensor, x: Tensor | None, weight: Tensor | None, workspace: Workspace
    ) -> tuple[Tensor | None, Tensor | None]:
        """The gradients of <g, x * w> in x, which takes the lifted weight, and in w, which takes x; None without it."""
        if weight is not None:
            outputs, inputs = weight.shape[1:]
        elif x is not None:
            outputs, inputs = self._num_channels(g), self._num_channels(x)
        else:
            return None, None
        dx = None if weight is None else self._images(g, inputs)
        with workspace.lent((0 if x is None else self.num_places, outputs, inputs), g.dtype) as dw:
            for piece in self._pieces(self._num_samples(g), outputs, inputs):
                slope = self._lifted(self.lift_output, g, piece)
                if weight is not None and dx is not None:
                    dx[piece] = self.lower_input(places.to_inputs(slope, weight))
                if x is not None:
                    places.add_to_weight(dw, slope, self._lifted(self.lift_input, x, piece), fresh=not piece.start)
            return dx, None if x is None else self.lower_weight(dw)

    def second(
        self, g: Tensor, x: Tensor, vx: Tensor, w: Tensor, vw: Tensor, workspace: Workspace
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The derivatives of <g, vx * w> + <g, x * vw> in g, x and w, with lifted weights; vx is lifted once."""
        outputs, inputs = w.shape[1:]
        dg, dx = self._images(g, outputs), self._images(g, inputs)
        with workspace.lent((self.num_places, outputs, inputs), g.dtype) as dw:
            for piece in self._pieces(len(vx), outputs, inputs):
                slope, image, change = (
                    self._lifted(lift, images, piece)
                    for lift, images in ((self.lift_output, g), (self.lift_input, x), (self.lift_input, vx))
                )
                dg[piece] = self.lower_output(places.to_outputs([(image, vw), (change, w)]))
                dx[piece] = self.lower_input(places.to_inputs(slope, vw))
                places.add_to_weight(dw, slope, change, fresh=not piece.start)
            return dg, dx, self.lower_weight(dw)

    @property
    def _num_tiles(self) -> int:
        return self.rows * self.columns

    def _tiles(self, piece: slice) -> slice:
        return slice(piece.start * self._num_tiles, piece.stop * self._num_tiles)

    def _lifted(self, lift: Callable[[Tensor], Tensor], images: Tensor, piece: slice) -> Tensor:
        return images[:, self._tiles(piece)] if images.dim() == 3 else lift(images[piece])

    def _num_samples(self, images: Tensor) -> int:
        return images.shape[1] // self._num_tiles if images.dim() == 3 else len(images)

    def _num_channels(self, images: Tensor) -> int:
        return images.shape[2 if images.dim() == 3 else 1]

    def _images(self, like: Tensor, channels: int) -> Tensor:
        return like.new_empty(self._num_samples(like), *self.size, channels).permute(0, 3, 1, 2)

    def _pieces(self, num: int, outputs: int, inputs: int) -> Iterator[slice]:
        """Samples at a time: more where the lifted weights, which each piece reads again, are larger than images."""
        size = max(PIECE, self.num_places * outputs * inputs // 2)
        step = max(1, size // (self.num_places * self._num_tiles * max(outputs, inputs)))
        return (slice(begin, begin + step) for begin in range(0, num, step))


class SingleTile(Tiling):
    """Images of at most `edge` x `edge` pixels: their padding is known to be zero, so that only pixels are lifted."""

    def _along_axes(self) -> tuple[Lifting, Lifting]:
        return self._along(self.size[0]), self._along(self.size[1])

    def _along(self, length: int) -> Lifting:
        if length == 2:
            return _LIFT_OF_TWO
        a, b, g = _LIFTS[self.edge]
        return [row[:length] for row in a], [row[1 : length + 1] for row in b], g

    def lift_input(self, x: Tensor) -> Tensor:
        """x̂ = B x."""
        return _lift(self._b, pixels_of(x))

    def lower_input(self, lifted: Tensor) -> Tensor:
        """B'x̂."""
        return images_of(_lower(self._b, lifted), self.size)

    def lift_output(self, g: Tensor) -> Tensor:
        """ĝ = A g."""
        return _lift(self._a, pixels_of(g))

    def lower_output(self, lifted: Tensor) -> Tensor:
        """A'ĝ."""
        return images_of(_lower(self._a, lifted), self.size)


def _lift(matrix: Tensor, tiles: Tensor) -> Tensor:
    """(k, tiles, channels) of tiles (..., height, width, channels), by a small product for each.

    A single one for all of them would write k places at a time, far from each other, and takes twice as long.
    """
    flat = tiles.reshape(-1, matrix.shape[1], tiles.shape[-1])
    return (matrix.expand(len(flat), -1, -1) @ flat).transpose(0, 1)


def _lower(matrix: Tensor, lifted: Tensor) -> Tensor:
    """(tiles, pixels, channels), the transpose of `_lift`."""
    return matrix.T.expand(lifted.shape[1], -1, -1) @ lifted.transpose(0, 1)


class Lifts:
    """Lifted weights, each for as long as its weight is there and unchanged: the same ones meet many vectors.

    With `images` a graph saves its images lifted too: more memory, which `saved_tensors_hooks` see, and less work for
    each product.
    """

    def __init__(self, *, images: bool = False) -> None:
        self.images = images
        self.workspace = Workspace()
        self._known = WeakIdKeyDictionary()

    def of(self, w: Tensor, tiling: Tiling) -> Tensor:
        """The weight as this tiling has it."""
        key = (tiling.places, None if w.is_inference() else w._version)  # what inference makes has no versions
        if w not in self._known or self._known[w][0] != key:
            self._known[w] = (key, tiling.lift_weight(w))
        return self._known[w][1]

    @contextmanager
    def passing(self, vector: Tensor, tiling: Tiling) -> Iterator[Tensor]:
        """A vector as this tiling has it, for as long as the block lasts."""
        with self.workspace.lent((tiling.num_places, *vector.shape[:2]), vector.dtype) as room:
            yield tiling.lift_weight(vector, out=room)

    @property
    def num_bytes(self) -> int:
        """What they hold."""
        return self.workspace.num_bytes + sum(lifted.nbytes for _, lifted in self._known.values())


def tiling_for(x: Tensor, w: Tensor, lifts: Lifts) -> Tiling | None:
    """The tiling for 3 x 3 weights on float32 images that lie channels last on a CPU, where it spares work.

    However many samples there are: the check of the rounding, on two, is to multiply as the product does.
    """
    height, width = x.shape[2:]
    covered = (
        x.device.type == "cpu"
        and x.dtype == torch.float32
        and len(x) > 0
        and w.shape[2:] == (3, 3)
        and min(w.shape[:2]) >= MIN_CHANNELS
        and min(height, width) > 1
        and x.is_contiguous(memory_format=torch.channels_last)
    )
    tiling = tiling_of(2 if max(height, width) in (5, 6) else 4, height, width) if covered else None
    return tiling if tiling and tiling.spares_work(w.shape[:2].numel(), saved=lifts.images) else None


@cache
def tiling_of(edge: int, height: int, width: int, dtype: torch.dtype = torch.float32) -> Tiling:
    """Tiles of `edge` x `edge` pixels, and what is known of images that are a single one."""
    return (SingleTile if max(height, width) <= edge else Tiling)(edge, height, width, dtype)


def _both_axes(vertical: list[list[float]], horizontal: list[list[float]], dtype: torch.dtype) -> Tensor:
    return torch.kron(torch.tensor(vertical, dtype=dtype), torch.tensor(horizontal, dtype=dtype))
