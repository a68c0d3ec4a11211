"""Read and write files of weights: PyTorch and safetensors, also from Hugging Face repositories.

Tensors are converted to NumPy arrays without an import of PyTorch. Only PyTorch files need PyTorch,
which loads them without running code from them.
"""

from __future__ import annotations

import os
import re
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from voxax._atomic_file import replacing, write_atomically
from voxax.errors import FileFormatError, InputError, import_extra, listed
from voxax.interop.pickled_arrays import numpy_globals

Location = str | os.PathLike[str]
"""Path of a file, or ``hf://owner/name/file`` for a file of a Hugging Face repository."""

SAFETENSORS = ".safetensors"
# What PyTorch's errors name: the class or function that a file would import, or TorchScript.
_REFUSED = re.compile(r"(?:GLOBAL |with (?=TorchScript))([\w.]+)")
_HUB = re.compile(r"hf://([^/]+/[^/]+)/(?:resolve/([^/]+)/)?(.+)")


def as_numpy(name: str, value: Any) -> np.ndarray:
    """Convert ``value``, an array or a PyTorch tensor on any device, to a NumPy array of its dtype.

    A tensor in host memory shares its memory with the array. ``name`` is the key of ``value`` in a
    state dict, for messages.

    Raises:
      InputError: ``name`` is not a string; ``value`` has objects or text instead of numbers; or
        PyTorch cannot convert the tensor, for example because it is sparse.
    """
    if not isinstance(name, str):
        raise InputError(f"{name!r} of the state dict is {type(name).__name__}, not a name")
    if hasattr(value, "detach"):
        try:
            value = _of_tensor(value.detach().cpu())
        except (RuntimeError, TypeError) as error:
            raise InputError(
                f"{name!r} of the state dict, {value.dtype} on {value.device}, is no plain array: "
                f"{_first_line(error)}. Convert it first"
            ) from error
    array = np.asarray(value)
    if array.dtype == object or array.dtype.kind in "US":
        raise InputError(f"{name!r} of the state dict is {type(value).__name__}, not a tensor")
    return array


