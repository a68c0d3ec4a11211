"""Broken files for every reader: small files, their mutations, and guarded processes to read them.

``python tests/io/fuzz.py [MUTATIONS [FILE ...]]`` reads that many mutations (2,000) of every file,
and says for each file how many were read, the longest time, and the most memory.

A reader may refuse a file with an error of voxax. It may not raise anything else, take more than
5 s of a processor, or take more memory than 100 times the file and 50 MB.
"""

import faulthandler
import functools
import gzip
import io
import json
import os
import re
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

MUTATIONS = 2000
SECONDS = 5
# Of the clock, on a machine that has other things to do.
HANG_SECONDS = 60
BYTES_PER_BYTE, BYTES = 100, 50 << 20
# Beyond what is allowed, so that a reader that takes more is seen and stopped.
ADDRESS_SPACE = 2 << 30
POINTS = np.stack([np.arange(12) * 0.5, np.arange(12) ** 2 % 7, np.arange(12) / 7], axis=1)
HUGE = (2**31 - 1, 2**32 - 1, 10**12, 2**63 - 1, 10**25, -1, 0, 65535)


def _las(version: str, layout: int, suffix: str) -> bytes:
    import laspy

    header = laspy.LasHeader(point_format=layout, version=version)
    header.add_extra_dim(laspy.ExtraBytesParams("tree", "f4"))
    header.scales = [0.001] * 3
    data = laspy.LasData(header)
    data.x, data.y, data.z = POINTS.T
    data.classification = np.arange(12) % 5
    data.tree = np.arange(12)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a" + suffix)
        data.write(path)
        return path.read_bytes()


def _text(rows: np.ndarray) -> str:
    return "".join(" ".join(f"{value:g}" for value in row) + "\n" for row in rows)


def _ply(layout: str, faces: str, body: bytes) -> bytes:
    columns = "".join(f"property float {name}\n" for name in "xyz") + "property uchar label\n"
    return (
        f"ply\nformat {layout} 1.0\ncomment made by code\nelement vertex 12\n"
        f"{columns}{faces}end_header\n"
    ).encode() + body


def _vertices(order: str) -> bytes:
    return b"".join(struct.pack(order + "3fB", *row, 3) for row in POINTS)


def _pcd(layout: str, body: bytes) -> bytes:
    return (
        "# .PCD v0.7 - Point Cloud Data file format\nVERSION 0.7\nFIELDS x y z rgb label normal\n"
        "SIZE 4 4 4 4 2 4\nTYPE F F F U U F\nCOUNT 1 1 1 1 1 3\nWIDTH 12\nHEIGHT 1\n"
        f"VIEWPOINT 0 0 0 1 0 0 0\nPOINTS 12\nDATA {layout}\n"
    ).encode() + body


def _pcd_columns() -> list[bytes]:
    parts = [POINTS[:, axis].astype("<f4").tobytes() for axis in range(3)]
    rest = [np.full(12, 0x40C080, "<u4"), np.arange(12, dtype="<u2"), np.ones((12, 3), "<f4")]
    return parts + [values.tobytes() for values in rest]


def _pcd_rows() -> bytes:
    sizes, parts = (4, 4, 4, 4, 2, 12), _pcd_columns()
    return b"".join(
        part[row * size : (row + 1) * size]
        for row in range(12)
        for size, part in zip(sizes, parts, strict=True)
    )


def _compressed(content: bytes) -> bytes:
    # LZF in literal runs of at most 32 bytes.
    runs = [content[at : at + 32] for at in range(0, len(content), 32)]
    packed = b"".join(bytes([len(run) - 1]) + run for run in runs)
    return struct.pack("<II", len(packed), len(content)) + packed


def _npz(save: Callable[..., None]) -> bytes:
    stream = io.BytesIO()
    save(stream, xyz=POINTS, label=np.arange(12), rgb=np.zeros((12, 3), np.uint8), pose=np.eye(4))
    return stream.getvalue()


def _npy() -> bytes:
    stream = io.BytesIO()
    np.save(stream, POINTS.astype(np.float32))
    return stream.getvalue()


