"""``voxax detect`` finds the boxes of objects in a scan with a trained network."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import tyro

if TYPE_CHECKING:
    from voxax.detection import Objects


def detect(
    file: Annotated[Path, tyro.conf.Positional],
    checkpoint: Path | None = None,
    network: str | None = None,
    weights: str | None = None,
    classes: str | None = None,
    voxel_size: str | None = None,
    region: str | None = None,
    attributes: str | None = None,
    source: str | None = None,
    options: str = "",
    min_score: float | None = None,
    out: Path = Path("voxax-out"),
    columns: str | None = None,
    item: int | None = None,
    format: str | None = None,
    split: str = "test",
    sweeps: int | None = None,
    workers: int = 1,
) -> int:
    """Find the boxes of objects in a scan, or in all scans of a data set.

    For a scan, it writes the boxes as JSON, and a picture. For a folder in the layout of a
    benchmark, it writes the files that the benchmark's server accepts. For other folders, it writes
    a JSON file for each scan.

    The network comes from a checkpoint, or is one of `voxax.models` with a file of weights. The
    scan is in the sensor's frame, in meters, with z up.

    Args:
      file: A scan in a format that `voxax segment` reads, a folder of scans, or a configuration of
          `voxax train`.
      checkpoint: Folder that `voxax train` wrote with task = "detect", or `voxax demo`.
      network: Name of a detector instead of a checkpoint, such as centerpoint. It needs the next
          five options.
      weights: Weights of the network: .safetensors, a PyTorch file, or hf://owner/name/file.
      classes: Classes of the network: kitti, nuscenes, argoverse2, their number, or names with
          commas between.
      voxel_size: Edge of a voxel in meters, one for all axes or three: 0.05,0.05,0.1.
      region: Lower x, y, z and upper x, y, z of the detector's region:
          --region=0,-40,-3,70.4,40,1.
      attributes: Input channels in their order: xyz, attributes such as intensity, and zero for a
          channel of zeros, such as the time of a single sweep.
      source: Codebase that wrote the weights, if the names of the weights do not show it:
          torch-pointcloud.
      options: Arguments of the network's class that differ from its defaults, such as
          groups=[[0], [1, 2]].
      min_score: Leave out boxes with a lower score. By default 0.3 for a scan; 0 for a folder,
          since benchmarks rank all boxes.
      out: Folder for the results.
      columns: Columns of a file that does not name them (.bin, text): their number, or names
          such as x,y,z,intensity.
      item: Number of the scan to take from a file with several (.h5, .npy, .e57).
      format: Layout of a folder, as data.format of a configuration. By default it is detected from
          the contents of the folder.
      split: Scans of a layout: train, validation or test; names with commas between; or a text
          file that names one on each line.
      sweeps: Number of sweeps in each scan of nuScenes, as data.sweeps of a configuration.
      workers: Processes that read the scans of a folder.
    """
    from voxax.cli.process import keep_heap
    from voxax.hardware import keep_programs

    keep_heap()
    keep_programs()
    from voxax.cli.apply import TrainedDetector
    from voxax.cli.detection_task import Detection
    from voxax.cli.progress import MESSAGES, working
    from voxax.cli.published import PublishedDetector, check_choice
    from voxax.cli.results import write_all
    from voxax.cli.run_folder import check_writable
    from voxax.cli.split_data import found_scans
    from voxax.cli.tasks import task_as
    from voxax.errors import InputError
    from voxax.io import read
    from voxax.io.box_file import write_boxes
    from voxax.plot import detection_png

    many = file.is_dir() or file.suffix.lower() == ".toml"
    if min_score is None:
        min_score = 0.0 if many else 0.3
    if not 0 <= min_score <= 1:
        raise InputError(f"--min-score {min_score} must lie in 0..1")
    needed = {
        "weights": weights,
        "classes": classes,
        "voxel_size": voxel_size,
        "region": region,
        "attributes": attributes,
    }
    check_choice(checkpoint, network, **needed)
    # Report errors in the files before building a network.
    if checkpoint is not None:
        task_as(checkpoint, Detection)
    check_writable(out)
    if many:
        data = found_scans(file, format, split, columns, sweeps)
    else:
        with working(f"reading {file}", begin=False):
            cloud = read(file, columns=columns, item=item)
    detector: TrainedDetector | PublishedDetector
    with working("loading the network", begin=False):
        if checkpoint is not None:
            detector = TrainedDetector(checkpoint)
        else:
            told = network, source, options, min_score
            detector = PublishedDetector(*told, **needed)  # type: ignore[arg-type]
    if many:
        return write_all(
            data,
            out,
            workers,
            "detect",
            detector.class_names,
            lambda read: _above(detector(getattr(read, "cloud", read)), min_score),
        )
    if isinstance(detector, TrainedDetector):
        detector.check(cloud)
    with working(MESSAGES["run"], begin=False):
        objects = _above(detector(cloud), min_score)

    name = file.name.replace(".", "_")
    path = write_boxes(out / f"{name}_boxes.json", objects)
    picture = detection_png(
        out / f"{name}_boxes.png",
        cloud.positions,
        objects,
        None,
        detector.class_names,
        title=f"voxax detect: {file.name}",
        min_score=min_score,
    )
    found = [(n, int(np.sum(objects.classes == n))) for n in detector.class_names]
    print(", ".join(f"{count} {n}" for n, count in found if count) or "no boxes")
    print(f"{'boxes':>10}  {path}\n{'picture':>10}  {picture}")
    return 0


def _above(objects: Objects, min_score: float) -> Objects:
    kept = objects.scores >= min_score
    return dataclasses.replace(
        objects,
        boxes=objects.boxes[kept],
        classes=objects.classes[kept],
        scores=objects.scores[kept],
    )
