"""Tables of integer keys."""

# pyright: reportMissingImports=false, reportMissingTypeStubs=false
# PyTorch is an extra, which is absent where types are checked.

from __future__ import annotations

import torch

from voxax.torch.spconv.errors import SpconvError


class HashTable:
    """Values by key. Keys are kept sorted; a key that is inserted again has the newer value.

    Args:
      device: the CPU.
      key_dtype: int32 or int64.
      value_dtype: of the values.
      max_size: means nothing on a CPU.

    Raises:
      SpconvError: another device, or keys of another dtype.
    """

    def __init__(
        self,
        device: torch.device,
        key_dtype: torch.dtype,
        value_dtype: torch.dtype,
        max_size: int = -1,
    ) -> None:
        del max_size
        if torch.device(device).type != "cpu":
            raise SpconvError(f"a table on {device}: voxax.torch.spconv runs on the CPU")
        if key_dtype not in (torch.int32, torch.int64):
            raise SpconvError(f"keys of {key_dtype}: expected int32 or int64")
        self.is_cpu, self.key_dtype, self.value_dtype = True, key_dtype, value_dtype
        self._keys = torch.empty(0, dtype=key_dtype)
        self._values = torch.empty(0, dtype=value_dtype)

    def insert(self, keys: torch.Tensor, values: torch.Tensor | None = None) -> None:
        """Insert keys with their values; without them values are 0."""
        given = torch.zeros(keys.shape[0]) if values is None else values
        both = torch.cat([self._keys, keys.to(self.key_dtype)])
        behind = torch.cat([self._values, given.to(self.value_dtype)])
        ordered, order = torch.sort(both, stable=True)
        last = torch.ones_like(ordered, dtype=torch.bool)
        last[:-1] = ordered[1:] != ordered[:-1]
        self._keys, self._values = ordered[last], behind[order][last]

    def query(
        self, keys: torch.Tensor, values: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return ``(values, bool: not in the table)``; such values are 0."""
        place, known = self._places(keys)
        found = torch.zeros(keys.shape[0], dtype=self.value_dtype) if values is None else values
        found[known] = self._values[place[known]]
        return found, ~known

    def insert_exist_keys(self, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Change the values of keys that are there; returns ``uint8``: 1 for the others."""
        place, known = self._places(keys)
        self._values[place[known]] = values[known].to(self.value_dtype)
        return (~known).to(torch.uint8)

    def assign_arange_(self) -> torch.Tensor:
        """Number the keys from 0; returns their number ``int64[1]``."""
        self._values = torch.arange(self._keys.shape[0], dtype=self.value_dtype)
        return torch.tensor([self._keys.shape[0]])

    def items(self, max_size: int = -1) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return keys, values and their number ``int64[1]``."""
        del max_size
        return self._keys.clone(), self._values.clone(), torch.tensor([self._keys.shape[0]])

    def _places(self, keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        keys = keys.to(self.key_dtype)
        if not self._keys.shape[0]:
            none = torch.zeros(keys.shape[0], dtype=torch.int64)
            return none, none > 0
        place = torch.searchsorted(self._keys, keys).clamp(max=self._keys.shape[0] - 1)
        return place, self._keys[place] == keys
