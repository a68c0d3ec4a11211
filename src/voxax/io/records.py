"""Files of bare little-endian numbers, without a header: sweeps of KITTI and nuScenes, labels.

Such a file is checked before it is read: by the first bytes, which formats with a header begin
with, and by how its numbers repeat from record to record.

Sources: the KITTI raw-data development kit (``velodyne/*.bin``), the SemanticKITTI dataset page
(``*.label``) and the nuScenes schema (``*.pcd.bin``).
"""

from dataclasses import replace
from pathlib import Path

import numpy as np

from voxax.errors import FileFormatError
from voxax.io.arrays import labels_from_arrays
from voxax.io.columns import POSITION, cloud_from_columns, named_rows
from voxax.io.options import DEFAULT, ReadOptions
from voxax.io.point_cloud import PointCloud

# The first bytes of formats that files of this name have been found to hold.
MAGICS = {
    b"CCB": "CloudCompare's own .bin: save it there as .ply or .las",
    b"# .PCD": "a .pcd",
    b"VERSION": "a .pcd",
    b"ply": "a .ply",
    b"LASF": "a .las or .laz",
    b"PK\x03\x04": "a zip archive, such as .npz or .pth",
    b"\x93NUMPY": "a .npy",
    b"\x1f\x8b\x08": "gzip",
    b"\x28\xb5\x2f\xfd": "zstandard",
    b"\x04\x22\x4d\x18": "LZ4",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"7z\xbc\xaf": "7-Zip",
    b"\x89HDF": "HDF5",
    b"ASTM-E57": "E57",
    b"glTF": "a .glb",
    b"\x89PNG": "a PNG picture",
    b"\x80\x02": "a Python pickle",
    b"\x80\x03": "a Python pickle",
    b"\x80\x04\x95": "a Python pickle",
    b"\x80\x05\x95": "a Python pickle",
    b"#ROSBAG": "a ROS bag",
    b"\x89MCAP": "a ROS 2 bag (MCAP)",
    b"SQLite": "an SQLite data base",
    b"\x7fELF": "a program",
}
# So many numbers at the begin tell how they repeat.
_LOOKED_AT = 1 << 16
_WIDTHS = range(3, 12)
# Beyond these a float32 is no coordinate, color or intensity, but bits of something else.
_SMALLEST, _LARGEST = 1e-15, 1e15


def check_magic(path: Path) -> None:
    """Refuse a file that begins as another format does, or with text."""
    with path.open("rb") as stream:
        begin = stream.read(256)
    kind = next((kind for magic, kind in MAGICS.items() if begin.startswith(magic)), None)
    text = len(begin) > 15 and all(32 <= byte < 127 or byte in b"\t\r\n" for byte in begin)
    if kind is None and text:
        kind = f"text ({begin[:24].decode('ascii')!r} ...)"
    if kind is not None:
        raise FileFormatError(
            f"{path} holds no bare numbers, as its name says: by its first bytes it is {kind}"
        )


def records(path: Path, dtype: str, width: int, kind: str) -> np.ndarray:
    """Return all records, ``[N, width]`` numbers of four bytes in this machine's byte order."""
    size, record = path.stat().st_size, 4 * width
    count, remainder = divmod(size, record)
    if remainder:
        raise FileFormatError(
            f"{path} is not a whole {kind}: {size} bytes are {count} records of "
            f"{record} bytes and {remainder} bytes left over{_hint(size)}"
        )
    rows = np.fromfile(path, dtype).reshape(count, width)
    return rows.astype(rows.dtype.newbyteorder("="), copy=False)


def check_width(path: Path, width: int) -> None:
    """Refuse a file of float32 records that could as well have other columns, or is none.

    Numbers of one column are alike: neighbors in a scan are near each other, and a height is no
    intensity. So the numbers of the file differ least from those one record before. `width` holds
    unless another number of columns divides the file as well and its numbers repeat as well.
    """
    size = path.stat().st_size
    if size % (4 * width):
        return
    numbers = np.fromfile(path, "<f4", count=_LOOKED_AT)
    known = numbers[np.isfinite(numbers)]
    magnitude = np.abs(known[known != 0])
    odd = (magnitude < _SMALLEST) | (magnitude > _LARGEST)
    if np.count_nonzero(odd) > max(1, 0.05 * len(known)):
        raise FileFormatError(
            f"{path} does not hold float32 measurements: {odd.mean():.0%} of its numbers are below "
            f"{_SMALLEST:g} or above {_LARGEST:g}, such as {magnitude[odd][0]:.3g}; integers "
            "(labels, masks) and float64 look so; if it does, give columns= (--columns)"
        )
    step = _steps(numbers)
    others = [other for other in _WIDTHS if other != width and size % (4 * other) == 0]
    likely = [other for other in others if _rivals(other, width, step, numbers)]
    if likely:
        best = min(likely, key=lambda other: step[other])
        raise FileFormatError(
            f"it is not clear how many columns {path} has: by its numbers, not {width} but "
            f"{best}, or either; give columns={best} or names such as "
            "columns='x,y,z,red,green,blue' (--columns on the command line)"
        )


