"""The header of a PLY file, read as the many programs write it, and its claims checked.

plyfile takes only the header that the format's description shows. Here a header may have
a byte order mark, spaces at the ends of lines, comments in any encoding, names with
spaces, and any mix of line ends; :meth:`PlyHeader.canonical` is what plyfile reads.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from voxax.errors import FileFormatError
from voxax.io.decoding import check_columns, check_count

# Longer than any header, with its comments; what has no end within it is no PLY file.
LONGEST_HEADER = 1 << 20
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
END = re.compile(rb"[\r\n][ \t]*end_header[ \t]*(\r\n|\r|\n|$)")
NOT_PLAIN = re.compile(r"[^!-~]+")
KEYWORDS = ("format", "element", "property")
ASCII = "ascii"
FORMATS = (ASCII, "binary_little_endian", "binary_big_endian")
# NumPy's names of the types.
TYPES = {
    **dict.fromkeys(("char", "int8"), "i1"),
    # bool is none of the format, but pyntcloud writes it.
    **dict.fromkeys(("uchar", "uint8", "bool"), "u1"),
    **dict.fromkeys(("short", "int16"), "i2"),
    **dict.fromkeys(("ushort", "uint16"), "u2"),
    **dict.fromkeys(("int", "int32"), "i4"),
    **dict.fromkeys(("uint", "uint32"), "u4"),
    **dict.fromkeys(("float", "float32"), "f4"),
    **dict.fromkeys(("double", "float64"), "f8"),
}


@dataclass(frozen=True)
class PlyProperty:
    """One column: its name, its name as plyfile takes it, and its types (two for a list)."""

    name: str
    plain_name: str
    types: tuple[str, ...]

    @property
    def is_list(self) -> bool:
        return len(self.types) == 2


@dataclass(frozen=True)
class PlyElement:
    """A table of the file: its name, its number of rows, and its columns."""

    name: str
    count: int
    properties: list[PlyProperty]


@dataclass(frozen=True)
class PlyHeader:
    """What a header says: the format, the elements, and the byte at which the data begin."""

    format: str
    elements: list[PlyElement]
    data_at: int

    @property
    def canonical(self) -> str:
        """The header in its plainest form, without comments."""
        lines = ["ply", f"format {self.format} 1.0"]
        for element in self.elements:
            lines.append(f"element {element.name} {element.count}")
            for column in element.properties:
                types = ("uchar" if kind == "bool" else kind for kind in column.types)
                kind = " ".join(("list", *types) if column.is_list else types)
                lines.append(f"property {kind} {column.plain_name}")
        return "\n".join([*lines, "end_header", ""])


def read_header(path: Path, stream: BinaryIO) -> PlyHeader:
    """Read a header from the beginning of `stream`, and compare its counts with the file's size.

    Raises:
        FileFormatError: it is not a PLY header, or the file cannot hold what it says.
    """
    start = stream.read(LONGEST_HEADER)
    text = start.removeprefix(BYTE_ORDER_MARK)
    end = END.search(text)
    if end is None:
        raise FileFormatError(f"{path} is no PLY file, or is cut short: it has no end_header")
    above = text[: end.start()]
    lines = re.split(r"\r\n|\r|\n", above.decode("latin-1"))
    if lines[0].strip().lower() != "ply":
        raise FileFormatError(f"{path} is no PLY file: its first line is not 'ply'")
    data_at = end.end() + len(start) - len(text)
    if end[1] == b"\r\n" and b"\n" not in above:
        # Lines end in a carriage return alone: the next byte belongs to the data.
        data_at -= 1
    header = _parsed(path, lines, data_at)
    _check_counts(path, header, path.stat().st_size)
    return header


def _parsed(path: Path, lines: list[str], data_at: int) -> PlyHeader:
    layout, elements = "", list[PlyElement]()
    check_columns(path, sum(line.split(None, 1)[:1] == ["property"] for line in lines))
    for number, line in enumerate(lines[1:], 2):
        match line.split():
            case [] | ["comment" | "obj_info", *_]:
                continue
            case ["format", str(layout), *_] if layout in FORMATS:
                continue
            case ["element", name, count] if re.fullmatch(r"[+-]?\d{1,30}", count):
                elements.append(PlyElement(name, int(count), []))
            case ["property", "list", of_length, of_values, *name] if elements and name:
                _add(elements[-1], " ".join(name), (of_length, of_values))
            case ["property", kind, *name] if elements and name:
                _add(elements[-1], " ".join(name), (kind,))
            case [str(word), *_] if layout == ASCII and word not in KEYWORDS:
                # Some programs forget the word comment; columns are counted in the rows.
                continue
            case _:
                raise FileFormatError(f"line {number} of {path} is not one of PLY: {line[:80]!r}")
    if layout not in FORMATS:
        raise FileFormatError(f"{path} has no format; known are {', '.join(FORMATS)}")
    unknown = {kind for e in elements for p in e.properties for kind in p.types} - set(TYPES)
    if unknown:
        raise FileFormatError(
            f"{path} has columns of unknown types {', '.join(sorted(unknown))}; "
            f"known are {', '.join(TYPES)}"
        )
    return PlyHeader(layout, elements, data_at)


def _add(element: PlyElement, name: str, types: tuple[str, ...]) -> None:
    plain_name = NOT_PLAIN.sub("_", name)
    while name in [known.name for known in element.properties]:
        name += "_"
    while plain_name in [known.plain_name for known in element.properties]:
        plain_name += "_"
    types = tuple(kind.lower() for kind in types)
    element.properties.append(PlyProperty(name, plain_name, types))


def _check_counts(path: Path, header: PlyHeader, size: int) -> None:
    left = size - header.data_at
    for element in header.elements:
        if header.format == ASCII:
            # A digit and a space or a line end; the last line may lack its end.
            smallest, spare, exact = 2 * len(element.properties), 1, False
        else:
            # A list takes at least the number that says how long it is.
            types = [column.types[0] for column in element.properties]
            smallest, spare = sum(np.dtype(TYPES[kind]).itemsize for kind in types), 0
            exact = not any(column.is_list for column in element.properties)
        smallest = max(smallest, 1)
        check_count(
            path, f"rows of {element.name}", element.count, smallest, left + spare, exact=exact
        )
        left -= element.count * smallest