def _stl() -> bytes:
    rows = b"".join(
        struct.pack("<12fH", 0, 0, 1, *POINTS[row : row + 3].flat, 0) for row in range(4)
    )
    return bytes(80) + struct.pack("<I", 4) + rows


def _stl_text() -> bytes:
    facet = "facet normal 0 0 1\nouter loop\n{}endloop\nendfacet\n"
    corners = "".join(f"vertex {line}\n" for line in _text(POINTS[:3]).splitlines())
    return ("solid a\n" + facet.format(corners) * 4 + "endsolid a\n").encode()


def _obj() -> bytes:
    corners = "".join(f"v {line}\n" for line in _text(POINTS).splitlines())
    return (corners + "f 1 2 3\nf 4//1 5//1 6//1 7//1\n").encode()


def _ptx() -> bytes:
    pose = "1 2 3\n1 0 0\n0 1 0\n0 0 1\n1 0 0 0\n0 1 0 0\n0 0 1 0\n1 2 3 1\n"
    colored = np.column_stack([POINTS, np.full((12, 4), 7)])
    return (f"3\n4\n{pose}" + _text(colored) + f"6\n2\n{pose}" + _text(ROWS)).encode()


def _off() -> bytes:
    corners = np.hstack([POINTS[:4], np.full((4, 4), 9)])
    return f"COFF\n4 2 0\n{_text(corners)}3 0 1 2\n3 1 2 3 1 0 0\n".encode()


def _glb() -> bytes:
    views = [{"buffer": 0, "byteOffset": 0, "byteLength": 144}]
    views.append({"buffer": 0, "byteOffset": 144, "byteLength": 24})
    described = {
        "asset": {"version": "2.0"},
        "scene": 0,
        "scenes": [{"nodes": [0, 1]}],
        "nodes": [{"mesh": 0}, {"mesh": 1, "translation": [1, 2, 3]}],
        "meshes": [
            {"primitives": [{"attributes": {"POSITION": 0}, "indices": 1}]},
            {"primitives": [{"attributes": {"POSITION": 0}, "mode": 0}]},
        ],
        "buffers": [{"byteLength": 168}],
        "bufferViews": views,
        "accessors": [
            {"bufferView": 0, "componentType": 5126, "count": 12, "type": "VEC3",
             "min": [0, 0, 0], "max": [6, 5, 2]},
            {"bufferView": 1, "componentType": 5123, "count": 12, "type": "SCALAR"},
        ],
    }  # fmt: skip
    head = json.dumps(described).encode()
    head += b" " * (-len(head) % 4)
    body = POINTS.astype("<f4").tobytes() + np.arange(12, dtype="<u2").tobytes()
    chunks = struct.pack("<I4s", len(head), b"JSON") + head
    chunks += struct.pack("<I4s", len(body), b"BIN\0") + body
    return struct.pack("<4sII", b"glTF", 2, 12 + len(chunks)) + chunks


def _hdf5(fill: Callable[..., None]) -> bytes:
    import h5py

    stream = io.BytesIO()
    with h5py.File(stream, "w") as file:
        fill(file)
    return stream.getvalue()


def _modelnet(file: Any) -> None:
    file["data"], file["label"] = POINTS.reshape(3, 4, 3).astype("f4"), np.arange(3)[:, None]
    file.create_dataset("normal", data=np.ones((3, 4, 3)), compression="gzip")


def _chamber(file: Any) -> None:
    import h5py

    stored = file.create_dataset("point", (2,), h5py.vlen_dtype(np.float32))
    stored[0], stored[1] = np.arange(16), np.arange(24)
    stored = file.create_dataset("cluster", (2,), h5py.vlen_dtype(np.int64))
    stored[0], stored[1] = [1, 0, 0, 0, 4, 1, 1, 1, 1, 2], [3, 0, 0, 0, 1]


def _table(kind: str, **told: Any) -> bytes:
    import pyarrow
    from pyarrow import feather, parquet

    columns = {name: POINTS[:, axis].astype("f4") for axis, name in enumerate("xyz")}
    table = pyarrow.table({**columns, "intensity": np.arange(12, dtype=np.uint8)})
    stream = io.BytesIO()
    {"feather": feather.write_feather, "parquet": parquet.write_table}[kind](table, stream, **told)
    return stream.getvalue()


