"""How many bytes of new tensors are alive at once."""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Counts the storages that operations make, until they are freed; what existed before does not count."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.peak, self.made = 0, 0, 0
        self._known = weakref.WeakSet[Any]()

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        given = {id(storage) for storage in _storages((arguments, options))}
        result = function(*arguments, **(options or {}))
        for storage in _storages(result):
            if id(storage) not in given and storage not in self._known:
                self._known.add(storage)
                self.now += storage.nbytes()
                self.made += storage.nbytes()
                weakref.finalize(storage, self._drop, storage.nbytes())
        self.peak = max(self.peak, self.now)
        return result

    def _drop(self, size: int) -> None:
        self.now -= size


def _storages(values: Any) -> list[Any]:
    return [value.untyped_storage() for value in tree_leaves(values) if isinstance(value, Tensor)]
