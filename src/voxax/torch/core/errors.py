"""The error for wrong arguments of layers, and the checks that raise it."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor

from voxax.errors import InputError

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


class ArgumentError(InputError, AssertionError):
    """Error of a wrong argument.

    spconv, TorchSparse and MinkowskiEngine raise ``AssertionError`` for some wrong arguments and
    ``ValueError`` for others. This class is a subclass of both.
    """


def check_cpu(tensor: Tensor, what: str) -> None:
    """Raise :class:`ArgumentError` unless ``tensor``, named ``what`` in errors, is on the CPU."""
    if tensor.device.type != "cpu":
        raise ArgumentError(
            f"{what} on {tensor.device}: voxax.torch runs on the CPU. Move the model and its "
            "tensors with .cpu(), or use the original library on that device"
        )


def check_device(device: Any) -> None:
    """Raise :class:`ArgumentError` unless ``device`` (a name, number or device) is the CPU."""
    if isinstance(device, int) or torch.device(device).type != "cpu":
        raise ArgumentError(f"device={device}: voxax.torch runs on the CPU")


def check_rows(features: Tensor, rows: int) -> None:
    """Raise :class:`ArgumentError` unless ``features`` is on the CPU and has ``rows`` rows."""
    check_cpu(features, "features")
    if features.shape[0] != rows:
        found = f"{features.shape[0]} rows of features for {rows} rows of indices"
        raise ArgumentError(f"{found}: expected as many")


def check_features(features: Tensor, rows: int, channels: int | None = None) -> None:
    """Raise :class:`ArgumentError` unless ``features`` is a float tensor ``[rows, channels]``.

    The tensor must be on the CPU. None as ``channels`` accepts any number of channels.
    """
    check_cpu(features, "features")
    if features.dtype not in FLOATS:
        raise ArgumentError(
            f"features of {features.dtype}: expected float32, float64, float16 or bfloat16 "
            "(quantized inference runs on GPUs only); convert with .float()"
        )
    check_rows(features, rows)
    if channels is not None and features.shape[1] != channels:
        found = f"features have {features.shape[1]} channels, the layer takes {channels}"
        raise ArgumentError(f"channel size mismatch: {found}")


def whole(name: str, value: Any) -> int:
    """Return an argument as a Python integer.

    Args:
      name: name of the argument, for the message.
      value: an integer of Python or NumPy, or a tensor or an array with one integer.

    Raises:
      ArgumentError: ``value`` is not an integer.
    """
    try:
        return operator.index(value)
    except TypeError as failed:
        raise ArgumentError(f"{name}={value!r}: expected an integer") from failed


def _is_single(value: Any) -> bool:
    """Return whether ``value`` is one number instead of a list of numbers."""
    return getattr(value, "ndim", None) == 0 or isinstance(value, int | float)


def wholes(name: str, value: Any, ndim: int) -> list[int]:
    """Return ``value`` as a list of ``ndim`` integers, or raise :class:`ArgumentError`.

    ``value`` is one integer for all ``ndim`` axes, or a sequence with one integer per axis.
    ``name`` is the name of the argument, for the message.
    """
    values = [value] * ndim if _is_single(value) else list(value)
    if len(values) != ndim:
        found = f"{name}={values} for {ndim} axes"
        raise ArgumentError(f"{found}: expected one integer, or one per axis")
    return [whole(name, item) for item in values]
