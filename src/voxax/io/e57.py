"""E57, the exchange format of terrestrial laser scanners.

Source: ASTM E2807, as read by pye57 (libE57Format).
"""

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from voxax.errors import FileFormatError, import_extra
from voxax.io.columns import cloud_from_columns
from voxax.io.decoding import check_count, reading
from voxax.io.e57_xml import check_e57
from voxax.io.items import ITEM, chosen_items
from voxax.io.options import ReadOptions
from voxax.io.point_cloud import PointCloud

CARTESIAN = ("cartesianX", "cartesianY", "cartesianZ")
SPHERICAL = ("sphericalRange", "sphericalAzimuth", "sphericalElevation")
NAMES = dict(zip(CARTESIAN, "xyz", strict=True)) | {
    "colorRed": "red",
    "colorGreen": "green",
    "colorBlue": "blue",
    "timeStamp": "time",
    "nor:normalX": "nx",
    "nor:normalY": "ny",
    "nor:normalZ": "nz",
}
INVALID = ("cartesianInvalidState", "sphericalInvalidState")
BLOCK = 1_000_000


def read_e57(path: Path, options: ReadOptions) -> PointCloud:
    """Read the scans of an E57 file, each turned and shifted by its pose.

    Points that the scanner marked as invalid are left out. Colors become ``rgb``, the other
    fields of points (``intensity``, ``rowIndex``, ...) are attributes. Where there is more than
    one scan, the attribute ``item`` has the number of each point's scan; ``options.item`` takes
    one. A field that some scans lack is left out.

    Raises:
        FileFormatError: the file is broken or cut short, a scan has no positions,
            or ``options.item`` is no scan of it.
        MissingExtraError: pye57 is not installed.
    """
    pye57 = import_extra("reading .e57", "e57", "pye57")
    with reading(path, "E57"):
        check_e57(path)
    with reading(path, "E57"), pye57.E57(str(path)) as file:
        scans = []
        chosen = chosen_items(options.item, file.scan_count, str(path))
        for index in chosen:
            scan = _scan(pye57, file, index, path)
            if len(chosen) > 1:
                scan[ITEM] = np.full(len(scan["x"]), index, np.int32)
            scans.append(scan)
        if not scans:
            raise FileFormatError(f"{path} holds no scans")
        names = [name for name in scans[0] if all(name in scan for scan in scans)]
        columns = {name: np.concatenate([scan.pop(name) for scan in scans]) for name in names}
        return cloud_from_columns(columns, str(path), options.label_field)


def _scan(pye57: ModuleType, file: Any, index: int, path: Path) -> dict[str, np.ndarray]:
    header = file.get_header(index)
    # A point takes a bit of the file at least, unless all points are the same.
    check_count(path, "points", header.point_count, 1, 8 * path.stat().st_size)
    read = _fields(pye57, file, header)
    if all(name in read for name in CARTESIAN):
        positions = np.stack([read.pop(name) for name in CARTESIAN], axis=1)
    elif all(name in read for name in SPHERICAL):
        polar = np.stack([read.pop(name) for name in SPHERICAL], axis=1)
        positions = pye57.utils.convert_spherical_to_cartesian(polar)
    else:
        raise FileFormatError(f"scan {index} of {path} has no positions, only {', '.join(read)}")
    if header.has_pose():
        positions = file.to_global(positions, header.rotation, header.translation)
    return {NAMES.get(name, name): values for name, values in read.items()} | dict(
        zip("xyz", positions.T, strict=True)
    )


def _fields(pye57: ModuleType, file: Any, header: Any) -> dict[str, np.ndarray]:
    """Read all fields of numbers, block by block: memory grows with what is there."""
    library = pye57.libe57
    prototype = library.StructureNode(header.points.prototype())
    blocks, buffers = {}, library.VectorSourceDestBuffer()
    for name in header.point_fields:
        dtype = _dtype(library, prototype.get(name))
        if dtype is not None:
            blocks[name] = np.empty(min(BLOCK, header.point_count), dtype)
            buffers.append(
                library.SourceDestBuffer(
                    file.image_file, name, blocks[name], len(blocks[name]), True, True
                )
            )
    parts: dict[str, list[np.ndarray]] = {name: [] for name in blocks}
    if header.point_count:
        reader = header.points.reader(buffers)
        while count := reader.read():
            for name, block in blocks.items():
                parts[name].append(block[:count].copy())
        reader.close()
    for name in INVALID:
        if name in parts:
            valid = [part == 0 for part in parts.pop(name)]
            for others in parts.values():
                others[:] = [part[kept] for part, kept in zip(others, valid, strict=True)]
    return {name: np.concatenate(parts.pop(name) or [np.zeros(0)]) for name in list(parts)}


def _dtype(library: ModuleType, node: Any) -> str | None:
    if node.type() == library.NodeType.E57_INTEGER:
        return "q"
    if node.type() == library.NodeType.E57_SCALED_INTEGER:
        return "d"
    if node.type() == library.NodeType.E57_FLOAT:
        single = library.FloatNode(node).precision() == library.E57_SINGLE
        return "f" if single and node.elementName() not in (*CARTESIAN, *SPHERICAL) else "d"
    return None
