"""Counting the bytes of tensors that are alive, on any device: what a caching allocator's
statistics say on a GPU."""

import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Allocations(TorchDispatchMode):
    """While on: `live` and `peak` bytes of every storage that an operation makes, freed and resized
    ones followed.

    Tensors made before are not counted. FSDP frees what it gathered by resizing its storage.
    """

    def __init__(self):
        super().__init__()
        self.live = self.peak = 0
        self._sizes: dict[int, int] = {}

    def __enter__(self):
        self._resize_of_torch = torch.UntypedStorage.resize_

        def resize(storage, size):
            self._resize_of_torch(storage, size)
            if storage._cdata in self._sizes:
                self._set(storage._cdata, size)

        torch.UntypedStorage.resize_ = resize
        return super().__enter__()

    def __exit__(self, *error):
        torch.UntypedStorage.resize_ = self._resize_of_torch
        return super().__exit__(*error)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        earlier = {storage._cdata for storage in _storages((args, kwargs))}
        made = function(*args, **(kwargs or {}))
        for storage in _storages(made):
            # Otherwise it is a view, or was changed in place.
            if storage._cdata not in self._sizes and storage._cdata not in earlier:
                weakref.finalize(storage, self._forget, storage._cdata)
                self._set(storage._cdata, storage.nbytes())
        return made

    def _set(self, key: int, size: int) -> None:
        self.live += size - self._sizes.get(key, 0)
        self._sizes[key] = size
        self.peak = max(self.peak, self.live)

    def _forget(self, key: int) -> None:
        self.live -= self._sizes.pop(key, 0)


def _storages(tree) -> list[torch.UntypedStorage]:
    tensors = [
        leaf
        for leaf in tree_leaves(tree)
        if isinstance(leaf, torch.Tensor) and leaf.device.type != "meta"
    ]
    return [getattr(tensor, "_local_tensor", tensor).untyped_storage() for tensor in tensors]
