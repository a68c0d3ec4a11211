"""GLB: what is read is read right, and what is not read is an error that names it."""

import base64
import json
import struct

import numpy as np
import pytest

from voxax.errors import FileFormatError
from voxax.io import read

KINDS = {"i1": 5120, "u1": 5121, "i2": 5122, "u2": 5123, "u4": 5125, "f4": 5126}
SHAPES = {1: "SCALAR", 3: "VEC3", 4: "VEC4"}
CORNERS = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 1, 0]], "f4")
FACES = np.array([0, 1, 2, 1, 3, 2], "u2")


class Scene:
    """Describes a scene, one array after the other."""

    def __init__(self, **more):
        self.blob = b""
        self.described = {
            "asset": {"version": "2.0"}, "scene": 0, "scenes": [{"nodes": [0]}],
            "nodes": [{"mesh": 0}], "meshes": [{"primitives": []}],
            "bufferViews": [], "accessors": [], **more,
        }  # fmt: skip

    def view(self, content, **more):
        self.blob += b"\xff" * (-len(self.blob) % 4)  # no zeros, which would hide a wrong place
        view = {"buffer": 0, "byteOffset": len(self.blob), "byteLength": len(content), **more}
        self.blob += content
        self.described["bufferViews"].append(view)
        return len(self.described["bufferViews"]) - 1

    def array(self, values, *, stride=None, offset=0, **more):
        """Add an array [N] or [N, k], its rows `stride` bytes apart; return its number."""
        values = np.asarray(values)
        table = values.reshape(len(values), -1)
        row = table.shape[1] * table.itemsize
        rows = [bytes(one).ljust(stride or row, b"\xee") for one in map(np.ndarray.tobytes, table)]
        spaced = {} if stride is None else {"byteStride": stride}
        accessor = {
            "bufferView": self.view(b"\xdd" * offset + b"".join(rows), **spaced),
            "byteOffset": offset, "componentType": KINDS[values.dtype.str[1:]],
            "count": len(values), "type": SHAPES[table.shape[1]], **more,
        }  # fmt: skip
        self.described["accessors"].append(accessor)
        return len(self.described["accessors"]) - 1

    def part(self, positions, indices=None, *, mesh=0, mode=None, **attributes):
        """Add a primitive of arrays or of numbers of arrays; return it."""
        number = positions if isinstance(positions, int) else self.array(positions)
        part = {"attributes": {"POSITION": number}}
        for name, values in attributes.items():
            part["attributes"][name] = values if isinstance(values, int) else self.array(values)
        if indices is not None:
            part["indices"] = indices if isinstance(indices, int) else self.array(indices)
        if mode is not None:
            part["mode"] = mode
        self.described["meshes"][mesh]["primitives"].append(part)
        return part

    def write(self, path, *, inside=False):
        buffer = {"byteLength": len(self.blob)}
        if inside:
            encoded = base64.b64encode(self.blob).decode()
            buffer["uri"] = "data:application/octet-stream;base64," + encoded
        described = {"buffers": [buffer], **self.described}
        head = json.dumps(described).encode()
        head += b" " * (-len(head) % 4)
        chunks = struct.pack("<I4s", len(head), b"JSON") + head
        if not inside:
            body = self.blob + bytes(-len(self.blob) % 4)
            chunks += struct.pack("<I4s", len(body), b"BIN\0") + body
        path.write_bytes(struct.pack("<4sII", b"glTF", 2, 12 + len(chunks)) + chunks)
        return path


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.glb"


def surface(path, count=4000):
    """The least and the largest position of points on the surface, and the points."""
    cloud = read(path, points=count)
    return cloud.positions.min(0), cloud.positions.max(0), cloud


def check_box(path, low, high):
    found_low, found_high, cloud = surface(path)
    size = max(1e-9, float(np.max(np.subtract(high, low))))
    np.testing.assert_allclose(found_low, low, atol=0.05 * size)
    np.testing.assert_allclose(found_high, high, atol=0.05 * size)
    return cloud


