"""Which reader opens which file, by the end of its name."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from voxax.errors import FileFormatError
from voxax.io.kitti import read_kitti, read_nuscenes
from voxax.io.labels import LABEL_READERS
from voxax.io.las import read_las
from voxax.io.mesh import read_mesh
from voxax.io.npz import read_npz
from voxax.io.pcd import read_pcd
from voxax.io.ply import read_ply
from voxax.io.point_cloud import PointCloud


@dataclass(frozen=True)
class Format:
    """One kind of file.

    Args:
        name: for people.
        extensions: with the dot, lower case.
        reader: takes the path and, where `surface` is set, ``points`` and ``seed``.
        surface: it may hold a mesh, whose surface is sampled.
    """

    name: str
    extensions: tuple[str, ...]
    reader: Callable[..., PointCloud]
    surface: bool = False


FORMATS = (
    Format("nuScenes sweep", (".pcd.bin",), read_nuscenes),
    Format("KITTI or SemanticKITTI sweep", (".bin",), read_kitti),
    Format("PLY points or mesh", (".ply",), read_ply, surface=True),
    Format("PCD points", (".pcd",), read_pcd),
    Format("LAS points", (".las", ".laz"), read_las),
    Format("NumPy archive", (".npz",), read_npz),
    Format("mesh", (".obj", ".stl", ".off", ".glb"), read_mesh, surface=True),
)


def readable_extensions() -> tuple[str, ...]:
    """The ends of file names that :func:`voxax.io.read` knows, sorted."""
    return tuple(sorted(extension for kind in FORMATS for extension in kind.extensions))


def format_of(path: Path) -> Format:
    """The format of a file, by the longest known end of its name.

    Raises:
        FileFormatError: no known extension fits; the message lists them.
    """
    name = path.name.lower()
    fitting = [
        (len(extension), kind)
        for kind in FORMATS
        for extension in kind.extensions
        if name.endswith(extension)
    ]
    if fitting:
        # The longest one decides: a nuScenes sweep, .pcd.bin, also ends in .bin.
        return max(fitting, key=lambda pair: pair[0])[1]
    suffix = path.suffix.lower()
    if suffix in LABEL_READERS:
        raise FileFormatError(
            f"{path} holds labels, not points: read the scan and pass this as labels="
        )
    raise FileFormatError(
        f"cannot tell the format of {path}: its name ends in {suffix or 'nothing'}, "
        f"known are {', '.join(readable_extensions())}"
    )
