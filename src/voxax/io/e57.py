"""Read E57 files, the exchange format of terrestrial laser scanners.

pye57 (libE57Format) reads the scans. This module first checks pages, header and the type of each
XML element, for two reasons: some broken files (a list of points without a prototype) make the
library end the process, and the library expands XML entities, even from other files.

Source: ASTM E2807.
"""

import struct
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

import numpy as np

from voxax.errors import FileFormatError, import_extra
from voxax.io.arrays import chosen_items, joined_items
from voxax.io.columns import cloud_from_columns
from voxax.io.decoding import check_count, reading
from voxax.io.options import ReadOptions
from voxax.io.point_cloud import PointCloud

# Signature, major and minor version, physical length, offset and length of the XML, page size.
HEADER = struct.Struct("<8sIIQQQQ")
SIGNATURE = b"ASTM-E57"
PAGE, CHECKSUM = 1024, 4
# The types that a field of points may have, and the types of all elements.
FIELDS = {"Integer", "ScaledInteger", "Float", "String"}
TYPES = FIELDS | {"Structure", "Vector", "CompressedVector", "Blob"}
# Limit for the nesting of elements: points are at depth four, and libraries traverse recursively.
DEEPEST = 50


def check_e57(path: Path) -> None:
    """Raise FileFormatError if the XML structure or the point counts of an E57 file are invalid."""
    root = _parsed(path, _xml(path))
    if root.tag != "e57Root" or _type(root) != "Structure":
        _refuse(path, root, "is no e57Root of the type Structure")
    size = path.stat().st_size
    waiting = [root]
    while waiting:
        element = waiting.pop()
        if _type(element) not in TYPES:
            _refuse(path, element, f"has the type {_type(element)[:40]!r}")
        if _type(element) in FIELDS | {"Blob"} and len(element):
            _refuse(path, element, f"is a {_type(element)}, with others inside")
        if _type(element) == "CompressedVector":
            _check_points(path, element, size)
        waiting += element


def _check_points(path: Path, points: Element, size: int) -> None:
    for name in ("fileOffset", "recordCount"):
        number = points.get(name, "0" if name == "recordCount" else "")
        if not number.removeprefix("-").isdecimal():
            _refuse(path, points, f"has {name}={number[:40]!r}")
    start, records = int(points.get("fileOffset", "")), points.get("recordCount", "0")
    check_count(path, "points", int(records), 1, 8 * size, exact=False)
    if int(records):
        check_count(path, "bytes before its points", start, 1, size)
    for name, kind in (("prototype", "Structure"), ("codecs", "Vector")):
        found = [_type(element) for element in points.findall(name)]
        if found != [kind]:
            _refuse(path, points, f"has {len(found)} {name} {found}, not one {kind}")
    (prototype,) = points.findall("prototype")
    if not len(prototype):
        _refuse(path, prototype, "names no field")
    for one in prototype:
        if _type(one) not in FIELDS:
            _refuse(path, one, f"is a field of the type {_type(one)[:40]!r}")


def _refuse(path: Path, element: Element, why: str) -> None:
    raise FileFormatError(f"{path} is broken: its element {element.tag[:80]!r} {why}")


def _xml(path: Path) -> bytes:
    """Return the XML part of an E57 file, without the checksum at the end of each page."""
    size = path.stat().st_size
    with path.open("rb") as stream:
        head = stream.read(HEADER.size)
        if len(head) < HEADER.size or not head.startswith(SIGNATURE):
            raise FileFormatError(f"{path} is no E57 file: it does not begin with ASTM-E57")
        _, _, _, _, begin, length, page = HEADER.unpack(head)
        if page != PAGE:
            raise FileFormatError(f"{path} has pages of {page} bytes: {PAGE} are read")
        check_count(path, "bytes before its XML", begin, 1, size)
        check_count(path, "bytes of XML", length, 1, size - begin)
        stream.seek(begin // PAGE * PAGE)
        at = begin % PAGE
        content = bytearray()
        while len(content) < at + length and (block := stream.read(PAGE)):
            content += block[: PAGE - CHECKSUM]
    check_count(path, "bytes of XML", length, 1, len(content) - at)
    return bytes(content[at : at + length])


def _parsed(path: Path, xml: bytes) -> Element:
    if b"\0" in xml:
        raise FileFormatError(f"{path} has XML of another encoding than UTF-8")
    builder, above = TreeBuilder(), list[str]()
    parser = expat.ParserCreate("UTF-8")

    def begin(name: str, attributes: dict[str, str]) -> None:
        above.append(name)
        if len(above) > DEEPEST:
            raise FileFormatError(f"{path}: its XML has more than {DEEPEST} elements in another")
        builder.start(name, attributes)

    def end(name: str) -> None:
        above.pop()
        builder.end(name)

    def declared(_: str, encoding: str | None, __: int) -> None:
        # In another encoding, this parser and the library could read different text.
        if (encoding or "UTF-8").upper() != "UTF-8":
            raise FileFormatError(f"{path} has XML of the encoding {encoding}, not UTF-8")

    def declares(*_: object) -> None:
        raise FileFormatError(f"{path} declares a document type, which no E57 file has")

    parser.StartElementHandler, parser.EndElementHandler = begin, end
    parser.XmlDeclHandler, parser.StartDoctypeDeclHandler = declared, declares
    try:
        parser.Parse(xml, True)
    except expat.ExpatError as error:
        raise FileFormatError(f"{path} is broken: its XML: {error}") from error
    return builder.close()


def _type(element: Element) -> str:
    return element.get("type", "")


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
    """Read the scans of an E57 file into one cloud; each scan is rotated and shifted by its pose.

    Points that the scanner marked as invalid are left out. Colors become ``rgb``, and the other
    fields of points (``intensity``, ``rowIndex``, ...) become attributes. A field that some scans
    lack is left out. If several scans are read, the attribute ``item`` is the index of each point's
    scan. ``options.item`` is the index of the only scan to read; None reads all scans.
    """
    pye57 = import_extra("reading .e57", "e57", "pye57")
    with reading(path, "E57"):
        check_e57(path)
    with reading(path, "E57"), pye57.E57(str(path)) as file:
        chosen = chosen_items(options.item, file.scan_count, str(path))
        scans = [_scan(pye57, file, index, path) for index in chosen]
        if not scans:
            raise FileFormatError(f"{path} holds no scans")
        return cloud_from_columns(joined_items(scans, chosen), str(path), options.label_field)


def _scan(pye57: ModuleType, file: Any, index: int, path: Path) -> dict[str, np.ndarray]:
    header = file.get_header(index)
    # A point takes at least one bit of the file, unless all points are the same.
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
    """Return the numeric fields of a scan's valid points: arrays [N] by the name of the field.

    `header` is the scan's header in the open file `file`. Fields are read block by block, because
    the number of points in the header may be wrong.
    """
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
