"""The error of every call that spconv's layers refuse."""

from __future__ import annotations

from typing import Any

# pyright: reportMissingImports=false, reportMissingTypeStubs=false
# PyTorch is an extra, which is absent where types are checked.
import torch

from voxax.errors import InputError
from voxax.torch import integers

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


class SpconvError(InputError, AssertionError):
    """A wrong argument.

    spconv raises ``AssertionError`` for some of them and ``ValueError`` for others; this is both.
    """


def whole(name: str, value: Any) -> int:
    """Return an integer argument, whatever its type; :class:`SpconvError` for others."""
    return integers.whole(name, value, SpconvError)


def check_cpu(tensor: torch.Tensor, what: str) -> None:
    """Raise :class:`SpconvError` for a tensor on another device: nothing is copied silently."""
    if tensor.device.type != "cpu":
        raise SpconvError(
            f"{what} on {tensor.device}: voxax.torch.spconv runs on the CPU. Move the model and "
            "its tensors with .cpu(), or use spconv or spconv-triton on that device"
        )


def check_features(features: torch.Tensor, rows: int, channels: int | None = None) -> None:
    """Raise :class:`SpconvError` unless these are float features of so many rows and channels."""
    check_cpu(features, "features")
    if features.dtype not in FLOATS:
        raise SpconvError(
            f"features of {features.dtype}: expected float32, float64, float16 or bfloat16 "
            "(quantized inference runs on GPUs only); convert with .float()"
        )
    if features.shape[0] != rows:
        raise SpconvError(
            f"{features.shape[0]} rows of features for {rows} rows of indices: replace_feature "
            "keeps the number of rows"
        )
    if channels is not None and features.shape[1] != channels:
        raise SpconvError(
            f"channel size mismatch: features have {features.shape[1]} channels, the layer takes "
            f"{channels}"
        )
