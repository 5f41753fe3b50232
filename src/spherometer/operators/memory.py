"""How many bytes a graph keeps alive."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks


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
