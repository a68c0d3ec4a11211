"""Files of state dicts: PyTorch's, safetensors', and those of a Hugging Face repository.

Tensors become NumPy arrays without importing their library; PyTorch is needed only for its own
files, and runs nothing that they hold.
"""

from __future__ import annotations

import os
import pickle
import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from voxax._atomic_file import replacing, write_atomically
from voxax.errors import FileFormatError, InputError, import_extra
from voxax.interop.pickled_arrays import numpy_globals

Location = str | os.PathLike[str]
"""A path, or ``hf://owner/name/file``."""

SAFETENSORS = ".safetensors"
_HUB = re.compile(r"hf://([^/]+/[^/]+)/(?:resolve/([^/]+)/)?(.+)")


def as_numpy(name: str, value: Any) -> np.ndarray:
    """Return a NumPy array of the same dtype from an array, or from a PyTorch tensor on any device.

    Raises:
      InputError: not numbers; names the tensor.
    """
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":  # PyTorch gives NumPy none; float32 holds each
            return value.float().numpy().astype(ml_dtypes.bfloat16)
        value = value.numpy()
    array = np.asarray(value)
    if array.dtype == object or array.dtype.kind in "US":
        raise InputError(f"{name!r} of the state dict is {type(value).__name__}, not a tensor")
    return array


def read_checkpoint(
    path: Location, key: str | Sequence[str] | None = None
) -> dict[str, np.ndarray]:
    """Return the state dict in a file of PyTorch or safetensors, as NumPy arrays.

    PyTorch's files are loaded with ``weights_only=True``: one that would run code is refused.

    Args:
      path: the file; ``.safetensors`` by its extension, else one that ``torch.save`` wrote. Or
        ``hf://owner/name/file`` of a Hugging Face repository, and
        ``hf://owner/name/resolve/revision/file``.
      key: where the file holds more than a state dict, the entry that is one, such as
        ``"state_dict"`` or ``"model_state"``; of several the first that it has, and the whole
        file where it has none of them.

    Returns:
      Arrays of the tensors' shapes and dtypes, by name.

    Raises:
      MissingExtraError: the package that the file needs is not installed.
      FileFormatError: unreadable, needs code to load, or no state dict at ``key``.
      FileNotFoundError: no such file.
    """
    path = _local(path)
    if path.suffix == SAFETENSORS:
        return _read_safetensors(path)
    return _state_dict(path, _read_torch(path), key)


def write_checkpoint(path: str | os.PathLike[str], state_dict: Mapping[str, Any]) -> Path:
    """Write arrays by name to a file, in one step, and return its path.

    Args:
      path: in an existing folder; ``.safetensors`` by its extension, else as ``torch.save`` does.
      state_dict: arrays or PyTorch tensors of any shape.

    Raises:
      MissingExtraError: the package that the file needs is not installed.
      InputError: an entry that holds no numbers.
    """
    path = Path(path)
    arrays = {name: as_numpy(name, value) for name, value in state_dict.items()}
    if path.suffix == SAFETENSORS:
        packer: Any = import_extra("writing .safetensors", "weights", "safetensors.numpy")
        whole = {name: np.ascontiguousarray(a).reshape(a.shape) for name, a in arrays.items()}
        return write_atomically(path, packer.save(whole))
    torch: Any = import_extra("writing PyTorch checkpoints", "torch", "torch")
    tensors = {name: _tensor(torch, array) for name, array in arrays.items()}
    with replacing(path) as file:
        torch.save(tensors, file)
    return path


def _tensor(torch: Any, array: np.ndarray) -> Any:
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.astype(np.float32)).bfloat16()
    return torch.from_numpy(np.array(array, order="C"))


def _local(path: Location) -> Path:
    """Return the path of a file on this machine; those of a repository are downloaded."""
    name = os.fspath(path)
    if not name.startswith("hf:"):
        return Path(name)
    found = _HUB.fullmatch(name)
    if found is None:
        raise InputError(
            f"{name!r} must be hf://owner/name/file, or hf://owner/name/resolve/revision/file"
        )
    hub: Any = import_extra(f"reading {name}", "hub", "huggingface_hub")
    repository, revision, file = found.groups()
    try:
        return Path(hub.hf_hub_download(repository, file, revision=revision))
    except (OSError, ValueError) as error:
        raise FileFormatError(
            f"cannot get {name}: {str(error).strip().splitlines()[0]}. Check the name, or download "
            "the file and pass its path"
        ) from error


def _read_safetensors(path: Path) -> dict[str, np.ndarray]:
    package: Any = import_extra(
        "reading .safetensors", "weights", "safetensors.numpy", "safetensors"
    )
    if not path.exists():
        raise FileNotFoundError(path)
    try:
        return package.load_file(path)
    except KeyError as error:
        raise FileFormatError(
            f"{path} has tensors of the dtype {error}, which NumPy has not: convert the file first"
        ) from error
    except Exception as error:  # SafetensorError is no more than an Exception
        raise FileFormatError(
            f"{path} is no whole .safetensors file: {error}. Download or save it again"
        ) from error


def _read_torch(path: Path) -> Any:
    torch: Any = import_extra("reading PyTorch checkpoints", "torch", "torch")
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                claimed = sum(member.file_size for member in archive.infolist())
            if claimed > (stored := path.stat().st_size):
                raise FileFormatError(
                    f"{path} of {stored} bytes says that it holds {claimed}: torch.save does not "
                    "compress"
                )
        with torch.serialization.safe_globals(numpy_globals()):
            return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise
    except (
        pickle.UnpicklingError,
        zipfile.BadZipFile,
        RuntimeError,
        EOFError,
        OSError,
        ValueError,
    ) as error:
        if isinstance(error, FileFormatError):
            raise
        why = (str(error) or type(error).__name__).splitlines()[0]
        raise FileFormatError(
            f"{path} is no PyTorch file of tensors alone ({why}): save model.state_dict(), and "
            "pass that file"
        ) from error


def _state_dict(path: Path, content: Any, key: str | Sequence[str] | None) -> dict[str, np.ndarray]:
    """Return the entry of a PyTorch file's content that is a state dict."""
    if isinstance(key, str):
        if not isinstance(content, Mapping) or key not in content:
            raise FileFormatError(f"{path} has no entry {key!r}; it has {_entries(content)}")
    elif key is not None:
        known = content if isinstance(content, Mapping) else {}
        key = next((name for name in key if isinstance(known.get(name), Mapping)), None)
    if key is not None:
        content = content[key]
    if not isinstance(content, Mapping) or not all(hasattr(v, "detach") for v in content.values()):
        raise FileFormatError(
            f"{path} is no state dict{'' if key is None else f' at {key!r}'}, it has "
            f"{_entries(content)}: read_checkpoint(path, key=...) takes the entry that is one"
        )
    return {tensor: as_numpy(tensor, value) for tensor, value in content.items()}


def _entries(content: object) -> str:
    if not isinstance(content, Mapping):
        return type(content).__name__
    return ", ".join(f"{name!r} ({type(value).__name__})" for name, value in content.items())
