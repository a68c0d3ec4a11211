"""``voxax segment`` labels the points of scans with a trained network."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import tyro

from voxax.plot.camera import UPRIGHT, Up

if TYPE_CHECKING:
    from voxax.cli.apply import Trained
    from voxax.cli.published import PublishedSegmenter
    from voxax.cli.voting import Vote
    from voxax.io import PointCloud

_SPAN = 40  # number of voxels that a small object spans after enlarging


def segment(
    file: Annotated[Path, tyro.conf.Positional],
    checkpoint: Path | None = None,
    network: str | None = None,
    weights: str | None = None,
    classes: str | None = None,
    voxel_size: str | None = None,
    attributes: str | None = None,
    signed_colors: bool = False,
    source: str | None = None,
    options: str = "",
    out: Path = Path("voxax-out"),
    scale: float | None = None,
    up: Up = "z",
    columns: str | None = None,
    item: int | None = None,
    format: str | None = None,
    split: str = "test",
    workers: int = 1,
    tile: float = 0.0,
    views: int = 1,
) -> int:
    """Label every point of a scan, or of all scans of a data set.

    For a scan, it writes a labeled PLY file and a picture. For a folder in the layout of a
    benchmark, it writes the files that the benchmark's server accepts. For other folders, it writes
    a labeled PLY file for each scan.

    The network comes from a checkpoint, or is one of `voxax.models` with a file of weights.

    Args:
      file: The scan, a folder, or a configuration of `voxax train`. Scans are .bin, .pcd.bin,
          .ply, .pcd, .las, .laz, .npz, .npy, .txt, .csv, .xyz, .pts, .h5, .pth, .feather,
          .parquet, .e57, .ptx or meshes; also with .gz.
      checkpoint: Folder that `voxax demo` or `voxax train` wrote.
      network: Name of a network instead of a checkpoint, such as spunet-34c. It needs the next
          four options.
      weights: Weights of the network: .safetensors, a PyTorch file, or hf://owner/name/file.
      classes: Classes of the network: their number, names with commas between, semantic_kitti or
          scannet.
      voxel_size: Edge of a voxel in the scan's units, one for all axes or three: 0.05.
      attributes: Input channels in their order: xyz, and attributes such as intensity, rgb or
          normals.
      signed_colors: Colors from -1 to 1, as Pointcept's networks read them, instead of 0 to 1.
      source: Codebase that wrote the weights, if their names do not show it: torch-pointcloud.
      options: Arguments of the network's class that differ from its defaults: stem=16, width=0.5.
      out: Folder for the results.
      scale: Meters per unit of the file (0.3048 for feet). By default 1, but objects that are too
          small for the voxels of a checkpoint's network are enlarged.
      up: Which axis points up; -y for camera frames.
      columns: Columns of a file that does not name them (.bin, text): their number, or names
          such as x,y,z,red,green,blue.
      item: Number of the scan to take from a file with several (.h5, .npy, .e57).
      format: Layout of a folder, as data.format of a configuration. By default it is recognized
          from the files in the folder.
      split: Scans of a layout: train, validation or test; names with commas between; or a text
          file that names one on each line.
      workers: Processes that read the scans of a folder.
      tile: Edge in meters of overlapping tiles that vote on the class of each point, so that a
          huge scan needs only the memory for one tile; 0 takes scans whole.
      views: Number of angles around the vertical axis at which a scan is predicted; the predictions
          vote on the class of each point.
    """
    from voxax.cli.process import keep_heap
    from voxax.hardware import keep_programs

    keep_heap()
    keep_programs()
    from voxax.cli.apply import Trained
    from voxax.cli.progress import working
    from voxax.cli.published import PublishedSegmenter, check_choice
    from voxax.cli.results import write_all
    from voxax.cli.run_folder import check_writable
    from voxax.cli.segmentation_task import Segmentation
    from voxax.cli.split_data import found_scans
    from voxax.cli.tasks import task_as
    from voxax.cli.voting import Vote
    from voxax.errors import InputError
    from voxax.io import read

    if scale is not None and not (np.isfinite(scale) and scale > 0):
        raise InputError(f"--scale {scale} must be positive and finite")
    vote = Vote(tile, views)
    needed = {
        "weights": weights,
        "classes": classes,
        "voxel_size": voxel_size,
        "attributes": attributes,
    }
    check_choice(checkpoint, network, **needed)
    # Wrong files are reported before a network is built.
    if checkpoint is not None:
        task_as(checkpoint, Segmentation)
    check_writable(out)
    many = file.is_dir() or file.suffix.lower() == ".toml"
    if many:
        if up != "z" or scale is not None or item is not None:
            raise InputError("--up, --scale and --item are for one scan: leave them out")
        data = found_scans(file, format, split, columns)
    else:
        with working(f"reading {file}", begin=False):
            cloud = read(file, columns=columns, item=item)
    segmenter: Trained | PublishedSegmenter
    with working("loading the network", begin=False):
        if checkpoint is not None:
            segmenter = Trained(checkpoint, Segmentation)
        else:
            told = network, signed_colors, source, options
            segmenter = PublishedSegmenter(*told, **needed)  # type: ignore[arg-type]
    vote.check(segmenter.voxel_size)
    if many:
        return write_all(
            data,
            out,
            workers,
            "segment",
            segmenter.class_names,
            lambda read: vote(read, segmenter.logits),
        )
    return _label(segmenter, vote, file, cloud, out, up, scale, checkpoint is not None)


def _label(
    segmenter: Trained | PublishedSegmenter,
    vote: Vote,
    file: Path,
    cloud: PointCloud,
    out: Path,
    up: Up,
    scale: float | None,
    enlarge: bool,
) -> int:
    """Label one scan, write a labeled PLY file and a PNG picture to `out`, and return 0.

    The result is the exit status. `cloud` is the scan that was read from `file`, and `up` is the
    axis of the scan that points up. `scale` and `enlarge` are as in :func:`_scale`.
    """
    from voxax.cli.progress import MESSAGES, working
    from voxax.cli.scenes import near_origin
    from voxax.io import write_ply
    from voxax.plot import class_colors, rgb, segmentation_png

    upright = dataclasses.replace(cloud, positions=cloud.positions @ UPRIGHT[up].T)
    factor, note = _scale(upright.positions, segmenter.voxel_size, scale, enlarge)
    metric = dataclasses.replace(upright, positions=upright.positions * factor)
    with working(MESSAGES["run"], begin=False):
        prediction = vote(metric, segmenter.logits)
    names = segmenter.class_names

    # Results of files that differ only in their suffix must not overwrite each other.
    name = file.name.replace(".", "_")
    colors = np.stack([rgb(color) for color in class_colors(names)])
    ply = out / f"{name}_labeled.ply"
    with working("writing the results", begin=False):
        write_ply(ply, cloud.positions, labels=prediction, colors=colors[prediction])
        picture = segmentation_png(
            out / f"{name}_labeled.png",
            near_origin(upright.positions) * (scale or 1.0),
            prediction,
            None,
            names,
            title=f"voxax segment: {file.name}",
            subtitle=note,
        )
    size = f"voxels of {segmenter.voxel_size} m"
    size = f"tiles of {vote.tile} m, {size}" if vote.tile else f"{segmenter.num_voxels} {size}"
    print(f"{len(cloud)} points in {size}. {note}".strip())
    shares = np.bincount(prediction, minlength=len(names)) / max(len(cloud), 1)
    print(", ".join(f"{n} {s:.0%}" for n, s in zip(names, shares, strict=True)))
    print(f"{'labeled':>10}  {ply}\n{'picture':>10}  {picture}")
    return 0


def _scale(
    positions: np.ndarray, voxel_size: float, scale: float | None, enlarge: bool
) -> tuple[float, str]:
    """Return ``(factor, remark)``: the network needs the `positions` multiplied by the factor.

    The factor is `scale` if that is not None. Otherwise it is 1, unless `enlarge` is True and the
    scan spans less than ``_SPAN`` voxels. Then the factor scales the scan up to that size, and the
    remark tells the user so. In all other cases the remark is empty.
    """
    if scale is not None or not enlarge or len(positions) < 2:
        return scale or 1.0, ""
    low, high = np.percentile(positions, [2, 98], axis=0)
    extent = float(np.max(high - low))
    if extent >= _SPAN * voxel_size or extent == 0:
        return 1.0, ""
    factor = _SPAN * voxel_size / extent
    return factor, (
        f"The scan spans {extent:.3g} units, less than {_SPAN} voxels of {voxel_size} m: enlarged "
        f"{factor:.3g} times for the network (--scale 1 forbids)."
    )
