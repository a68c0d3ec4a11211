"""PCD files as other programs write them, and headers that claim too much."""

import sys

import numpy as np
import pytest

from voxax.errors import FileFormatError, MissingExtraError
from voxax.io import read

HEADER = {
    "VERSION": "0.7",
    "FIELDS": "x y z",
    "SIZE": "4 4 4",
    "TYPE": "F F F",
    "COUNT": "1 1 1",
    "WIDTH": "3",
    "HEIGHT": "1",
    "VIEWPOINT": "0 0 0 1 0 0 0",
    "POINTS": "3",
    "DATA": "ascii",
}
POINTS = [[1, 2, 3], [4, 5, 6], [7, 8, 9.5]]
TEXT = "1 2 3\n4 5 6\n7 8 9.5\n"


@pytest.fixture
def written(tmp_path):
    """Write a file with changed lines of the header (None: left out), and return its path."""

    def write(body: bytes | str = TEXT, comment: bytes = b"# .PCD v0.7", end="\n", **changed):
        lines = [f"{key} {value}" for key, value in (HEADER | changed).items() if value is not None]
        content = body.encode() if isinstance(body, str) else body
        path = tmp_path / "scan.pcd"
        path.write_bytes(comment + end.encode() + (end.join(lines) + end).encode() + content)
        return path

    return write


@pytest.mark.parametrize(
    "changed",
    [
        {"VERSION": ".5"},
        {"VERSION": "0.6", "VIEWPOINT": None},
        {"VERSION": None},
        {"COUNT": None},
        {"POINTS": None},
        {"POINTS": None, "WIDTH": "1", "HEIGHT": "3"},
        {"POINTS": None, "WIDTH": None, "HEIGHT": None},
        {"FIELDS": None, "VERSION": "0.7\nCOLUMNS x y z"},
        {"TYPE": "f f f"},
        {"TYPE": None, "SIZE": None},
        {"SIZE": "8 8 8", "FIELDS": "x  y\tz"},
        {"DATA": "ASCII"},
        {"comment": "# Straße".encode("latin-1")},
        {"comment": b"# DATA binary is below\n# \xff\xfe"},
        {"end": "\r\n", "body": TEXT.replace("\n", "\r\n")},
        {"body": TEXT.replace(" ", "\t")},
        {"body": TEXT.replace(" ", "   ")},
        {"body": TEXT.replace("\n", " \n") + "\n\n"},
        {"body": "\n" + TEXT.rstrip()},
        {"body": TEXT.replace("9.5", "9.5e+00")},
    ],
)
def test_what_writers_leave_out_or_spell_otherwise(written, changed):
    assert read(written(**changed)).positions.tolist() == POINTS


def test_numbers_of_microsoft_and_rows_without_a_position(written):
    text = "1.#QNAN 2 3\n4 5 6\n7 nan(ind) -1.#IND00\n"
    assert read(written(text)).positions.tolist() == [[4, 5, 6]]


@pytest.mark.parametrize(
    ("kind", "words", "values", "dtype"),
    [
        ("U", "nan 1 2", [np.nan, 1, 2], np.float64),
        ("U", "-1 1 2", [-1, 1, 2], np.float64),
        ("I", "1.0 2.0 -3", [1, 2, -3], np.int32),
        ("U", "7 8 4294967295", [7, 8, 2**32 - 1], np.uint32),
        ("F", "0.5 inf nan", [0.5, np.inf, np.nan], np.float32),
    ],
)
def test_integer_fields_hold_what_the_text_says(written, kind, words, values, dtype):
    rows = [" ".join([*map(str, p), w]) for p, w in zip(POINTS, words.split(), strict=True)]
    changed = {"FIELDS": "x y z ring", "SIZE": "4 4 4 4", "TYPE": f"F F F {kind}", "COUNT": None}
    ring = read(written("\n".join(rows), **changed)).attributes["ring"]
    np.testing.assert_array_equal(ring, values)
    assert ring.dtype == dtype


