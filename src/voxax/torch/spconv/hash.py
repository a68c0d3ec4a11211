"""Tables that map integer keys to values, with the API of spconv's hash tables."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from voxax.torch.core.errors import ArgumentError, check_device


class HashTable:
    """Table from integer keys to values, stored on the CPU and sorted by key.

    Inserting a key again replaces its value. Keys are int32 or int64; ``max_size`` is ignored.
    """

    def __init__(
        self, device: Any, key_dtype: torch.dtype, value_dtype: torch.dtype, max_size: int = -1
    ) -> None:
        del max_size
        check_device(device)
        if key_dtype not in (torch.int32, torch.int64):
            raise ArgumentError(f"keys of {key_dtype}: expected int32 or int64")
        self.is_cpu, self.key_dtype, self.value_dtype = True, key_dtype, value_dtype
        self._keys, self._values = (torch.empty(0, dtype=kind) for kind in (key_dtype, value_dtype))

    def insert(self, keys: Tensor, values: Tensor | None = None) -> None:
        """Insert keys ``[N]`` with values ``[N]``; None means the value 0 for all keys."""
        given = torch.zeros(keys.shape[0]) if values is None else values
        behind = torch.cat([self._values, given.to(self.value_dtype)])
        ordered, order = torch.cat([self._keys, keys.to(self.key_dtype)]).sort(stable=True)
        last = torch.ones_like(ordered, dtype=torch.bool)
        last[:-1] = ordered[1:] != ordered[:-1]
        self._keys, self._values = ordered[last], behind[order][last]

    def query(self, keys: Tensor, values: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the values ``[N]`` of keys ``[N]``, and ``bool[N]``, True for missing keys.

        Missing keys get the value 0. If ``values [N]`` is given, this method writes the values
        found into ``values`` and returns it; the entries of missing keys stay unchanged.
        """
        place, known = self._places(keys)
        found = torch.zeros(keys.shape[0], dtype=self.value_dtype) if values is None else values
        found[known] = self._values[place[known]]
        return found, ~known

    def insert_exist_keys(self, keys: Tensor, values: Tensor) -> Tensor:
        """Set the values of existing keys, and return ``uint8[N]`` with 1 for each missing key.

        ``keys`` and ``values`` are ``[N]``. Missing keys are not inserted.
        """
        place, known = self._places(keys)
        self._values[place[known]] = values[known].to(self.value_dtype)
        return (~known).to(torch.uint8)

    def assign_arange_(self) -> Tensor:
        """Set the values to 0, 1, ... in ascending order of keys; return the key count, ``[1]``."""
        self._values = torch.arange(self._keys.shape[0], dtype=self.value_dtype)
        return torch.tensor([self._keys.shape[0]])

    def items(self, max_size: int = -1) -> tuple[Tensor, Tensor, Tensor]:
        """Return copies of all keys and values, and the number of keys, ``int64[1]``.

        They are sorted by key. ``max_size`` is ignored.
        """
        del max_size
        return self._keys.clone(), self._values.clone(), torch.tensor([self._keys.shape[0]])

    def _places(self, keys: Tensor) -> tuple[Tensor, Tensor]:
        keys = keys.to(self.key_dtype)
        place = torch.searchsorted(self._keys, keys)
        if not self._keys.shape[0]:
            return place, place > 0
        place = place.clamp(max=self._keys.shape[0] - 1)
        return place, self._keys[place] == keys
