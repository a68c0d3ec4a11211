"""PyTorch checkpoint files, read without running what they hold."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping

import numpy as np

from voxax.errors import FileFormatError, MissingExtraError
from voxax.interop.tensors import as_numpy


def read_checkpoint(path: str | os.PathLike[str], key: str | None = None) -> dict[str, np.ndarray]:
    """The state dict in a file that ``torch.save`` wrote, as NumPy arrays.

    Loaded with ``weights_only=True``: a file that would run code is refused.

    Args:
      path: the file.
      key: where the file holds more than a state dict, the entry that is one, such as
        ``"state_dict"`` or ``"model_state"``.

    Raises:
      MissingExtraError: PyTorch is not installed.
      FileFormatError: unreadable, needs code to load, or no state dict at ``key``.
    """
    try:
        import torch  # pyright: ignore[reportMissingImports]  (an extra)
    except ImportError as error:
        raise MissingExtraError(
            'reading PyTorch checkpoints needs torch: pip install "voxax[torch]"'
        ) from error
    name = os.fspath(path)
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        raise FileFormatError(
            f"{name} is no PyTorch file of tensors alone ({str(error).splitlines()[0]}): save "
            "model.state_dict(), and pass that file"
        ) from error
    if key is not None:
        if not isinstance(content, Mapping) or key not in content:
            raise FileFormatError(f"{name} has no entry {key!r}; it has {_entries(content)}")
        content = content[key]
    if not isinstance(content, Mapping) or not all(map(torch.is_tensor, content.values())):
        raise FileFormatError(
            f"{name} is no state dict{'' if key is None else f' at {key!r}'}, it has "
            f"{_entries(content)}: read_checkpoint(path, key=...) takes the entry that is one"
        )
    return {tensor: as_numpy(tensor, value) for tensor, value in content.items()}


def _entries(content: object) -> str:
    if not isinstance(content, Mapping):
        return type(content).__name__
    return ", ".join(f"{name!r} ({type(value).__name__})" for name, value in content.items())