def test_integers_of_64_bits_keep_their_digits(written):
    times = [1_700_000_000_123_456_789, 2**63 - 1, 0]
    rows = [f"{x} {y} {z} {t}" for (x, y, z), t in zip(POINTS, times, strict=True)]
    cloud = read(
        written("\n".join(rows), FIELDS="x y z t", SIZE="4 4 4 8", TYPE="F F F U", COUNT=None)
    )
    assert cloud.attributes["t"].tolist() == times


WIDE = {
    "FIELDS": "x _ desc y z _ ring noise",
    "SIZE": "4 1 4 4 4 4 2 2",
    "TYPE": "F U F F F F U U",
    "COUNT": "1 3 3 1 1 2 1 0",
}
WIDE_TYPE = np.dtype(
    [("x", "<f4"), ("p", "u1", 3), ("desc", "<f4", 3), ("y", "<f4"), ("z", "<f4"),
     ("q", "<f4", 2), ("ring", "<u2")]
)  # fmt: skip


def wide_rows(rng, count: int) -> np.ndarray:
    rows = np.zeros(count, WIDE_TYPE)
    for name in WIDE_TYPE.names:
        rows[name] = rng.integers(0, 100, rows[name].shape)
    return rows


def check_wide(cloud, rows: np.ndarray):
    np.testing.assert_array_equal(cloud.positions, np.stack([rows[n] for n in "xyz"], 1))
    np.testing.assert_array_equal(cloud.attributes["desc"], rows["desc"])
    np.testing.assert_array_equal(cloud.attributes["ring"], rows["ring"])
    assert set(cloud.attributes) == {"desc", "ring"}
    assert cloud.attributes["desc"].flags.owndata


@pytest.mark.parametrize("pad", ["0", "nan", "255", "-1.5"])
def test_text_with_padding_and_counts(written, rng, pad):
    """A padding field of count k is k numbers in each row, whatever its size in bytes."""
    rows = wide_rows(rng, 20)
    text = "\n".join(
        " ".join(
            pad if name in "pq" else f"{value:g}"
            for name in WIDE_TYPE.names
            for value in np.atleast_1d(row[name])
        )
        for row in rows
    )
    check_wide(read(written(text, **WIDE, WIDTH="20", POINTS="20")), rows)


def test_a_row_of_text_with_too_many_numbers_is_refused(written):
    with pytest.raises(FileFormatError, match="numbers in a row"):
        read(written("1 2 3", COUNT="1 1 10000000000", POINTS=None, WIDTH=None, HEIGHT=None))


@pytest.mark.parametrize("tail", [b"", b"\0" * 5])
def test_binary_with_padding_and_counts(written, rng, tail):
    rows = wide_rows(rng, 20)
    path = written(rows.tobytes() + tail, **WIDE, WIDTH="20", POINTS="20", DATA="binary")
    check_wide(read(path), rows)


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("packed", [True, False])
def test_compressed_with_padding_and_counts(written, rng, padded, packed):
    lzf = pytest.importorskip("lzf")
    rows = wide_rows(rng, 200)
    # As pcl::PCDWriter stores it: field after field, and within one point after point.
    names = [name for name in WIDE_TYPE.names if padded or name not in "pq"]
    data = b"".join(np.ascontiguousarray(rows[name]).tobytes() for name in names)
    stored = lzf.compress(data) if packed else data
    sizes = np.array([len(stored), len(data)], "<u4").tobytes()
    changed = WIDE | {"WIDTH": "200", "POINTS": "200", "DATA": "binary_compressed"}
    check_wide(read(written(sizes + stored, **changed)), rows)


def test_compressed_points_agree_with_another_reader(tmp_path, rng):
    pypcd4 = pytest.importorskip("pypcd4")
    points = np.round(rng.uniform(-50, 50, (50_000, 4)), 2).astype(np.float32)
    cloud = pypcd4.PointCloud.from_xyzi_points(points)
    cloud.save(tmp_path / "a.pcd", encoding=pypcd4.Encoding.BINARY_COMPRESSED)
    found = read(tmp_path / "a.pcd")
    other = pypcd4.PointCloud.from_path(tmp_path / "a.pcd").numpy(("x", "y", "z", "intensity"))
    np.testing.assert_array_equal(found.positions, other[:, :3])
    np.testing.assert_array_equal(found.attributes["intensity"], other[:, 3])