def _e57() -> bytes:
    import pye57

    fields = dict(zip(("cartesianX", "cartesianY", "cartesianZ"), POINTS.T, strict=True))
    fields["intensity"] = np.arange(12) / 12
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.e57")
        with pye57.E57(str(path), mode="w") as file:
            file.write_scan_raw(fields)
        return path.read_bytes()


TRIANGLES = "element face 4\nproperty list uchar int vertex_indices\n"
STRIP = "element tristrips 1\nproperty list int int vertex_indices\n"
TEXT_FACES = "".join(f"{size} {' '.join(map(str, range(size)))}\n" for size in (3, 4, 5, 3))
FACES = b"".join(struct.pack(f"<B{size}i", size, *range(size)) for size in (3, 4, 5, 3))
ROWS = np.column_stack([POINTS, np.full(12, 3)])
PCD_ROWS = np.column_stack([POINTS, np.full(12, 4243584), np.arange(12), np.ones((12, 3))])

# By the name of the file; the first dot begins what decides the reader.
MAKERS: dict[str, Callable[[], bytes]] = {
    "sweep.bin": lambda: np.column_stack([POINTS, np.ones(12)]).astype("<f4").tobytes(),
    "sweep.pcd.bin": lambda: np.column_stack([POINTS, np.ones((12, 2))]).astype("<f4").tobytes(),
    "legacy.las": lambda: _las("1.2", 3, ".las"),
    "extended.las": lambda: _las("1.4", 8, ".las"),
    "legacy.laz": lambda: _las("1.2", 3, ".laz"),
    "layered.laz": lambda: _las("1.4", 7, ".laz"),
    "text.ply": lambda: _ply("ascii", TRIANGLES, (_text(ROWS) + TEXT_FACES).encode()),
    "points.ply": lambda: _ply("binary_little_endian", "", _vertices("<")),
    "mesh.ply": lambda: _ply("binary_little_endian", TRIANGLES, _vertices("<") + FACES),
    "strips.ply": lambda: _ply(
        "binary_big_endian", STRIP, _vertices(">") + struct.pack(">13i", 12, *range(12))
    ),
    "text.pcd": lambda: _pcd("ascii", _text(PCD_ROWS).encode()),
    "binary.pcd": lambda: _pcd("binary", _pcd_rows()),
    "compressed.pcd": lambda: _pcd("binary_compressed", _compressed(b"".join(_pcd_columns()))),
    "arrays.npz": lambda: _npz(np.savez),
    "deflated.npz": lambda: _npz(np.savez_compressed),
    "mesh.obj": _obj,
    "binary.stl": _stl,
    "text.stl": _stl_text,
    "mesh.off": _off,
    "scene.glb": _glb,
    "points.npy": _npy,
    "points.txt": lambda: b"x y z label\n" + _text(ROWS).encode(),
    "points.csv": lambda: b"x,y,z,label\n" + _text(ROWS).replace(" ", ",").encode(),
    **dict.fromkeys(
        (f"points.{end}" for end in ("asc", "xyz")), lambda: b"# a scan\n" + _text(ROWS).encode()
    ),
    "points.pts": lambda: b"12\n" + _text(ROWS).encode(),
    "points.xyzn": lambda: _text(np.hstack([POINTS, POINTS])).encode(),
    "points.xyzrgb": lambda: _text(np.hstack([POINTS, POINTS / 10])).encode(),
    "clouds.h5": lambda: _hdf5(_modelnet),
    "chamber.hdf5": lambda: _hdf5(_chamber),
    "plain.feather": lambda: _table("feather", compression="uncompressed"),
    "packed.feather": lambda: _table("feather", compression="lz4"),
    "points.parquet": lambda: _table("parquet"),
    "points.e57": _e57,
    "scans.ptx": _ptx,
    "points.ply.gz": lambda: gzip.compress(FILES["points.ply"](), mtime=0),
}

FILES = {name: functools.cache(make) for name, make in MAKERS.items()}


