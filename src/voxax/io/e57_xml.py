"""What an E57 file says of itself, checked before libE57Format reads it.

The library follows pointers that it did not get: a list of points without a prototype ends the
process. And it expands what a document type declares, from other files too.

Source: ASTM E2807, of which pages, header and the type of each element are checked here.
"""

import struct
from dataclasses import dataclass, field
from pathlib import Path
from xml.parsers import expat

from voxax.errors import FileFormatError
from voxax.io.decoding import check_count

# Signature, version, physical length, where the XML begins and how long it is, size of a page.
HEADER = struct.Struct("<8sIIQQQQ")
SIGNATURE = b"ASTM-E57"
PAGE, CHECKSUM = 1024, 4
# What a field of points may be, and all elements.
FIELDS = {"Integer", "ScaledInteger", "Float", "String"}
TYPES = FIELDS | {"Structure", "Vector", "CompressedVector", "Blob"}
# A scan's points are the fourth; libraries walk down with a function that calls itself.
DEEPEST = 50


@dataclass
class Element:
    """One element: its name, its attributes, and the elements inside."""

    name: str
    attributes: dict[str, str]
    inside: list["Element"] = field(default_factory=list)

    @property
    def type(self) -> str:
        return self.attributes.get("type", "")

    def named(self, name: str) -> list["Element"]:
        return [element for element in self.inside if element.name == name]


def check_e57(path: Path) -> None:
    """Check the structure of an E57 file, and what it says of its points.

    Raises:
        FileFormatError: it is none, cut short, or has a part that the library would not survive.
    """
    root = _parsed(path, _xml(path))
    if root.name != "e57Root" or root.type != "Structure":
        _refuse(path, root, "is no e57Root of the type Structure")
    size = path.stat().st_size
    waiting = [root]
    while waiting:
        element = waiting.pop()
        if element.type not in TYPES:
            _refuse(path, element, f"has the type {element.type[:40]!r}")
        if element.type in FIELDS | {"Blob"} and element.inside:
            _refuse(path, element, f"is a {element.type}, with others inside")
        if element.type == "CompressedVector":
            _check_points(path, element, size)
        waiting += element.inside


def _check_points(path: Path, points: Element, size: int) -> None:
    for name in ("fileOffset", "recordCount"):
        number = points.attributes.get(name, "0" if name == "recordCount" else "")
        if not number.removeprefix("-").isdecimal():
            _refuse(path, points, f"has {name}={number[:40]!r}")
    start, records = int(points.attributes["fileOffset"]), points.attributes.get("recordCount", "0")
    check_count(path, "points", int(records), 1, 8 * size, exact=False)
    if int(records):
        check_count(path, "bytes before its points", start, 1, size)
    for name, kind in (("prototype", "Structure"), ("codecs", "Vector")):
        found = [element.type for element in points.named(name)]
        if found != [kind]:
            _refuse(path, points, f"has {len(found)} {name} {found}, not one {kind}")
    (prototype,) = points.named("prototype")
    if not prototype.inside:
        _refuse(path, prototype, "names no field")
    for one in prototype.inside:
        if one.type not in FIELDS:
            _refuse(path, one, f"is a field of the type {one.type[:40]!r}")


def _refuse(path: Path, element: Element, why: str) -> None:
    raise FileFormatError(f"{path} is broken: its element {element.name[:80]!r} {why}")


def _xml(path: Path) -> bytes:
    """Return the XML, which goes over pages with a checksum at the end of each."""
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
    top = Element("", {})
    above = [top]
    parser = expat.ParserCreate("UTF-8")

    def begin(name: str, attributes: dict[str, str]) -> None:
        if len(above) > DEEPEST:
            raise FileFormatError(f"{path}: its XML has more than {DEEPEST} elements in another")
        element = Element(name, attributes)
        above[-1].inside.append(element)
        above.append(element)

    def end(_: str) -> None:
        above.pop()

    def declared(_: str, encoding: str | None, __: int) -> None:
        # Another would hide from this parser what the library sees.
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
    return top.inside[0]
