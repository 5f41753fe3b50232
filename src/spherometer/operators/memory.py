"""How many bytes a graph keeps alive, and how many it may."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from spherometer.problems import Problem

# On a CPU tensors beyond 32 MB go back to the system after every pass: pieces that stay below make products of CNNs
# with few parameters faster. With many, the vectors of each piece cost more (`python -m benchmarks --only pieces`).
PIECE_BYTES = 1.3e8
PARAMETER_BYTES = 16  # so many times the parameters a piece may always take


def saved_bytes(build: Callable[[], object], known: Iterable[Tensor]) -> int:
    """Bytes that the graph made by `build()` saves for its backward passes, beyond the tensors that exist anyway."""
    sizes: dict[int, int] = {}
    existing = {tensor.untyped_storage().data_ptr() for tensor in known}

    def weigh(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in existing:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()  # the tensor itself would keep its graph alive for ever

    with saved_tensors_hooks(weigh, lambda tensor: tensor):
        graph = build()
    del graph
    return sum(sizes.values())


def piece_size(problem: Problem, sample_bytes: float) -> int | None:
    """Samples whose graph fits three times into the limit, for a pass needs room too; None where it weighs nothing."""
    room = problem.memory / 3
    if problem.device.type == "cpu":
        parameters = problem.num_parameters * problem.precision.itemsize
        room = min(room, max(PIECE_BYTES, PARAMETER_BYTES * parameters))
    return max(1, int(room / sample_bytes)) if sample_bytes else None