def mutation(name: str, number: int) -> bytes:
    """Return a broken copy of a file."""
    rng = np.random.default_rng([number, *name.encode()])
    if name.endswith(".e57") and number % 4:
        # With checksums of its own: otherwise the library looks at nothing else.
        return e57_file(*_broken_e57(*e57_parts(FILES[name]()), rng))
    return broken(FILES[name](), rng)


def broken(content: bytes, rng: np.random.Generator) -> bytes:
    """Return a broken copy: one to three of the changes below, at random places."""
    for _ in range(rng.integers(1, 4)):
        content = CHANGES[rng.integers(len(CHANGES))](content, rng) or content[:1]
    return content


E57_PAGE, E57_CHECKSUM, E57_HEAD = 1024, 4, struct.Struct("<8sIIQQQQ")


@functools.cache
def _crc_table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


def _crc(content: bytes) -> int:
    """CRC-32C."""
    table, value = _crc_table(), 0xFFFFFFFF
    for byte in content:
        value = value >> 8 ^ table[(value ^ byte) & 255]
    return value ^ 0xFFFFFFFF


def e57_parts(content: bytes) -> tuple[bytes, bytes]:
    """Return what stands before the XML, without header and checksums, and the XML."""
    begin, length = E57_HEAD.unpack_from(content)[4:6]
    inside = E57_PAGE - E57_CHECKSUM
    pages = [content[at : at + inside] for at in range(0, len(content), E57_PAGE)]
    begin, whole = begin // E57_PAGE * inside + begin % E57_PAGE, b"".join(pages)
    return whole[E57_HEAD.size : begin], whole[begin : begin + length]