def _rivals(other: int, width: int, step: dict[int, float], numbers: np.ndarray) -> bool:
    """Return whether the numbers repeat with `other` columns about as well as with `width`."""
    if other % width == 0:
        # They repeat with every multiple too; there, x and y of some rows are something else.
        return not all(_alike(numbers, width, other, axis) for axis in (0, 1))
    mine, its = step[width], step[other]
    if its > 1 - 2.5 / np.sqrt(len(numbers)):
        return False  # as in noise
    return its < mine or (its < 0.9 and its < 1.25 * mine) or max(its, mine) < 0.4


def _alike(numbers: np.ndarray, width: int, other: int, axis: int) -> bool:
    """Return whether a column of `width` may hold one quantity in each row of `other` columns.

    Rows of a sensor that fires its beams in turn differ in reach, but not by much: the middles
    are within each other's range, which are less than 8 times as wide as each other.
    """
    rows = numbers[: len(numbers) // other * other].reshape(-1, other)[:, axis::width]
    rows = rows[np.isfinite(rows).all(axis=1)]
    if len(rows) == 0:
        return True
    low, middle, high = np.quantile(rows, [0.05, 0.5, 0.95], axis=0)
    within = (low.max() <= middle.min()) and (middle.max() <= high.min())
    return bool(within and (high - low).max() <= 8 * (high - low).min())


def _steps(numbers: np.ndarray) -> dict[int, float]:
    """Return, for each number of columns, the mean squared step from record to record.

    Steps are of ranks, signed and absolute, and relative to what noise would make, which is 1.
    """
    finite = np.where(np.isfinite(numbers), numbers, 0)
    ranks = [_ranks(finite), _ranks(np.abs(finite))]
    means = {}
    for width in _WIDTHS:
        steps = [
            np.mean((rank[width:] - rank[:-width]) ** 2) / (2 * rank.var())
            for rank in ranks
            if len(rank) > width and rank.var() > 0
        ]
        means[width] = float(np.mean(steps)) if steps else 1.0
    return means


def _ranks(values: np.ndarray) -> np.ndarray:
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - counts / 2)[place]


def _hint(size: int) -> str:
    fitting = [width for width in (4, 5, 6, *_WIDTHS) if size % (4 * width) == 0]
    if not fitting:
        return ""
    hint = f"; {', '.join(map(str, sorted(set(fitting))))} columns divide it: give columns="
    if 5 in fitting:
        hint += ", or for the 5 of nuScenes, end its name in .pcd.bin"
    return hint


KITTI_FIELDS = ("x", "y", "z", "intensity")
NUSCENES_FIELDS = (*KITTI_FIELDS, "ring")
NO_RING = -1


def read_bin(path: Path, options: ReadOptions = DEFAULT) -> PointCloud:
    """Read float32 records without a header: of KITTI, or with the columns that are given.

    ``options.columns`` has the number of columns or their names, whose meaning
    :mod:`voxax.io.columns` says. Without it, these are KITTI's x, y, z (meters) and intensity,
    unless the numbers speak against it (:func:`voxax.io.records.check_width`).

    | data set | columns |
    |---|---|
    | KITTI, SemanticKITTI | ``x y z intensity`` |
    | nuScenes, Lyft | ``x y z intensity ring`` |
    | Waymo, as MMDetection3D stores it | ``x y z intensity elongation _`` |
    | ScanNet, S3DIS, SUN RGB-D, as MMDetection3D stores them | ``x y z red green blue`` |
    """
    check_magic(path)
    if options.columns is None:
        check_width(path, len(KITTI_FIELDS))
        columns = KITTI_FIELDS
    else:
        columns = options.columns
        if isinstance(columns, int):
            # What the columns mean is not guessed: a ring is as whole a number as a color.
            own = (f"column_{column}" for column in range(3, columns))
            columns = KITTI_FIELDS if columns == len(KITTI_FIELDS) else (*POSITION, *own)
    rows = records(path, "<f4", len(columns), "sweep")
    return cloud_from_columns(named_rows(rows, columns, str(path)), str(path), options.label_field)


def read_nuscenes(path: Path, options: ReadOptions = DEFAULT) -> PointCloud:
    """Read a nuScenes ``.pcd.bin``: float32 x, y, z (meters), intensity and ring.

    The ring becomes int32, -1 where the file holds no number. ``options.columns`` has other
    columns, as for :func:`read_bin`.
    """
    if options.columns is not None:
        return read_bin(path, options)
    cloud = read_bin(path, replace(options, columns=NUSCENES_FIELDS))
    ring = cloud.attributes["ring"]
    # Written so that NaN fails it: casting NaN to an integer is undefined.
    usable = (ring >= 0) & (ring < np.iinfo(np.int16).max)
    rings = np.where(usable, ring, NO_RING).astype(np.int32)
    return replace(cloud, attributes=cloud.attributes | {"ring": rings})


def read_packed_labels(
    path: Path, label_field: str | None = None
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Read a SemanticKITTI ``.label``: uint32, low half the class, high half the object.

    `label_field` is ``semantic`` or ``instance``, the half to return as labels.

    Returns:
      The raw class ids, int32 [N] (see :func:`voxax.io.semantic_kitti.to_common_classes`), and
      ``{"instance": int32 [N]}``.
    """
    check_magic(path)
    packed = records(path, "<u4", 1, "SemanticKITTI label file")[:, 0]
    halves = {"semantic": packed & 0xFFFF, "instance": packed >> 16}
    return labels_from_arrays(halves, str(path), label_field)
