"""Read GLB files: the triangles or the points of a glTF scene in one binary file.

Source: Khronos, "glTF 2.0 Specification" and the extension KHR_mesh_quantization.
"""

import base64
import binascii
import json
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from voxax.errors import FileFormatError, listed
from voxax.io.columns import cloud_from_columns
from voxax.io.decoding import check_count, unpacked_limit
from voxax.io.point_cloud import PointCloud
from voxax.io.poses import Pose
from voxax.io.surface import fan_triangles, strip_triangles

HEADER = struct.Struct("<4sII")  # "glTF", the version, and the length of the file
MAGIC, VERSION = b"glTF", 2
CHUNK = struct.Struct("<I4s")
JSON, BINARY = b"JSON", b"BIN\0"
COMPONENTS = {5120: "<i1", 5121: "<u1", 5122: "<i2", 5123: "<u2", 5125: "<u4", 5126: "<f4"}
WIDTHS = {"SCALAR": 1, "VEC2": 2, "VEC3": 3, "VEC4": 4, "MAT2": 4, "MAT3": 9, "MAT4": 16}
POINTS, LINES, TRIANGLES, STRIP, FAN = 0, (1, 2, 3), 4, 5, 6

# Extensions that a file may require. Only positions, colors and numbers of vertices are read. The
# first extension defines how they are stored. The others are about light, materials, textures and
# descriptions, and are ignored.
DONE = "KHR_mesh_quantization"
WITHOUT_GEOMETRY = re.compile(
    "KHR_materials_.*|(KHR|EXT|MSFT)_texture_.*|(KHR|EXT)_lights_.*|KHR_xmp.*"
)
# An extension that defines copies of a mesh.
INSTANCES = "EXT_mesh_gpu_instancing"


def load_glb(path: Path, label_field: str | None = None) -> tuple[PointCloud, np.ndarray]:
    """Read a GLB file; return its V vertices as a cloud, and its T triangles, int64 [T, 3].

    A triangle is three row numbers of vertices. T is 0 if the file has only points. Meshes are
    moved to the frame of the scene. Lines are left out; if there are triangles, points are left out
    too. Colors and application-specific attributes are left out unless all mesh primitives that are
    read have them. `label_field` is the name of the attribute with the labels.
    """
    file = _File(path, *_chunks(path))
    file.check_extensions()
    parts = list(file.parts())
    surfaces = [part for part in parts if part.triangles is not None]
    chosen = surfaces or parts
    vertices = _joined(path, chosen, label_field)
    starts = np.cumsum([0, *(len(part.positions) for part in chosen)])
    triangles = [
        start + part.triangles
        for start, part in zip(starts, chosen, strict=False)
        if part.triangles is not None
    ]
    return vertices, np.concatenate([np.zeros((0, 3), np.int64), *triangles])


@dataclass
class _Part:
    positions: np.ndarray  # in the scene, float64 [V, 3]
    triangles: np.ndarray | None  # int64 [T, 3]; None for a cloud of points
    columns: dict[str, np.ndarray]
    colors: np.ndarray | None  # uint8 [V, 3]


def _joined(path: Path, parts: list[_Part], label_field: str | None) -> PointCloud:
    positions = np.concatenate([np.zeros((0, 3)), *(part.positions for part in parts)])
    columns = dict(zip("xyz", positions.T, strict=True))
    for name in parts[0].columns if parts else ():
        values = [part.columns[name] for part in parts if name in part.columns]
        if len(values) == len(parts) and len({value.shape[1:] for value in values}) == 1:
            columns[name] = np.concatenate(values)
    vertices = cloud_from_columns(columns, str(path), label_field)
    colors = [part.colors for part in parts if part.colors is not None]
    if parts and len(colors) == len(parts):
        vertices.attributes["rgb"] = np.concatenate(colors)
    return vertices


