"""``voxax view`` shows a scan in a browser, colored by labels, errors or attributes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import tyro

from voxax import _limits
from voxax._interrupts import mark_handled
from voxax.errors import FileFormatError, InputError
from voxax.plot.camera import UPRIGHT, Up

if TYPE_CHECKING:
    from voxax.io import PointCloud
    from voxax.plot.boxed import BoxKind
    from voxax.plot.coloring import Coloring
    from voxax.plot.viewer import Stepped

# Attributes with more columns are feature vectors, which are not useful as colors.
_WIDEST = 4


def view(
    file: Annotated[Path, tyro.conf.Positional],
    predictions: Path | None = None,
    labels: Path | None = None,
    label_field: str | None = None,
    columns: str | None = None,
    item: int | None = None,
    checkpoint: Path | None = None,
    classes: str | None = None,
    boxes: Path | None = None,
    color: str | None = None,
    voxel_size: float | None = None,
    up: Up = "z",
    host: str = "127.0.0.1",
    port: int = 8080,
) -> int:
    """Show a scan in a browser, until Ctrl-C.

    Points are colored by label, prediction, error, height, or an attribute of the file, such as
    intensity, rgb or kernel_size. With --voxel-size they are also colored by the tile of voxels
    that a TPU kernel computes at a time, and by the window of voxels that it reads for one tile.
    --boxes draws boxes around objects: found boxes with scores in the colors of their classes, true
    boxes dashed.

    Args:
      file: The scan: .bin, .pcd.bin, .ply, .pcd, .las, .laz, .npz, .npy, .txt, .csv, .xyz, .pts,
          .h5, .pth, .feather, .parquet, .e57, .ptx or a mesh; also with .gz.
      predictions: Predicted labels: .label, .npy, .npz, or a scan of the same points with labels,
          as `voxax segment` writes.
      labels: True labels (.label, .npy, .npz), if the scan has none.
      label_field: Column or array with the true labels, if its name is not a usual one.
      columns: Columns of a file that does not name them (.bin, text): their number, or names
          such as x,y,z,red,green,blue.
      item: Number of the scan to take from a file with several (.h5, .npy, .e57).
      checkpoint: Folder that `voxax demo` or `voxax train` wrote, for the names of the classes.
          By default the folder `checkpoint` beside the predictions or the scan, if there is one.
      classes: Names of the classes, as ground,car,tree, instead of a checkpoint's.
      boxes: JSON file with found boxes (which have scores) or true boxes; or a folder with both,
          found.json and true.json, as `voxax demo --task detect` writes it.
      color: Coloring to show first: label, prediction, error, height, tile, window, or the name
          of an attribute. By default the first available of error, prediction, label, rgb and
          height.
      voxel_size: Edge of a voxel in the scan's units, for tile and window.
      up: Which axis points up; -y for camera frames.
      host: Address to listen on. The default accepts connections from this machine only.
      port: First port to try; the next free one is taken.
    """
    from voxax.io import read
    from voxax.plot.viewer import Viewer

    if voxel_size is not None:
        _limits.VOXEL_SIZE.check("--voxel-size", voxel_size, _limits.LEAST_VOXEL_SIZE)
    if not 0 <= port < 2**16:
        raise InputError(f"--port {port} must lie in 0..65535, which are all that there are")
    if checkpoint is not None and classes is not None:
        raise InputError("--classes and --checkpoint both name the classes: give one of them")
    scan = partial(read, file, columns=columns, item=item)
    cloud = scan(labels, label_field=label_field)
    predicted = None if predictions is None else _predicted(scan, file, cloud, predictions)
    names = tuple(classes.split(",")) if classes else None
    if names is None:
        names = names_of(checkpoint, (predictions, file), (cloud, predicted))
    colorings = colorings_of(cloud, predicted, names, voxel_size, up)
    if color is None:
        favorites = ("error", "prediction", "label", "rgb", "height")
        color = next(name for name in favorites if name in colorings)
    if color in ("tile", "window") and voxel_size is None:
        raise InputError(f"--color {color} needs --voxel-size, the edge of a voxel")
    kinds = [] if boxes is None else boxes_of(boxes)
    viewer = Viewer(
        cloud.positions,
        colorings,
        color,
        title=file.name,
        up=up,
        host=host,
        port=port,
        boxes=kinds,
    )
    try:
        print(f"{file}: {len(cloud):,} points at {viewer.url} (Ctrl-C ends)", flush=True)
        threading.Event().wait()
    except KeyboardInterrupt:
        mark_handled()
        print()
    finally:
        viewer.stop()
    return 0


def names_of(
    checkpoint: Path | None, files: tuple[Path | None, ...], clouds: tuple[PointCloud | None, ...]
) -> tuple[str, ...] | None:
    """Return class names from `checkpoint`, or from a folder ``checkpoint`` beside one of `files`.

    Return None if there is no checkpoint. A folder beside a file is ignored if it has too few names
    for the labels of `clouds`, the contents of the files.
    """
    from voxax.cli.tasks import task_of
    from voxax.models.checkpoint import has_description

    if checkpoint is not None:
        return task_of(checkpoint).class_names
    for file in files:
        near = None if file is None else file.parent / "checkpoint"
        if near is None or not (near.is_dir() and has_description(near)):
            continue
        names = task_of(near).class_names
        labels = [
            cloud.labels for cloud in clouds if cloud is not None and cloud.labels is not None
        ]
        # If a label has no name, the checkpoint belongs to another data set.
        if all(own.max(initial=-1) < len(names) for own in labels):
            return names
    return None


def boxes_of(path: Path) -> list[BoxKind]:
    """Return groups of boxes, found or true, from a JSON file or from the two files in a folder."""
    from voxax.io.box_file import FOUND, TRUE, read_boxes
    from voxax.plot.boxed import box_kinds

    names = (FOUND, TRUE) if path.is_dir() else ("",)
    files = [place for name in names if (place := path / name).is_file()]
    if not files:
        raise FileFormatError(f"{path} has no boxes: give a JSON file, or a folder with {FOUND}")
    given = [read_boxes(file) for file in files]
    classes = sorted({str(name) for objects in given for name in objects.classes.tolist()})
    kinds = []
    for objects in given:
        is_true = objects.scores is None
        kinds += box_kinds(None if is_true else objects, objects if is_true else None, classes)
    return kinds


def colorings_of(
    cloud: PointCloud,
    predicted: PointCloud | None = None,
    names: tuple[str, ...] | None = None,
    voxel_size: float | None = None,
    up: Up = "z",
) -> dict[str, Callable[[], Coloring] | Stepped]:
    """Return the available colorings of a cloud by name, such as ``label`` or ``height``.

    A coloring is a function that computes the colors, or for ``window`` a :class:`Stepped`.

    Args:
      cloud: points, with their attributes and true labels.
      predicted: the same points with predicted labels, or None.
      names: names of the classes, or None.
      voxel_size: edge of a voxel, for the colorings ``tile`` and ``window``; None omits both.
      up: axis that points up, for the coloring ``height``.
    """
    from voxax.plot.coloring import Coloring, by_error, by_feature, by_label

    found: dict[str, Callable[[], Coloring] | Stepped] = {}
    if cloud.labels is not None:
        found["label"] = partial(by_label, cloud.labels, names)
    if predicted is not None and predicted.labels is not None:
        found["prediction"] = partial(by_label, predicted.labels, names)
        if cloud.labels is not None:
            found["error"] = partial(by_error, predicted.labels, cloud.labels)
    found["height"] = partial(by_feature, cloud.positions @ UPRIGHT[up][2])
    attributes = ({} if predicted is None else predicted.attributes) | cloud.attributes
    for name, values in attributes.items():
        if values.dtype.kind not in "biuf":
            continue
        if name == "rgb":
            found[name] = partial(Coloring, values, ())
        elif values.ndim == 1:
            found[name] = partial(by_feature, values)
        elif values.shape[1] <= _WIDEST:
            columns = range(values.shape[1])
            found |= {f"{name} {c}": partial(by_feature, values[:, c]) for c in columns}
    if voxel_size is not None:
        found |= _tiles(cloud.positions, voxel_size)
    return found


def _tiles(positions: np.ndarray, voxel_size: float) -> dict[str, Callable[[], Coloring] | Stepped]:
    """Return two colorings of points, which show how a TPU kernel reads and computes voxels.

    The points `positions` are voxelized first. The coloring ``tile`` shows the blocks of voxels, or
    tiles, that a 3x3x3 submanifold convolution computes at a time. The coloring ``window`` shows
    the voxels that it reads for one tile, which the user selects.
    """
    import voxax as vx
    from voxax.kernels.implicit_gemm.windows import VIEWS, WINDOW_TILE
    from voxax.plot.coloring import by_tile, by_window
    from voxax.plot.viewer import Stepped

    local = (positions - positions.min(axis=0)).astype(np.float32)
    voxels, inverse = vx.voxelize(local, voxel_size=voxel_size, return_inverse=True)
    windows = np.asarray(vx.kernel_map(voxels, kernel_size=3).view("windows", VIEWS["windows"]))
    rows = np.asarray(inverse)
    tiles = -(-int(voxels.count) // WINDOW_TILE)
    return {
        "tile": partial(by_tile, rows, WINDOW_TILE),
        "window": Stepped("Tile", tiles, lambda n: by_window(rows, windows, n, WINDOW_TILE)),
    }


def _predicted(
    scan: Callable[..., PointCloud], file: Path, cloud: PointCloud, path: Path
) -> PointCloud:
    """Return the points of `cloud` with predicted labels, which are read from the file `path`.

    `path` has only labels, or it is a labeled scan of the same points. If it has only labels, the
    result is ``scan(path)``: the function `scan` reads the scan `file` with the labels of `path`.
    """
    from voxax.io import read
    from voxax.io.arrays import position_name
    from voxax.io.formats import LABEL_READERS
    from voxax.io.numpy_files import archive, is_points

    alone = path.suffix.lower() in LABEL_READERS
    if alone and path.suffix.lower() == ".npz" and path.is_file():
        with archive(path) as arrays:
            alone = position_name(arrays) is None
    if path.suffix.lower() == ".npy" and path.is_file():
        alone = not is_points(path)
    if alone:
        return scan(path)
    predicted = read(path)
    if len(predicted) != len(cloud):
        raise InputError(f"{path} has {len(predicted)} points, and {file} has {len(cloud)}")
    if predicted.labels is None:
        raise InputError(
            f"{path} has no labels: --predictions takes a file with one for each point"
        )
    return predicted
