"""Flags of TorchSparse's GPU kernels, and its search for the fastest. They have no effect."""

from __future__ import annotations

from typing import Any

benchmark = allow_tf32 = allow_fp16 = False
device_capability, hash_rsv_ratio = 0, 2


def init() -> None:
    """Do nothing: there is no GPU to ask."""


def tune(model: Any, data_loader: Any, *args: Any, **kwargs: Any) -> None:
    """Do nothing: there is one kernel here."""