def _of_tensor(tensor: Any) -> np.ndarray:
    if str(tensor.dtype) == "torch.bfloat16":  # NumPy has no such dtype
        return tensor.view(sys.modules["torch"].int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def read_checkpoint(
    path: Location, key: str | Sequence[str] | None = None
) -> dict[str, np.ndarray]:
    """Return the state dict in a file of PyTorch or safetensors, as NumPy arrays.

    PyTorch's files are loaded with ``weights_only=True``, which refuses files that would run code.

    Args:
      path: path of a ``.safetensors`` file, or of any other file that ``torch.save`` wrote. For a
        file of a Hugging Face repository, ``hf://owner/name/file`` or
        ``hf://owner/name/resolve/revision/file``.
      key: name of the entry that is the state dict, such as ``"state_dict"`` or
        ``"model_state"``; None takes the whole file. If several names are given, the first that the
        file has is taken, or the whole file if it has none of them. ``.safetensors`` files have no
        such entries, so ``key`` is ignored for them.

    Returns:
      A dict from names to arrays with the shapes and dtypes of the tensors.

    Raises:
      MissingExtraError: the package that the file needs is not installed.
      FileFormatError: the file is unreadable, needs code to load, or has no state dict at ``key``.
      FileNotFoundError: the file does not exist.
    """
    path = _local(path)
    if path.suffix.lower() == SAFETENSORS:
        return _read_safetensors(path)
    return _state_dict(path, _read_torch(path), key)


def read_with_config(
    path: Location, key: Sequence[str], config: str = "config"
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the state dict in a file, and a dict of the network's settings in the same file.

    Errors are those of :func:`read_checkpoint`. FileFormatError is raised too if the settings are
    no dict.

    Args:
      path, key: as in :func:`read_checkpoint`.
      config: name of the entry with the settings. If the file lacks this entry, or is a
        ``.safetensors`` file, the dict of settings is empty.
    """
    path = _local(path)
    if path.suffix.lower() == SAFETENSORS:
        return _read_safetensors(path), {}
    content = _read_torch(path)
    found = content.get(config, {}) if isinstance(content, Mapping) else {}
    if not isinstance(found, Mapping):
        raise FileFormatError(f"{path}: its {config} is {type(found).__name__}, not a mapping")
    return _state_dict(path, content, key), dict(found)


def check_place(path: Location) -> None:
    """Check that a local path leads to a file. ``hf://`` paths are not checked.

    Raises:
      FileNotFoundError: the path does not exist.
      FileFormatError: the path is a folder, a pipe or a device.
    """
    if _is_hub(path):
        return
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(path)
    if not path.is_file():  # reading a pipe would wait for its writer
        raise FileFormatError(f"{path} is not a file: give the path of one with weights")


def write_checkpoint(path: str | os.PathLike[str], state_dict: Mapping[str, Any]) -> Path:
    """Write a state dict to a file atomically, and return the path of the file.

    Args:
      path: the file, in an existing folder. If the name ends in ``.safetensors``, this is the
        format; otherwise it is that of ``torch.save``.
      state_dict: arrays or PyTorch tensors of any shape, by name.

    Raises:
      MissingExtraError: the package that the file needs is not installed.
      InputError: an entry has no numbers, or the path is in a Hugging Face repository.
    """
    if _is_hub(path):
        raise InputError(f"{path} is read only: write a file, and upload it")
    path = Path(path)
    arrays = {name: as_numpy(name, value) for name, value in state_dict.items()}
    if path.suffix.lower() == SAFETENSORS:
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


def _is_hub(path: Location) -> bool:
    return os.fspath(path).startswith("hf:")


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _local(path: Location) -> Path:
    """Return the local path of a file; a file of a Hugging Face repository is downloaded."""
    name = os.fspath(path)
    if not _is_hub(name):
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
            f"cannot get {name}: {_first_line(error)}. Check the name, or download the file and "
            "pass its path"
        ) from error


def _read_safetensors(path: Path) -> dict[str, np.ndarray]:
    package: Any = import_extra(
        "reading .safetensors", "weights", "safetensors.numpy", "safetensors"
    )
    check_place(path)
    try:
        return package.load_file(path)
    except KeyError as error:
        raise FileFormatError(
            f"{path} has tensors of the dtype {error}, which NumPy has not: convert the file first"
        ) from error
    except Exception as error:  # SafetensorError derives directly from Exception
        raise FileFormatError(
            f"{path} is no whole .safetensors file: {error}. Download or save it again"
        ) from error


def _read_torch(path: Path) -> Any:
    torch: Any = import_extra("reading PyTorch checkpoints", "torch", "torch")
    check_place(path)
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
    except (FileNotFoundError, FileFormatError):
        raise
    except Exception as error:  # a broken pickle may raise any exception
        refused = _REFUSED.search(str(error))
        if refused is None:
            raise FileFormatError(
                f"{path} is damaged, or no PyTorch file ({type(error).__name__}): download or save "
                "it again"
            ) from error
        raise FileFormatError(
            f"{path} is no PyTorch file of tensors alone, it needs {refused[1]:.200}, which may "
            "run code: save model.state_dict(), and pass that file"
        ) from error


def _state_dict(path: Path, content: Any, key: str | Sequence[str] | None) -> dict[str, np.ndarray]:
    """Return the state dict in ``content``, the loaded content of a PyTorch file, as NumPy arrays.

    ``key`` is as in :func:`read_checkpoint`. Raise :class:`FileFormatError` if there is no state
    dict at ``key``.
    """
    if isinstance(key, str):
        if not isinstance(content, Mapping) or key not in content:
            has = _kinds(content) if isinstance(content, Mapping) else type(content).__name__
            raise FileFormatError(f"{path} has no entry {key!r}; it has {has}")
    elif key is not None:
        known = content if isinstance(content, Mapping) else {}
        key = next((name for name in key if isinstance(known.get(name), Mapping)), None)
    if key is not None:
        content = content[key]
    others = {}
    if isinstance(content, Mapping):
        others = {name: v for name, v in content.items() if not hasattr(v, "detach")}
    if others or not isinstance(content, Mapping):
        raise FileFormatError(
            f"{path} is no state dict{'' if key is None else f' at {key!r}'}, it has "
            f"{_kinds(others) or type(content).__name__}: read_checkpoint(path, key=...) takes the "
            "entry that is one"
        )
    return {name: _stored(path, name, tensor) for name, tensor in content.items()}


def _stored(path: Path, name: str, tensor: Any) -> np.ndarray:
    """Return a PyTorch tensor of the file ``path`` as a NumPy array.

    Raise :class:`FileFormatError` if the tensor has more bytes than its storage or the file.
    ``name`` is the tensor's name in the message.
    """
    try:
        array = as_numpy(name, tensor)
    except InputError as error:
        raise FileFormatError(f"{path}: {error}") from error
    # PyTorch enlarges the storage of a tensor that claims more than the file has.
    if array.nbytes > (stored := min(tensor.untyped_storage().nbytes(), path.stat().st_size)):
        raise FileFormatError(
            f"{path}: {name!r} of shape {list(array.shape)} has {array.nbytes} bytes, and the file "
            f"{stored} of them: save tensor.contiguous()"
        )
    return array


def _kinds(entries: Mapping[Any, Any]) -> str:
    return listed(entries.items(), show=lambda entry: f"{entry[0]!r} ({type(entry[1]).__name__})")