def e57_file(before: bytes, xml: bytes) -> bytes:
    """Return a file of these parts, whose checksums are right."""
    inside = E57_PAGE - E57_CHECKSUM
    begin, size = E57_HEAD.size + len(before), E57_HEAD.size + len(before) + len(xml)
    pages = -(-size // inside)
    place = begin // inside * E57_PAGE + begin % inside
    head = E57_HEAD.pack(b"ASTM-E57", 1, 0, pages * E57_PAGE, place, len(xml), E57_PAGE)
    whole = (head + before + xml).ljust(pages * inside, b"\0")
    parts = [whole[at : at + inside] for at in range(0, len(whole), inside)]
    return b"".join(part + struct.pack(">I", _crc(part)) for part in parts)


def _broken_e57(before: bytes, xml: bytes, rng: np.random.Generator) -> tuple[bytes, bytes]:
    for _ in range(rng.integers(1, 4)):
        match rng.integers(5):
            case 0:
                before = (_flip, _binary_count)[rng.integers(2)](before, rng)
            case 1:
                xml = CHANGES[rng.integers(len(CHANGES))](xml, rng) or xml[:1]
            case _:
                xml = _element(xml, rng)
    return before, xml


def _element(xml: bytes, rng: np.random.Generator) -> bytes:
    """Remove an element or an attribute, let it stand twice, or give it another name or type."""
    tags = list(re.finditer(rb"<(\w[\w:]*)([^<>]*?)/?>", xml))
    if not tags:
        return xml
    tag, other = tags[rng.integers(len(tags))], tags[rng.integers(len(tags))]
    name = re.escape(tag[1])
    whole = re.compile(rb"<%s\b[^<>]*(/>|>.*?</%s>)" % (name, name), re.S).match(xml, tag.start())
    kinds = list(re.finditer(rb'\b\w+="([^"]*)"', tag[0]))
    match rng.integers(5):
        case 0 if whole:
            return xml[: whole.start()] + xml[whole.end() :]
        case 1 if whole:
            return xml[: whole.end()] + whole[0] + xml[whole.end() :]
        case 2:
            return xml.replace(tag[1], other[1])
        case 3 if kinds:
            kind = kinds[rng.integers(len(kinds))]
            return xml[: tag.start() + kind.start()] + xml[tag.start() + kind.end() :]
        case 4 if kinds:
            kind = kinds[rng.integers(len(kinds))]
            types = "Structure Vector CompressedVector Blob Integer ScaledInteger Float String"
            values = [*types.encode().split(), *(str(value).encode() for value in HUGE)]
            begin, end = (tag.start() + place for place in kind.span(1))
            return xml[:begin] + values[rng.integers(len(values))] + xml[end:]
    return xml


def _flip(content: bytes, rng: np.random.Generator) -> bytes:
    changed = bytearray(content)
    for _ in range(rng.integers(1, 9)):
        changed[rng.integers(len(changed))] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def _cut(content: bytes, rng: np.random.Generator) -> bytes:
    return content[: rng.integers(1, len(content) + 1)]


def _count(content: bytes, rng: np.random.Generator) -> bytes:
    """Put a huge number in place of one written in digits."""
    words = _words(content)
    places = [at for at, word in enumerate(words) if word.isdigit()]
    if not places:
        return _binary_count(content, rng)
    words[places[rng.integers(len(places))]] = str(HUGE[rng.integers(len(HUGE))]).encode()
    return b"".join(words)


def _binary_count(content: bytes, rng: np.random.Generator) -> bytes:
    """Put a huge number into 2, 4 or 8 bytes, mostly near the beginning, where headers are."""
    size = (2, 4, 8)[rng.integers(3)]
    value = HUGE[rng.integers(len(HUGE))] % (1 << 8 * size)
    at = int(rng.integers(max(1, min(len(content), (400, len(content))[rng.integers(2)]))))
    return (
        content[:at]
        + value.to_bytes(size, ("little", "big")[rng.integers(2)])
        + content[at + size :]
    )


def _line(content: bytes, rng: np.random.Generator) -> bytes:
    """Remove a line, or let it stand twice, or elsewhere too."""
    lines = content.splitlines(keepends=True)
    at, to = rng.integers(len(lines), size=2)
    line = lines[at]
    match rng.integers(3):
        case 0:
            del lines[at]
        case 1:
            lines.insert(at, line)
        case _:
            lines.insert(to, line)
    return b"".join(lines)


def _header(content: bytes, rng: np.random.Generator) -> bytes:
    """Replace one word near the beginning by another of the file, or by something else."""
    words = _words(content[:600])
    others = [
        *words,
        b"",
        b" ",
        b"\r\n",
        b"\xef\xbb\xbf",
        b"nan",
        b"-1",
        b"\xff\xfe",
        b"list",
        b"0",
    ]
    words[rng.integers(len(words))] = others[rng.integers(len(others))]
    return b"".join(words) + content[600:]


def _block(content: bytes, rng: np.random.Generator) -> bytes:
    """Remove some bytes, let them stand twice, or put noise in their place."""
    at = int(rng.integers(len(content)))
    block = content[at : at + int(rng.integers(1, 40))]
    middle = (b"", block * 2, rng.bytes(len(block)))[rng.integers(3)]
    return content[:at] + middle + content[at + len(block) :]


def _words(content: bytes) -> list[bytes]:
    kinds = np.frombuffer(content, np.uint8)
    text = np.isin(kinds, np.frombuffer(b" \n\r\t,:[]{}", np.uint8))
    digits = (kinds >= ord("0")) & (kinds <= ord("9"))
    kind = text + 2 * digits
    ends = [*(np.flatnonzero(np.diff(kind)) + 1), len(content)]
    return [content[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]


CHANGES = (_flip, _cut, _count, _binary_count, _line, _header, _block)


@dataclass
class Found:
    """What reading mutations of one file gave; `wrong` has a line for each that broke a rule."""

    read: int = 0
    refused: int = 0
    seconds: float = 0.0
    bytes: int = 0
    wrong: list[str] = field(default_factory=list)

    def count(self, number: int, *, wrong: str, refused=False, seconds=0.0, bytes=0, **_) -> None:
        self.refused += refused
        self.read += not (refused or wrong)
        self.seconds = max(self.seconds, seconds)
        self.bytes = max(self.bytes, bytes)
        if wrong:
            self.wrong.append(f"mutation {number}: {wrong}")


class _TooLongError(BaseException):
    pass


def _stop(*_: object) -> None:
    raise _TooLongError


def _memory(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) << 10
    raise KeyError(key)


def _child(start: int, stop: int, begin: int, folder: str, names: list[str]) -> None:
    """Read mutations `start` to `stop` of each file; a line of JSON before and after each.

    The first `begin` of all of them are left out.
    """
    from voxax.errors import VoxaxError
    from voxax.io import read

    for name in names:
        Path(folder, name).write_bytes(FILES[name]())
        read(Path(folder, name), points=200)
    signal.signal(signal.SIGPROF, _stop)
    # What our own arithmetic warns of would be an error in the tests.
    warnings.simplefilter("error", RuntimeWarning)
    limit = _memory("VmSize") + ADDRESS_SPACE
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for task, (name, number) in enumerate(_tasks(names, start, stop)):
        if task < begin:
            continue
        path = Path(folder, name)
        content = mutation(name, number)
        path.write_bytes(content)
        _say(task=task)
        before = _memory("VmRSS")
        # Linux forgets the peak of the process so far.
        Path("/proc/self/clear_refs").write_text("5")
        used = resource.getrusage(resource.RUSAGE_SELF)
        wrong, refused = "", False
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        # A library's own loop takes no signal; this ends the process.
        faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
        try:
            read(path, points=200)
        except VoxaxError:
            refused = True
        except BaseException as error:
            wrong = f"{type(error).__name__}: {str(error)[:200]}"
        signal.setitimer(signal.ITIMER_PROF, 0)
        faulthandler.cancel_dump_traceback_later()
        after = resource.getrusage(resource.RUSAGE_SELF)
        seconds = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
        taken = max(0, _memory("VmHWM") - before)
        if taken > BYTES_PER_BYTE * len(content) + BYTES:
            wrong += f" {taken >> 20} MiB for {len(content)} bytes"
        _say(task=task, wrong=wrong, refused=refused, seconds=seconds, bytes=taken)


def _tasks(names: list[str], start: int, stop: int) -> list[tuple[str, int]]:
    return [(name, number) for name in names for number in range(start, stop)]


def _say(**values: object) -> None:
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


def read_mutations(names: list[str], start: int, stop: int) -> dict[str, Found]:
    """Read mutations `start` to `stop` of each file in a guarded process.

    A process that ends or hangs is replaced by one that goes on behind the mutation.
    """
    found = {name: Found() for name in names}
    tasks = _tasks(names, start, stop)
    begin = 0
    while begin < len(tasks):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, __file__, "child", str(start), str(stop), str(begin), folder]
            # What no signal stops is ended here.
            limit = 300 + 2 * len(tasks)
            quiet = os.environ | {"RUST_BACKTRACE": "0"}
            try:
                result = subprocess.run(
                    [*command, *names], capture_output=True, text=True, timeout=limit, env=quiet
                )
                output = result.stdout
                how = f"ended with {result.returncode}: {result.stderr.strip()[-300:]}"
            except subprocess.TimeoutExpired as error:
                output, how = (error.stdout or b"").decode(), f"was not done in {limit} s"
        said = [json.loads(line) for line in output.splitlines()]
        if not said:
            raise RuntimeError(f"the process that reads {names} {how}")
        if "seconds" not in said[-1]:
            said.append({"task": said[-1]["task"], "wrong": f"the process {how}"})
        for line in said:
            if "wrong" in line:
                name, number = tasks[line["task"]]
                found[name].count(number, **line)
        begin = said[-1]["task"] + 1
    return found


def main() -> None:
    """Read the mutations of every file, and say what was found."""
    if sys.argv[1:2] == ["child"]:
        start, stop, begin, folder, *names = sys.argv[2:]
        _child(int(start), int(stop), int(begin), folder, names)
        return
    count = int(sys.argv[1]) if sys.argv[1:] else MUTATIONS
    for name in sys.argv[2:] or FILES:
        found = read_mutations([name], 0, count)[name]
        sys.stdout.write(
            f"{name:16} read {found.read:5} refused {found.refused:5} "
            f"longest {found.seconds:.2f} s most {found.bytes / 2**20:.1f} MiB "
            f"wrong {len(found.wrong)}\n"
        )
        sys.stdout.writelines(f"    {line}\n" for line in found.wrong[:20])
        sys.stdout.flush()


if __name__ == "__main__":
    main()