@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("kind", ["i1", "u1", "i2", "u2"])
def test_quantized_positions(path, kind, normalized):
    """KHR_mesh_quantization: c / top for integers that are normalized, at least -1 of signed."""
    scene = Scene(extensionsRequired=["KHR_mesh_quantization"])
    limits = np.iinfo(kind)
    low, high = limits.min, limits.max
    values = np.array([[low, low, 0], [high, low, 0], [low, high, 0]], kind)
    scene.part(scene.array(values, stride=8, normalized=normalized), FACES[:3])
    scene.described["nodes"] = [{"mesh": 0, "scale": [2, 3, 1], "translation": [10, 0, 5]}]
    least, top = (max(low / high, -1), 1) if normalized else (low, high)
    scene.write(path)
    check_box(path, [10 + 2 * least, 3 * least, 5], [10 + 2 * top, 3 * top, 5])


@pytest.mark.parametrize("kind", ["u1", "u2", "f4"])
def test_colors_and_numbers_of_an_application(path, kind):
    top = 1 if kind == "f4" else np.iinfo(kind).max
    colors = np.tile([0.2, 1, 0, 1], (4, 1)) * top
    scene = Scene()
    colored = scene.array(np.rint(colors).astype(kind) if top > 1 else colors.astype(kind))
    half = scene.array(np.full(4, 51, "u1"), normalized=True)
    scene.part(CORNERS, FACES, COLOR_0=colored, _LABEL=np.full(4, 7, "u2"), _HALF=half)
    cloud = read(scene.write(path), points=50)
    assert cloud.attributes["rgb"].tolist() == [[51, 255, 0]] * 50
    assert cloud.labels.tolist() == [7] * 50
    np.testing.assert_allclose(cloud.attributes["HALF"], 0.2)


def test_a_column_that_a_part_lacks_is_left_out(path):
    scene = Scene()
    scene.part(CORNERS, FACES, COLOR_0=np.ones((4, 3), "f4"), _A=np.ones(4, "f4"))
    scene.part(CORNERS + 1, FACES, _A=np.ones(4, "f4"))
    cloud = read(scene.write(path), points=50)
    assert "rgb" not in cloud.attributes
    assert (cloud.attributes["A"] == 1).all()


STRIPE = np.array([[0, 0, 0], [0, 1, 0], [1, 0, 0], [1, 1, 0], [2, 0, 0], [2, 1, 0]], "f4")
FAN = np.array([[0, 0, 0], [2, 0, 0], [2, 1, 0], [1, 1, 0], [0, 1, 0]], "f4")


@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize(
    ("mode", "corners", "triangles"),
    [
        (4, CORNERS[[0, 1, 2, 1, 3, 2]] * [2, 1, 1], 2), (None, CORNERS[FACES] * [2, 1, 1], 2),
        (5, STRIPE, 4), (6, FAN, 3),
    ],
)  # fmt: skip
def test_modes_of_triangles(path, mode, corners, triangles, indexed):
    """A rectangle of 2 by 1, all of it turned one way."""
    corners = corners.astype("f4")
    scene = Scene()
    if indexed:
        scene.part(corners[::-1], np.arange(len(corners) - 1, -1, -1, dtype="u1"), mode=mode)
    else:
        scene.part(corners, mode=mode)
    cloud = check_box(scene.write(path), [0, 0, 0], [2, 1, 0])
    assert set(cloud.attributes["face"].tolist()) == set(range(triangles))
    assert len(np.unique(np.sign(cloud.attributes["normals"][:, 2]))) == 1
    counts = np.histogram(cloud.positions[:, 0], [0, 0.5, 1, 1.5, 2])[0]
    np.testing.assert_allclose(counts, 1000, rtol=0.1)


def test_lines_and_points_beside_a_surface_are_left_out(path):
    scene = Scene()
    scene.part(CORNERS, FACES)
    for mode in (0, 1, 2, 3):
        scene.part(CORNERS + 100, mode=mode)
    check_box(scene.write(path), [0, 0, 0], [1, 1, 0])


