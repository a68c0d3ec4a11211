"""Whether :func:`voxax.torch.plan` is recording: layers then build their maps and nothing else."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

# A plain variable: torch.compile guards it, and cannot read a context variable.
_ACTIVE = False


def active() -> bool:
    """True while a plan is made."""
    return _ACTIVE


@contextlib.contextmanager
def recording() -> Iterator[None]:
    """Layers called inside build their maps, and return zeros."""
    global _ACTIVE
    before, _ACTIVE = _ACTIVE, True
    try:
        yield
    finally:
        _ACTIVE = before
