"""Define spconv's debugging tools: a kernel timer, and a function that saves debug data."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from voxax.torch.spconv import constants


class CUDAKernelTimer:
    """Timer without effect; to measure layers, set ``benchmark`` of a ``SparseConvTensor``."""

    def __init__(self, enable: bool = True) -> None:
        self.enable, self._timer = enable, None

    @contextlib.contextmanager
    def namespace(self, name: str) -> Iterator[None]:
        """Return a context manager that does nothing."""
        yield

    record = namespace

    def get_all_pair_time(self) -> dict[str, float]:
        """Return an empty dictionary of times."""
        return {}

    def collect_by_name(self, name: str, res: dict[str, float]) -> dict[str, float]:
        """Return an empty dictionary of times."""
        del name, res
        return {}


def spconv_save_debug_data(data: Any) -> None:
    """Pickle ``data`` into the file named by the environment variable ``SPCONV_DEBUG_SAVE_PATH``.

    Print whether this succeeded. A failure does not raise an error, so that the caller's own error
    is not lost.
    """
    path = constants.SPCONV_DEBUG_SAVE_PATH
    if not path:
        print("SPCONV_DEBUG_SAVE_PATH is not set: no debug data is saved")  # noqa: T201
        return
    try:
        with Path(path).open("wb") as file:
            pickle.dump(data, file)
    except (OSError, pickle.PicklingError, TypeError, AttributeError) as error:
        print(f"debug data cannot be saved to {path}: {error}")  # noqa: T201
    else:
        print(f"debug data is saved to {path}")  # noqa: T201
