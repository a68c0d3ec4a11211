"""Read files of little-endian numbers without a header: sweeps of KITTI and nuScenes, and labels.

Before reading, two checks are made. The first bytes must not be the mark of another format. The
numbers must be similar from record to record, because otherwise the number of columns is wrong.

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

# The first bytes of other formats that were found in files with the ending .bin.
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
# The number of values at the beginning of a file that are compared.
_LOOKED_AT = 1 << 16
_WIDTHS = range(3, 12)
# A float32 outside this range is no coordinate, color or intensity: the data have another type.
_SMALLEST, _LARGEST = 1e-15, 1e15


def check_magic(path: Path) -> None:
    """Raise FileFormatError if a file begins with text or the magic number of another format."""
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
    """Read a file of N records of `width` numbers as ``[N, width]``, in native byte order.

    `dtype` is a type of four bytes, such as ``"<f4"``. `kind` is the description of the file in
    messages. Raise FileFormatError if the size of the file is not a whole number of records.
    """
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
    """Raise FileFormatError if a file probably does not have `width` columns of float32.

    Neighbors in a scan are near each other, so a number usually differs little from the number in
    the same column of the previous record. The error is raised if another number of columns divides
    the file's size and makes these differences smaller or nearly as small. It is also raised if too
    many numbers are tiny or huge. A file whose size `width` does not divide is not checked.
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
    """Return whether a file may have records of `other` numbers instead of `width` numbers.

    `numbers` are the first numbers of the file, and `step` is ``_steps(numbers)``, which tells how
    much successive records differ.
    """
    if other % width == 0:
        # A multiple has small differences too. If `other` is right, x and y of some rows of `width`
        # are another quantity.
        return not all(_alike(numbers, width, other, axis) for axis in (0, 1))
    mine, its = step[width], step[other]
    if its > 1 - 2.5 / np.sqrt(len(numbers)):
        return False  # the differences are as large as those of noise
    return its < mine or (its < 0.9 and its < 1.25 * mine) or max(its, mine) < 0.4


def _alike(numbers: np.ndarray, width: int, other: int, axis: int) -> bool:
    """Return whether column `axis` of records of `width` numbers is a single quantity.

    `other` is a multiple of `width`, so records of `other` numbers split the column into several
    columns. For a single quantity, these have similar distributions: each median is within the
    range (5% to 95%) of every other column, and the widest range is at most 8 times the narrowest.
    The distributions need not be equal, because some sensors fire beams in turn.
    """
    rows = numbers[: len(numbers) // other * other].reshape(-1, other)[:, axis::width]
    rows = rows[np.isfinite(rows).all(axis=1)]
    if len(rows) == 0:
        return True
    low, middle, high = np.quantile(rows, [0.05, 0.5, 0.95], axis=0)
    within = (low.max() <= middle.min()) and (middle.max() <= high.min())
    return bool(within and (high - low).max() <= 8 * (high - low).min())


def _steps(numbers: np.ndarray) -> dict[int, float]:
    """Return how much successive records of a file differ, for each possible number of columns.

    `numbers` [n] are the first numbers of the file. The result is ``{number of columns:
    difference}``. All numbers are replaced by their ranks. The difference is the mean squared
    difference between ranks in the same column of successive records, scaled so that random noise
    gives 1. The ranks of the absolute values give a second mean; both means are averaged.
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
    """Read a point cloud from a ``.bin`` file of float32 records without a header.

    ``options.columns`` is the number of columns or their names, which :mod:`voxax.io.columns`
    lists. None means KITTI's x, y, z (meters) and intensity, after a check that this is plausible
    (:func:`voxax.io.records.check_width`).

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
            # The meaning of other columns is unknown: a ring and a color are both whole numbers.
            own = (f"column_{column}" for column in range(3, columns))
            columns = KITTI_FIELDS if columns == len(KITTI_FIELDS) else (*POSITION, *own)
    rows = records(path, "<f4", len(columns), "sweep")
    return cloud_from_columns(named_rows(rows, columns, str(path)), str(path), options.label_field)


def read_nuscenes(path: Path, options: ReadOptions = DEFAULT) -> PointCloud:
    """Read a nuScenes ``.pcd.bin``: float32 x, y, z (meters), intensity and ring (laser beam).

    The ring becomes int32; an invalid ring becomes -1. If the file has other columns, give them as
    ``options.columns``; then :func:`read_bin` reads it, and a ring remains float32.
    """
    if options.columns is not None:
        return read_bin(path, options)
    cloud = read_bin(path, replace(options, columns=NUSCENES_FIELDS))
    ring = cloud.attributes["ring"]
    # NaN fails these comparisons. It must not be converted to an integer.
    usable = (ring >= 0) & (ring < np.iinfo(np.int16).max)
    rings = np.where(usable, ring, NO_RING).astype(np.int32)
    return replace(cloud, attributes=cloud.attributes | {"ring": rings})


def read_packed_labels(
    path: Path, label_field: str | None = None
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Read a SemanticKITTI ``.label`` file, which has a uint32 for each of N points.

    The low 16 bits are the class, and the high 16 bits are the number of the object. `label_field`
    chooses the labels: the class (``semantic`` or None) or the object (``instance``).

    Returns:
      The raw class ids, int32 [N] (see :func:`voxax.io.semantic_kitti.to_common_classes`), and
      ``{"instance": int32 [N]}``. If `label_field` is ``instance``, the object numbers and ``{}``.
    """
    check_magic(path)
    packed = records(path, "<u4", 1, "SemanticKITTI label file")[:, 0]
    halves = {"semantic": packed & 0xFFFF, "instance": packed >> 16}
    return labels_from_arrays(halves, str(path), label_field)
