"""What layers note down: their times, and their largest number of outputs."""

# pyright: reportMissingImports=false, reportMissingTypeStubs=false
# PyTorch is an extra, which is absent where types are checked.

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from voxax.torch.spconv.core import SparseConvTensor
from voxax.torch.spconv.errors import SpconvError

_BUFFER = "max_num_voxels_during_training"


class VoxelCount(nn.Module):
    """A layer that can keep the largest number of its outputs, in a buffer of the checkpoint."""

    def _count_voxels(
        self, wanted: bool, possible: bool, device: torch.device | None = None
    ) -> None:
        self.record_voxel_count = wanted
        if wanted and possible:
            self.register_buffer(_BUFFER, torch.zeros(1, dtype=torch.int32, device=device))
            self.register_load_state_dict_pre_hook(_add_missing)

    def get_max_num_voxels(self) -> torch.Tensor | None:
        """Return ``int32[1]``, or None where nothing is recorded."""
        return getattr(self, _BUFFER, None)

    def _count(self, rows: int) -> None:
        largest = self.get_max_num_voxels()
        if largest is not None:
            largest.clamp_(min=rows)


def _add_missing(module: nn.Module, state_dict: dict, prefix: str, *rest: Any) -> None:
    """Let checkpoints without the buffer load."""
    del module, rest
    state_dict.setdefault(prefix + _BUFFER, torch.zeros(1, dtype=torch.int32))


class _Record:
    """Times of one call."""

    def __init__(self, entry: dict[str, Any] | None, rows: int) -> None:
        self.entry, self.rows, self.start = entry, rows, time.time()

    def found(self) -> None:
        """Note the time that the kernel map took."""
        if self.entry is not None:
            now = time.time()
            self.entry["indice_gen_time"].append(now - self.start)
            self.start = now

    def done(self, out: SparseConvTensor) -> None:
        """Note the rest."""
        if self.entry is not None:
            self.entry["time"].append(time.time() - self.start)
            self.entry["num_points"].append(self.rows)
            self.entry["num_out_points"].append(out.features.shape[0])


@contextlib.contextmanager
def recorded(
    module: Any, input: SparseConvTensor, kind: str, params: Callable[[], dict[str, Any]]
) -> Iterator[_Record]:
    """Note times under the module's name, if ``input.benchmark`` is set.

    Raises:
      SpconvError: it is, and the module has no name.
    """
    entry = None
    if input.benchmark:
        if module.name is None:
            raise SpconvError("benchmark=True needs layers with a name: name=... when made")
        lists = {"indice_gen_time": [], "time": [], "num_points": [], "num_out_points": []}
        fresh = {"type": kind, **lists, "params": params()}
        entry = input.benchmark_record.setdefault(module.name, fresh)
    yield _Record(entry, input.features.shape[0])
