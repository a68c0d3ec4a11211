"""``voxax segment`` labels a scan with a trained network."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import tyro

Up = Literal["z", "y", "-y"]
_SPAN = 40  # voxels that a small object is scaled to span


def segment(
    file: Annotated[Path, tyro.conf.Positional],
    checkpoint: Path,
    out: Path = Path("voxax-out"),
    scale: float | None = None,
    up: Up = "z",
    columns: str | None = None,
    item: int | None = None,
) -> int:
    """Label every point of a scan; write a labelled PLY and a picture.

    Args:
        file: The scan: .bin, .pcd.bin, .ply, .pcd, .las, .laz, .npz, .npy, .txt, .csv, .xyz, .pts,
            .h5, .pth, .feather, .parquet, .e57 or a mesh; also with .gz.
        checkpoint: Folder that `voxax demo` or `voxax train` wrote.
        out: Folder for the results.
        scale: Meters per unit of the file (0.3048 for feet). By default 1, and objects too
            small for the network's voxels are enlarged.
        up: Which axis points up; -y for camera frames.
        columns: Columns of a file that does not name them (.bin, text): their number, or names
            such as x,y,z,red,green,blue.
        item: The number of one scan, in a file of several (.h5, .npy, .e57).
    """
    from voxax.cli.process import keep_heap

    keep_heap()
    from voxax.cli.scenes import near_origin
    from voxax.cli.segmentation_task import Segmentation
    from voxax.cli.tasks import restore, task_as
    from voxax.errors import InputError
    from voxax.geometry import Plan
    from voxax.io import read, write_ply
    from voxax.plot import class_colors, rgb, segmentation_png

    if scale is not None and not (np.isfinite(scale) and scale > 0):
        raise InputError(f"--scale {scale} must be positive and finite")
    config = task_as(checkpoint, Segmentation)
    cloud = read(file, columns=columns, item=item)
    trainer = restore(checkpoint, config.trainer())

    upright = dataclasses.replace(cloud, positions=_upright(cloud.positions, up))
    factor, note = _scale(upright.positions, config.voxel_size, scale)
    metric = dataclasses.replace(upright, positions=upright.positions * factor)
    preparation = config.preparation()
    example = preparation(metric)
    plan = Plan.record(trainer.model(), example.voxels)
    voxels = plan.attach(example.voxels)
    logits = trainer.logits(voxels)
    prediction = logits[example.inverse].argmax(-1).astype(np.int32)

    out.mkdir(parents=True, exist_ok=True)
    # Two files of one name but different kinds must not overwrite each other's results.
    name = file.name.replace(".", "_")
    colors = np.stack([rgb(color) for color in class_colors(config.class_names)])
    ply = out / f"{name}_labelled.ply"
    write_ply(ply, cloud.positions, labels=prediction, colors=colors[prediction])
    picture = segmentation_png(
        out / f"{name}_labelled.png",
        near_origin(upright.positions) * (scale or 1.0),
        prediction,
        None,
        config.class_names,
        title=f"voxax segment: {file.name}",
        subtitle=note,
    )
    count = int(example.voxels.count)
    print(f"{len(cloud)} points in {count} voxels of {config.voxel_size} m. {note}".strip())
    shares = np.bincount(prediction, minlength=len(config.class_names)) / max(len(cloud), 1)
    print(", ".join(f"{n} {s:.0%}" for n, s in zip(config.class_names, shares, strict=True)))
    print(f"{'labelled':>10}  {ply}\n{'picture':>10}  {picture}")
    return 0


def _upright(positions: np.ndarray, up: Up) -> np.ndarray:
    """Turn the file's axes so that z points up; right-handed frames stay right-handed."""
    x, y, z = positions.T
    if up == "y":
        return np.stack([x, -z, y], axis=1)
    if up == "-y":
        return np.stack([x, z, -y], axis=1)
    return positions


def _scale(positions: np.ndarray, voxel_size: float, scale: float | None) -> tuple[float, str]:
    """``(meters per unit, remark)``; small objects are enlarged to ``_SPAN`` voxels."""
    if scale is not None or len(positions) < 2:
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