def test_fields_of_one_name_are_all_kept(written):
    text = "1 2 3 4 5\n" * 3
    changed = {"SIZE": "4 4 4 4 4", "TYPE": "F F F F F", "COUNT": None}
    cloud = read(written(text, FIELDS="x y z Foo Foo", **changed))
    assert {name: values[0] for name, values in cloud.attributes.items()} == {"Foo": 4, "Foo_": 5}


RECORDS = np.arange(9, dtype="<f4").tobytes()


@pytest.mark.parametrize(
    ("body", "changed", "message"),
    [
        (RECORDS, {"DATA": "binary", "POINTS": str(10**12)}, "says 1000000000000 points, 3 are"),
        (TEXT, {"POINTS": str(10**12)}, "says 1000000000000 points, 3 are there"),
        (TEXT, {"POINTS": None, "WIDTH": "1000000", "HEIGHT": "1000000"}, "1000000000000 points"),
        (TEXT, {"POINTS": "5"}, "cut short: its header says 5 points, "),
        (TEXT, {"POINTS": "2"}, "broken: its header says 2 points, 3 are there"),
        (TEXT, {"POINTS": "-3"}, "POINTS is '-3', not a whole number"),
        ("1 2 3\n4 5 6\n7 8000000\n", {}, "requires 3 columns but 2 were found"),
        ("1 2 3\n4 five 6\n7 8 9\n", {}, ".five. to float64 at row 1, column 2"),
        # Words of one length would take 45 GB.
        ("1 2 3\n" * 50_000 + f"nan {'2' * 300_000} 3#\n", {"POINTS": "50001"}, ".3#. to float64"),
        (TEXT, {"DATA": None}, "no line DATA"),
        (TEXT, {"DATA": "zipped"}, "DATA 'zipped'; known are ascii, binary and binary_compressed"),
        (TEXT, {"FIELDS": None}, "no line FIELDS or COLUMNS"),
        (TEXT, {"SIZE": "4 4"}, "FIELDS names 3 fields, SIZE has 2 values"),
        (TEXT, {"SIZE": "4 4 3"}, "field z has TYPE F and SIZE 3"),
        (TEXT, {"TYPE": "F F X"}, "field z has TYPE X and SIZE 4"),
        (RECORDS, {"DATA": "binary", "COUNT": f"1 1 {10**12}"}, "scan.pcd"),
        (RECORDS, {"DATA": "binary", "COUNT": "0 0 0"}, "scan.pcd"),
        (b"\1\0\0", {"DATA": "binary_compressed"}, "cut short: 3 bytes follow its header"),
        (b"\xff\xff\xff\xff" + RECORDS, {"DATA": "binary_compressed"}, "4294967295 compressed"),
        (
            b"\3\0\0\0\xff\xff\xff\xffabc",
            {"DATA": "binary_compressed", "POINTS": str((2**32 - 1) // 3), "SIZE": "1 1 1",
             "TYPE": "U U U"},
            "says 4294967295 unpacked bytes, 264 are there",
        ),
        (b"\4\0\0\0\x24\0\0\0\xff\xff\xff\xff", {"DATA": "binary_compressed"}, "do not unpack to"),
        (b"\4\0\0\0\x25\0\0\0abcd", {"DATA": "binary_compressed"}, "3 points of 12 bytes, .* 37"),
    ],
)  # fmt: skip
def test_broken_files_are_refused_before_memory_is_taken(written, body, changed, message):
    with pytest.raises(FileFormatError, match=message):
        read(written(body, **changed))


def test_only_compressed_data_need_a_library(written, monkeypatch):
    monkeypatch.setitem(sys.modules, "lzf", None)
    assert len(read(written())) == 3
    packed = b"\4\0\0\0\x24\0\0\0abcd"
    with pytest.raises(MissingExtraError, match=r'needs lzf: pip install "voxax\[io\]"'):
        read(written(packed, DATA="binary_compressed"))
