"""Model building draws random numbers from a seed and leaves the global generators as they were."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Inside, the global generators of torch, numpy and Python start from `seed`; outside, nothing has happened."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    python_state, numpy_state = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=devices):
        torch.random.default_generator.manual_seed(seed)  # not torch.manual_seed: that one also queues a CUDA seed
        random.seed(seed)
        np.random.seed(seed % 2**32)
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)
