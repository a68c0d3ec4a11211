"""Read ``.pth`` and ``.pt``, tensors and arrays that ``torch.save`` wrote. No code in a file runs.

Source: PyTorch's ``torch.save``.
"""

import pickle
import re
import zipfile
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from voxax.errors import FileFormatError, import_extra
from voxax.interop.pickled_arrays import PickledArray, numpy_globals
from voxax.io.arrays import POINTS, cloud_from_items
from voxax.io.decoding import check_unpacked, reading
from voxax.io.options import ReadOptions
from voxax.io.point_cloud import PointCloud


def read_torch(path: Path, options: ReadOptions) -> PointCloud:
    """Read a point cloud from a ``.pt`` or ``.pth`` file with tensors or NumPy arrays.

    The file has one array, or a dict or list of arrays, which
    :func:`voxax.io.arrays.cloud_from_items` converts to a cloud. ``options.columns`` may name the
    arrays of a list, such as the coordinates, colors and labels of a ScanNet scene. Without names,
    the first array is the positions, and the others are ``array_1``, ``array_2``, ... Only
    tensors, arrays and Python's plain containers and numbers are unpickled.
    """
    torch = import_extra(f"reading {path.suffix.lower()}", "torch", "torch")
    with reading(path, "PyTorch file"):
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                check_unpacked(path, sum(member.file_size for member in archive.infolist()))
        try:
            with torch.serialization.safe_globals(numpy_globals()):
                content = torch.load(path, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:
            other = re.search(r"GLOBAL (\S+)", str(error))
            why = str(error).partition("\n")[0] if other is None else f"it holds {other[1]}"
            raise FileFormatError(
                f"{path} is broken, or holds more than tensors, arrays and plain values, which are "
                f"all that is read: {why}"
            ) from error
        except MemoryError as error:
            raise FileFormatError(
                f"{path} of {path.stat().st_size} bytes asks for more memory than there is"
            ) from error
        named, options = _named(content, options)
        arrays = {
            name: array
            for name, value in named.items()
            if (array := _array(torch, value, path)) is not None
        }
        return cloud_from_items(arrays, str(path), options)


def _named(content: Any, options: ReadOptions) -> tuple[dict[str, Any], ReadOptions]:
    """Return the arrays of a file by name, and the options for their conversion to a cloud.

    `content` is what the file stores: a dict, a list of arrays, or one array. If it is a list and
    ``options.columns`` has names, they name the arrays, and the returned options have no columns.
    """
    if isinstance(content, dict):
        return {str(name): value for name, value in content.items()}, options
    if not isinstance(content, (list, tuple)):
        return {POINTS: content}, options
    names = [POINTS, *(f"array_{index}" for index in range(1, len(content)))]
    if options.columns is not None and not isinstance(options.columns, int):
        if len(options.columns) != len(content):
            raise FileFormatError(
                f"columns {', '.join(options.columns)}: the file holds {len(content)} arrays"
            )
        names, options = list(options.columns), replace(options, columns=None)
    return dict(zip(names, content, strict=True)), options


def _array(torch: ModuleType, value: Any, path: Path) -> np.ndarray | None:
    """Convert a tensor, an array or a list of numbers to a NumPy array; None for other values."""
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided or value.is_quantized or value.is_complex():
            raise FileFormatError(f"{path} holds a tensor that is {value.layout} or {value.dtype}")
        check_unpacked(path, value.numel() * value.element_size())
        value = value.detach().resolve_neg()
        return (value.float() if value.dtype == torch.bfloat16 else value).numpy()
    if isinstance(value, PickledArray):
        return value.values
    if isinstance(value, (list, tuple)):
        value = np.array(value)
    return value if isinstance(value, np.ndarray) and value.dtype.kind in "biufV" else None
