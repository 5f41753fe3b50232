"""The global random streams, which dropout draws from, are given back as they were found."""

from __future__ import annotations

import torch


class KeptStreams:
    """As `keeping_random_state`, cheap enough for every step: `fork_rng` looks for accelerators each time."""

    def __init__(self, device: torch.device) -> None:
        self._streams = [torch.default_generator]
        if device.type == "cuda":
            self._streams.append(torch.cuda.default_generators[device.index])

    def __enter__(self) -> None:
        self._states = [stream.get_state() for stream in self._streams]

    def __exit__(self, *_: object) -> None:
        for stream, state in zip(self._streams, self._states, strict=True):
            stream.set_state(state)