@pytest.mark.parametrize("bare", [True, False])
def test_sparse_values(path, bare):
    """Rows of an array, or of zeros, that others replace."""
    scene = Scene()
    raised = CORNERS + np.array([0, 0, 9], "f4")
    number = scene.array(np.where([[True], [False], [False], [False]], raised, -50).astype("f4"))
    accessor = scene.described["accessors"][number]
    if bare:
        del accessor["bufferView"]
    rows = np.arange(1, 4, dtype="u2")
    accessor["sparse"] = {
        "count": 3,
        "indices": {"bufferView": scene.view(rows.tobytes()), "componentType": KINDS["u2"]},
        "values": {"bufferView": scene.view(raised[1:].tobytes())},
    }
    scene.part(number, FACES)
    # The first corner is not replaced.
    check_box(scene.write(path), [0, 0, 0] if bare else [0, 0, 9], [1, 1, 9])


def test_values_apart_and_behind_others(path):
    scene = Scene()
    scene.part(scene.array(CORNERS, stride=20, offset=4), scene.array(FACES, offset=6))
    check_box(scene.write(path), [0, 0, 0], [1, 1, 0])
    check_box(scene.write(path, inside=True), [0, 0, 0], [1, 1, 0])


def test_nodes_below_nodes(path):
    """Also below one with a camera; the same mesh in several places; a mirror."""
    quarter = [0, 0, np.sqrt(0.5), np.sqrt(0.5)]  # x to y
    scene = Scene(
        scenes=[{"nodes": []}, {"nodes": [0, 3]}], scene=1,
        nodes=[
            {"camera": 0, "translation": [10, 0, 0], "children": [1, 2], "mesh": 0},
            {"rotation": quarter, "translation": [0, 0, 1], "mesh": 0},
            {"matrix": [2, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 5, 6, 7, 1], "mesh": 0},
            {"scale": [-1, 1, 1], "mesh": 0}, {"mesh": 0, "translation": [1000, 0, 0]},
        ],
        cameras=[{"type": "perspective", "perspective": {"yfov": 1, "znear": 1}}],
    )  # fmt: skip
    scene.part(CORNERS, FACES)
    cloud = read(scene.write(path), points=9000)
    boxes = [([10, 0, 0], [11, 1, 0]), ([9, 0, 1], [10, 1, 1]), ([15, 6, 7], [17, 7, 7]),
             ([-1, 0, 0], [0, 1, 0])]  # fmt: skip
    inside = [
        ((cloud.positions >= np.subtract(low, 1e-9)) & (cloud.positions <= np.add(high, 1e-9))).all(
            axis=1
        )
        for low, high in boxes
    ]
    assert np.sum(inside, axis=0).tolist() == [1] * len(cloud)
    np.testing.assert_allclose([each.sum() for each in inside], [1800, 1800, 3600, 1800], atol=3)
    # No face turns around, in a mirror neither.
    np.testing.assert_allclose(cloud.attributes["normals"], [[0, 0, 1]] * len(cloud), atol=1e-6)
    del scene.described["scenes"], scene.described["scene"]
    assert read(scene.write(path)).positions.max() > 999


def test_a_file_without_a_scene_index_shows_the_first(path):
    scene = Scene(scenes=[{"nodes": [0]}, {"nodes": []}])
    del scene.described["scene"]
    scene.part(CORNERS, FACES)
    check_box(scene.write(path), [0, 0, 0], [1, 1, 0])


@pytest.mark.parametrize(
    "name",
    [
        "KHR_draco_mesh_compression", "EXT_meshopt_compression", "KHR_meshopt_compression",
        "EXT_mesh_gpu_instancing", "EXT_structural_metadata", "KHR_gaussian_splatting",
        "ACME_anything", "KHR_mesh_quantization_2", "khr_mesh_quantization",
    ],
)  # fmt: skip
def test_a_required_extension_that_is_not_read_is_named(path, name):
    scene = Scene(extensionsRequired=["KHR_mesh_quantization", name], extensionsUsed=[name])
    scene.part(CORNERS, FACES)
    with pytest.raises(FileFormatError, match=f"requires {name}, which is not read"):
        read(scene.write(path))


