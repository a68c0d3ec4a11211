"""Voxels that occur several times: spconv's rule on a CPU, or an error."""

from __future__ import annotations

import warnings

from voxax.torch.core.duplicates import Duplicates
from voxax.torch.core.sites import Sites as _Sites

_strict = False
_warned = False


def strict(on: bool = True) -> None:
    """Let layers of this process refuse voxels that occur several times, or compute with them.

    Args:
      on: refuse them, with a :class:`SpconvError`. False, as at the start: they warn once and
        follow spconv's rule on a CPU, see :class:`voxax.torch.core.duplicates.Duplicates`.
    """
    global _strict
    _strict = bool(on)


class Sites(_Sites):
    """Sites of which some may be one voxel."""

    def accept(self, duplicates: Duplicates) -> None:
        """Warn, once in a process, or after :func:`strict` raise :class:`SpconvError`."""
        global _warned
        if _strict:
            super().accept(duplicates)
        if _warned:
            return
        _warned = True
        warnings.warn(
            f"{duplicates.described(self.rows)}: layers follow spconv's rule on a CPU, slower than "
            "with distinct voxels. Merge them with torch.unique(indices, dim=0, "
            "return_inverse=True), or let voxax.torch.spconv.strict(True) refuse them",
            stacklevel=2,
        )
