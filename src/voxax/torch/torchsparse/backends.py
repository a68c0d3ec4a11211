"""Define TorchSparse's flags for GPU kernels and its tuning function, without effect here."""

from __future__ import annotations

from typing import Any

benchmark = allow_tf32 = allow_fp16 = False
device_capability, hash_rsv_ratio = 0, 2


def init() -> None:
    """Do nothing; TorchSparse's function reads the properties of the GPU."""


def tune(model: Any, data_loader: Any, *args: Any, **kwargs: Any) -> None:
    """Do nothing; TorchSparse's function searches for the fastest GPU kernels of a model."""