@pytest.mark.parametrize(
    "name",
    [
        "KHR_materials_unlit", "KHR_texture_basisu", "EXT_texture_webp", "KHR_texture_transform",
        "KHR_lights_punctual", "KHR_xmp_json_ld",
    ],
)  # fmt: skip
def test_extensions_of_light_and_materials_change_no_surface(path, name):
    scene = Scene(extensionsRequired=[name])
    scene.part(CORNERS, FACES)
    check_box(scene.write(path), [0, 0, 0], [1, 1, 0])


DRACO = {"KHR_draco_mesh_compression": {"bufferView": 0, "attributes": {"POSITION": 0}}}


@pytest.mark.parametrize("lacking", ["POSITION", "indices"])
def test_a_part_that_only_an_extension_stores_is_named(path, lacking):
    """Required by nothing: one plain part beside it does not hide it."""
    scene = Scene(extensionsUsed=list(DRACO))
    scene.part(CORNERS, FACES)
    part = scene.part(CORNERS + 5, FACES)
    part["extensions"] = DRACO
    number = part["indices"] if lacking == "indices" else part["attributes"]["POSITION"]
    whole = scene.described["accessors"][number]
    check_box(scene.write(path), [0, 0, 0], [6, 6, 5])  # stored twice: plainly too
    scene.described["accessors"][number] = {k: v for k, v in whole.items() if k != "bufferView"}
    with pytest.raises(FileFormatError, match="only by KHR_draco_mesh_compression"):
        read(scene.write(path))


def test_copies_of_a_mesh_and_buffers_of_extensions_are_named(path):
    scene = Scene()
    scene.part(CORNERS, FACES)
    scene.described["nodes"][0]["extensions"] = {"EXT_mesh_gpu_instancing": {"attributes": {}}}
    with pytest.raises(FileFormatError, match="copies by EXT_mesh_gpu_instancing"):
        read(scene.write(path))
    scene = Scene()
    scene.part(CORNERS, FACES)
    packed = {"EXT_meshopt_compression": {"fallback": True}}
    scene.described["buffers"] = [{"byteLength": 9}, {"byteLength": 60, "extensions": packed}]
    scene.described["bufferViews"][0]["buffer"] = 1
    with pytest.raises(
        FileFormatError, match=r"in no place .EXT_meshopt_compression, which is not"
    ):
        read(scene.write(path))
    scene.described["buffers"][1] = {"byteLength": 60, "uri": "positions.bin"}
    with pytest.raises(FileFormatError, match=r"in another file, 'positions\.bin'"):
        read(scene.write(path))


def _nodes(scene, nodes):
    scene.described["nodes"] = nodes


BROKEN = {
    "names vertex 9 of 4": lambda s: s.part(CORNERS, np.array([0, 1, 9], "u2")),
    "indices are float32": lambda s: s.part(CORNERS, np.array([0, 1, 2], "f4")),
    "mode 9": lambda s: s.part(CORNERS, FACES, mode=9),
    "no VEC3": lambda s: s.part(np.ones((3, 4), "f4")),
    "stands in two places": lambda s: _nodes(s, [{"mesh": 0, "children": [0]}]),
    "IndexError": lambda s: _nodes(s, [{"mesh": 3}]),
    "counts nothing": lambda s: _nodes(s, [{"mesh": -1}]),
    "bytes of a view": lambda s: s.described["bufferViews"][0].update(byteLength=10**12),
    "bytes of an array": lambda s: s.described["accessors"][0].update(count=10**6),
    "bytes lie 2 apart": lambda s: s.described["bufferViews"][0].update(byteStride=2),
}


@pytest.mark.parametrize("message", BROKEN)
def test_broken_files(path, message):
    scene = Scene()
    scene.part(CORNERS, FACES)
    BROKEN[message](scene)
    with pytest.raises(FileFormatError, match=message):
        read(scene.write(path))


def test_copies_beyond_all_measure_are_refused(path):
    scene = Scene()
    scene.part(np.zeros((5000, 3), "f4"), np.zeros(9000, "u2"))
    _nodes(scene, [{"mesh": 0}] * 2000)
    scene.described["scenes"] = [{"nodes": list(range(2000))}]
    with pytest.raises(FileFormatError, match="bytes of values, at most"):
        read(scene.write(path))