def _chunks(path: Path) -> tuple[dict[str, Any], bytes | None]:
    """Return a GLB file's JSON description, and its binary chunk (None if the file has none).

    Bytes beyond the length in the file's header are ignored.
    """
    content = path.read_bytes()
    size, at = len(content), HEADER.size
    found: dict[bytes, bytes] = {}
    if size >= at:
        magic, version, length = HEADER.unpack_from(content)
        if magic == MAGIC and version != VERSION:
            raise FileFormatError(f"{path} is glTF of version {version}: {VERSION} is read")
        content = content[:length]  # bytes after the end are ignored
        while at + CHUNK.size <= len(content):
            length, kind = CHUNK.unpack_from(content, at)
            at += CHUNK.size
            check_count(path, "bytes of a chunk", length, 1, len(content) - at)
            found.setdefault(kind, content[at : at + length])
            at += length
    if JSON not in found:
        raise FileFormatError(f"{path} is cut short: its {size} bytes hold no part of a scene")
    described = json.loads(found[JSON])
    if not isinstance(described, dict):
        raise FileFormatError(f"{path} is broken: its description is no object")
    return described, found.get(BINARY)


@dataclass
class _File:
    path: Path
    described: dict[str, Any]
    binary: bytes | None
    read: dict[int, np.ndarray] = field(default_factory=dict)
    decoded: dict[int, bytes] = field(default_factory=dict)
    taken: int = 0  # bytes of values

    def check_extensions(self) -> None:
        """Raise FileFormatError if the file requires a glTF extension that is not supported.

        Without the extension, parts would be missing or misplaced.
        """
        required = self.described.get("extensionsRequired", [])
        unknown = [n for n in required if n != DONE and not WITHOUT_GEOMETRY.fullmatch(str(n))]
        if unknown:
            raise FileFormatError(
                f"{self.path} requires {listed(sorted(unknown), show=str)}, which is not read: "
                "export it without, or as .ply"
            )

    def parts(self) -> Iterator[_Part]:
        """Yield the vertices and triangles of each mesh primitive, in the frame of the scene."""
        meshes, nodes = self._all("meshes"), self._all("nodes")
        for number, matrix in self._placed(nodes):
            node = nodes[number]
            if "mesh" not in node:
                continue
            if INSTANCES in node.get("extensions", {}):
                raise FileFormatError(
                    f"node {number} of {self.path} has copies by {INSTANCES}, which is not read: "
                    "export it without"
                )
            for primitive in meshes[_index(node["mesh"])]["primitives"]:
                if (part := self._part(primitive, matrix)) is not None:
                    yield part

    def _all(self, name: str) -> list[dict[str, Any]]:
        return self.described.get(name, [])

    def _placed(self, nodes: list[dict[str, Any]]) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the index of each node in the scene, and the matrix [4, 4] from node to scene.

        `nodes` are all nodes of the file. If the file defines no scene, all nodes are yielded.
        """
        scenes = self._all("scenes")
        if scenes:
            roots = scenes[_index(self.described.get("scene", 0))].get("nodes", [])
        else:
            below = {child for node in nodes for child in node.get("children", [])}
            roots = [number for number in range(len(nodes)) if number not in below]
        waiting = [(_index(root), np.eye(4)) for root in reversed(roots)]
        seen: set[int] = set()
        while waiting:
            number, above = waiting.pop()
            if number in seen:
                raise FileFormatError(f"{self.path} is broken: node {number} stands in two places")
            seen.add(number)
            matrix = above @ _matrix(nodes[number])
            yield number, matrix
            children = nodes[number].get("children", [])
            waiting += [(_index(child), matrix) for child in reversed(children)]

    def _part(self, primitive: dict[str, Any], matrix: np.ndarray) -> _Part | None:
        mode, named = primitive.get("mode", TRIANGLES), primitive["attributes"]
        if mode in LINES or "POSITION" not in named:
            return None  # without positions nothing is drawn
        if mode not in (POINTS, TRIANGLES, STRIP, FAN):
            raise FileFormatError(f"{self.path} is broken: a primitive has mode {mode!r:.40}")
        self._check_stored(primitive)
        positions = self._accessor(named["POSITION"]).astype(np.float64)
        if positions.shape[1:] != (3,):
            raise FileFormatError(f"{self.path} is broken: its positions are no VEC3")
        self._take(positions.nbytes)
        placed = positions @ matrix[:3, :3].T + matrix[:3, 3]
        triangles = None
        if mode != POINTS:
            triangles = self._triangles(primitive, mode, len(placed))
            self._take(triangles.nbytes)
            if np.linalg.det(matrix[:3, :3]) < 0:  # mirroring reverses the order of corners
                triangles = triangles[:, ::-1]
        columns: dict[str, np.ndarray] = {}
        for name, number in named.items():
            values = self._accessor(number) if name.startswith("_") else np.zeros((0, 1))
            if len(values) == len(placed) > 0:
                # Attributes of an application begin with an underscore.
                columns[name.lstrip("_")] = values[:, 0] if values.shape[1] == 1 else values
        colors = None
        if "COLOR_0" in named:
            values = self._accessor(named["COLOR_0"], normalized=True)
            if len(values) == len(placed) and values.shape[1] >= 3:
                colors = np.rint(np.clip(np.nan_to_num(values[:, :3]), 0, 1) * 255).astype(np.uint8)
        return _Part(placed, triangles, columns, colors)

    def _check_stored(self, primitive: dict[str, Any]) -> None:
        """Raise FileFormatError if a primitive's positions or indices are not in the file's arrays.

        They may then be stored by a glTF extension, such as a compression, which is not read.
        """
        accessors = self._all("accessors")
        used = [primitive["attributes"]["POSITION"], primitive.get("indices")]
        stored = [
            accessors[_index(n)].keys() & {"bufferView", "sparse"} for n in used if n is not None
        ]
        if not all(stored):
            named = listed(sorted(primitive.get("extensions", {})), show=str)
            by = f", only by {named}, which is not read: export it without" if named else ""
            raise FileFormatError(f"a part of {self.path} is not stored in it{by}")

    def _triangles(self, primitive: dict[str, Any], mode: int, count: int) -> np.ndarray:
        if "indices" in primitive:
            corners = self._accessor(primitive["indices"])[:, 0]
            if corners.dtype.kind != "u":
                raise FileFormatError(f"{self.path} is broken: its indices are {corners.dtype}")
            corners = corners.astype(np.int64)
        else:
            corners = np.arange(count)
        if len(corners) and corners.max() >= count:
            raise FileFormatError(
                f"{self.path} is broken: a triangle names vertex {corners.max()} of {count}"
            )
        if mode == STRIP:
            return strip_triangles([corners])
        if mode == FAN:
            return fan_triangles([corners])
        return corners[: len(corners) // 3 * 3].reshape(-1, 3)

    def _accessor(self, number: Any, normalized: bool | None = None) -> np.ndarray:
        """Return the values [N, k] of the accessor (an array of the file) with the index `number`.

        If `normalized`, integers are converted to floats in 0..1, or -1..1 for signed integers.
        If `normalized` is None, the flag ``normalized`` in the file decides about this.
        """
        described = self._all("accessors")[_index(number)]
        if number not in self.read:
            self.read[number] = self._values(described)
        values = self.read[number]
        if normalized is None:
            normalized = described.get("normalized", False)
        if not normalized or values.dtype.kind == "f":
            return values
        top = np.iinfo(values.dtype).max
        return np.maximum(values.astype(np.float64) / top, -1.0)

    def _values(self, described: dict[str, Any]) -> np.ndarray:
        dtype = np.dtype(COMPONENTS[described["componentType"]])
        count, width = _index(described["count"]), WIDTHS[described["type"]]
        self._take(count * width * dtype.itemsize)
        if "bufferView" in described:
            values = self._stored(described, dtype, count, width)
        else:
            values = np.zeros((count, width), dtype)
        if "sparse" in described:
            changed = described["sparse"]
            number = _index(changed["count"])
            whole = np.dtype(COMPONENTS[changed["indices"]["componentType"]])
            rows = self._stored(changed["indices"], whole, number, 1)[:, 0]
            if whole.kind != "u" or (number and rows.max() >= count):
                raise FileFormatError(f"{self.path} is broken: a sparse value is of no row")
            values = values.copy()
            values[rows] = self._stored(changed["values"], dtype, number, width)
        return values

    def _take(self, size: int) -> None:
        """Add `size` to the number of bytes decoded so far; raise FileFormatError above the limit.

        The limit is needed because a few bytes of a file can declare any number of zeros or copies.
        """
        self.taken += size
        most = unpacked_limit(self.path.stat().st_size)
        check_count(self.path, "bytes of values", self.taken, 1, most, exact=False)

    def _stored(
        self, described: dict[str, Any], dtype: np.dtype, count: int, width: int
    ) -> np.ndarray:
        """Return an array [count, width] of type `dtype` from a part of the file's binary data.

        The part is a glTF buffer view. `described` is a JSON object with the index of the view, and
        the offset of the array in the view in bytes.
        """
        view = self._all("bufferViews")[_index(described["bufferView"])]
        content = self._buffer(_index(view["buffer"]))
        start, size = _index(view.get("byteOffset", 0)), _index(view["byteLength"])
        check_count(self.path, "bytes of a view", start + size, 1, len(content))
        offset, row = _index(described.get("byteOffset", 0)), width * dtype.itemsize
        stride = _index(view.get("byteStride", 0)) or row
        if stride < row:
            raise FileFormatError(f"{self.path} is broken: {row} bytes lie {stride} apart")
        if count == 0:
            return np.zeros((0, width), dtype)
        needed = offset + (count - 1) * stride + row
        check_count(self.path, "bytes of an array", needed, 1, size)
        inside = memoryview(content)[start : start + size]
        return np.ndarray((count, width), dtype, inside, offset, (stride, dtype.itemsize))

    def _buffer(self, number: int) -> bytes:
        buffer = self._all("buffers")[number]
        uri = buffer.get("uri")
        if uri is None and number == 0 and self.binary is not None:
            return self.binary
        head, _, encoded = str(uri or "").partition(",")
        if number in self.decoded:
            return self.decoded[number]
        if head.startswith("data:") and head.endswith(";base64"):
            try:
                self.decoded[number] = base64.b64decode(encoded, validate=True)
                return self.decoded[number]
            except binascii.Error as error:
                raise FileFormatError(f"{self.path} is broken: buffer {number}: {error}") from error
        where = "in no place" if uri is None else f"in another file, {str(uri)[:60]!r}"
        named = listed(sorted(buffer.get("extensions", {})), show=str)
        by = f" ({named}, which is not read)" if named else ""
        raise FileFormatError(f"buffer {number} of {self.path} lies {where}{by}: export one file")


def _index(number: Any) -> int:
    """Return `number` if it is a non-negative integer; raise ValueError otherwise."""
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise ValueError(f"{number!r:.40} counts nothing")
    return number


def _matrix(node: dict[str, Any]) -> np.ndarray:
    """Return the matrix [4, 4] of a node, which multiplies column vectors.

    A node has it as ``matrix``, or has a translation, a rotation and a scale to compute it from.
    """
    if "matrix" in node:
        return np.array(node["matrix"], np.float64).reshape(4, 4).T
    x, y, z, w = node.get("rotation", (0, 0, 0, 1))
    pose = Pose.from_quaternion((w, x, y, z), node.get("translation", (0, 0, 0)))
    matrix = np.eye(4)
    matrix[:3, :3] = pose.rotation * np.array(node.get("scale", (1, 1, 1)), np.float64)
    matrix[:3, 3] = pose.translation
    return matrix
