"""Named features, answered from the facts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from voxax.hardware.info import HardwareInfo


def _more_than(field: str, number: int) -> Callable[[HardwareInfo], bool]:
    return lambda info: (getattr(info, field) or 0) > number


FEATURES: dict[str, Callable[[HardwareInfo], bool]] = {
    "matrix_unit": lambda info: info.matrix_unit is not None,
    "sparse_core": _more_than("sparse_cores", 0),
    "vmem": _more_than("vmem_bytes", 0),
    "smem": _more_than("smem_bytes", 0),
    "shared_memory": _more_than("shared_memory_bytes", 0),
    "memory_stats": lambda info: info.memory_in_use is not None,
    "multi_core": _more_than("cores", 1),
    "multi_device": _more_than("num_devices", 1),
    "multi_host": _more_than("process_count", 1),
    "multi_slice": _more_than("num_slices", 1),
    "pallas": lambda info: info.platform in ("gpu", "cuda", "tpu"),
}


def names() -> tuple[str, ...]:
    """The features that are not a dtype or a vector extension."""
    return tuple(FEATURES)


def dtype_name(dtype: Any) -> str:
    """``"bfloat16"`` for the name, the scalar type or the dtype."""
    return dtype if isinstance(dtype, str) else np.dtype(dtype).name
