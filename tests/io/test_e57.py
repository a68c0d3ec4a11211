"""E57 files that the library beneath would not survive are refused before it sees them."""

import re
import subprocess
import sys

import numpy as np
import pytest
from fuzz import FILES, e57_file, e57_parts

from voxax.errors import FileFormatError
from voxax.io import read
from voxax.io.e57 import check_e57

pye57 = pytest.importorskip("pye57")


def element(name):
    return re.compile(rb"<%s\b[^<>]*(/>|>.*?</%s>)" % (name, name), re.DOTALL)


def dropped(name):
    return lambda xml: element(name).sub(b"", xml, count=1)


def put(old, new):
    def change(xml):
        assert old in xml
        return xml.replace(old, new, 1)

    return change


def attribute(name, of, value):
    """Give an attribute of an element another value; None removes it."""
    pattern = re.compile(rb'(<%s\b[^<>]*?)\s%s="[^"]*"' % (of, name))

    def change(xml):
        assert pattern.search(xml)
        new = b"" if value is None else b' %s="%s"' % (name, value)
        return pattern.sub(lambda found: found[1] + new, xml, count=1)

    return change


EMPTY = b'<prototype type="Structure"/>'
POINTS = b'<other type="CompressedVector" fileOffset="48" recordCount="3"></other></e57Root>'
DEEP = b'<a type="Structure">' * 20_000 + b"</a>" * 20_000 + b"</e57Root>"
# Which message names the part; 2 of them ended the process.
BROKEN = {
    "no prototype": (dropped(b"prototype"), r"'points' has 0 prototype \[\], not one Structure"),
    "an empty prototype": (lambda xml: element(b"prototype").sub(EMPTY, xml), "names no field"),
    "a prototype of another type": (
        attribute(b"type", b"prototype", b"Vector"), r"prototype \['Vector'\]",
    ),
    "two prototypes": (
        lambda xml: element(b"prototype").sub(lambda found: found[0] * 2, xml), "has 2 prototype",
    ),
    "no codecs": (dropped(b"codecs"), "'points' has 0 codecs"),
    "codecs of another type": (attribute(b"type", b"codecs", b"Structure"), "codecs"),
    "a field of structures": (attribute(b"type", b"cartesianX", b"Structure"), "is a field of"),
    "a field of blobs": (attribute(b"type", b"cartesianX", b"Blob"), "is a field of .*'Blob'"),
    "a field of points": (attribute(b"type", b"cartesianX", b"CompressedVector"), "cartesianX"),
    "a field of no type": (attribute(b"type", b"cartesianX", None), "cartesianX' .* type ''"),
    "an unknown type": (attribute(b"type", b"guid", b"Text"), "has the type 'Text'"),
    "points of another type": (attribute(b"type", b"points", b"Integer"), "with others inside"),
    "no place of the points": (attribute(b"fileOffset", b"points", None), "fileOffset=''"),
    "a place beyond the file": (
        attribute(b"fileOffset", b"points", b"99999999"), "bytes before its points",
    ),
    "a place before it": (attribute(b"fileOffset", b"points", b"-8"), "bytes before its points"),
    "a number of points in words": (attribute(b"recordCount", b"points", b"many"), "='many'"),
    "a huge number of points": (
        attribute(b"recordCount", b"points", b"9" * 18), "says 9{18} points",
    ),
    "a negative number of points": (attribute(b"recordCount", b"points", b"-3"), "says -3 points"),
    "points elsewhere without a prototype": (put(b"</e57Root>", POINTS), "'other' has 0 prototype"),
    "another root": (lambda xml: xml.replace(b"e57Root", b"root"), "is no e57Root"),
    "a document type": (
        put(b"<e57Root", b'<!DOCTYPE e57Root [<!ENTITY a "aaaa">]><e57Root'), "document type",
    ),
    "a document type elsewhere": (
        put(b"<e57Root", b'<!DOCTYPE e57Root SYSTEM "file:///etc/hosts"><e57Root'), "document type",
    ),
    "elements in elements": (put(b"</e57Root>", DEEP), "more than 50 elements in another"),
    "XML cut short": (lambda xml: xml[:-40], "its XML: "),
    "no XML": (lambda xml: b"", "its XML: no element found"),
    "XML in another encoding": (lambda xml: xml.decode().encode("utf-16"), "another encoding"),
    "an encoding with other tags": (
        put(b'encoding="UTF-8"', b'encoding="UTF-7"'), "of the encoding UTF-7, not UTF-8",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_what_the_library_would_not_survive_is_refused(tmp_path, monkeypatch, case):
    change, message = BROKEN[case]
    before, xml = e57_parts(FILES["points.e57"]())
    path = tmp_path / "a.e57"
    path.write_bytes(e57_file(before, xml))
    assert len(read(path)) == 12
    path.write_bytes(e57_file(before, change(xml)))
    # If it came so far, these tests might end here.
    monkeypatch.setattr(pye57, "E57", lambda *_: pytest.fail("the library was asked"))
    with pytest.raises(FileFormatError, match=message) as refused:
        read(path)
    assert str(path) in str(refused.value)


@pytest.mark.parametrize("size", [0, 1, 30, 47, 48, 900, 1024, 1100])
def test_files_cut_short(tmp_path, size):
    (tmp_path / "a.e57").write_bytes(FILES["points.e57"]()[:size])
    with pytest.raises(FileFormatError):
        read(tmp_path / "a.e57")


def test_another_header(tmp_path):
    path, content = tmp_path / "a.e57", FILES["points.e57"]()
    for at, value, message in [
        (0, b"ASTM-E58", "does not begin with ASTM-E57"),
        (24, (10**12).to_bytes(8, "little"), "bytes before its XML"),
        (32, (10**12).to_bytes(8, "little"), "bytes of XML"),
        (40, (512).to_bytes(8, "little"), "pages of 512 bytes"),
    ]:
        path.write_bytes(content[:at] + value + content[at + 8 :])
        with pytest.raises(FileFormatError, match=message):
            read(path)


def test_many_fields_and_scans_are_checked_and_read(tmp_path):
    """What the library writes itself passes, over several pages too."""
    path, rng = tmp_path / "a.e57", np.random.default_rng(0)
    names = ("cartesianX", "cartesianY", "cartesianZ", "intensity", "colorRed", "columnIndex")
    with pye57.E57(str(path), mode="w") as file:
        for _ in range(3):
            file.write_scan_raw({name: rng.integers(0, 99, 500) / 1 for name in names})
    check_e57(path)
    assert len(read(path)) == 1500


READS = """
import sys
from voxax.errors import FileFormatError
from voxax.io import read
try:
    read(sys.argv[1])
except FileFormatError as error:
    print(error)
"""


@pytest.mark.slow
def test_the_process_lives(tmp_path):
    before, xml = e57_parts(FILES["points.e57"]())
    (tmp_path / "a.e57").write_bytes(e57_file(before, dropped(b"prototype")(xml)))
    command = [sys.executable, "-c", READS, str(tmp_path / "a.e57")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "has 0 prototype" in done.stdout


def test_errors_of_the_library_are_one_line(tmp_path):
    content = bytearray(FILES["points.e57"]())
    content[1020] ^= 1  # a checksum
    (tmp_path / "a.e57").write_bytes(content)
    with pytest.raises(FileFormatError, match="ErrorBadChecksum") as refused:
        read(tmp_path / "a.e57")
    assert "\n" not in str(refused.value)
