"""``voxax evaluate`` scores a trained network on all scans of a data set's split."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro


def evaluate(
    checkpoint: Annotated[Path, tyro.conf.Positional],
    data: Annotated[Path, tyro.conf.Positional],
    format: str | None = None,
    split: str = "validation",
    sweeps: int | None = None,
    out: Path = Path("voxax-out"),
    workers: int = 1,
    tile: float = 0.0,
    views: int = 1,
) -> int:
    """Score a trained network on all scans of a data set's split.

    Writes metrics.json. For classes of points or clouds it also writes the confusion matrix, as a
    picture and as a table. Scores are computed as in `voxax train` and in the benchmarks.

    Args:
      checkpoint: Folder that `voxax train` wrote.
      data: Folder of the data set, or the configuration of `voxax train`.
      format: Layout of the folder, as data.format of a configuration. By default it is
          recognized by the files in the folder.
      split: train, validation or test; names of scans with commas between; or a text file that
          names one on each line.
      sweeps: Number of sweeps in each scan of nuScenes, as data.sweeps of a configuration.
      out: Folder for the results.
      workers: Processes that read scans.
      tile: Edge in meters of overlapping tiles that vote on the class of each point; 0 takes
          scans whole.
      views: Number of angles around the vertical axis at which a scan is predicted; the predictions
          vote on the class of each point.
    """
    from voxax import _limits
    from voxax._atomic_file import write_atomically
    from voxax._version import __version__
    from voxax.cli.apply import Trained
    from voxax.cli.process import keep_heap
    from voxax.cli.progress import print_table, scan_bar, working
    from voxax.cli.run_folder import check_writable
    from voxax.cli.scenes import run
    from voxax.cli.segmentation_task import Segmentation
    from voxax.cli.split_data import split_data
    from voxax.cli.tasks import task_of
    from voxax.cli.voting import Vote
    from voxax.errors import InputError
    from voxax.hardware import keep_programs
    from voxax.io.pipeline import Pipeline
    from voxax.plot import confusion_png

    keep_heap()
    keep_programs()
    _limits.WORKERS.check("--workers", workers, 0)
    vote = Vote(tile, views)
    # Faults of the files are reported before a network is built.
    task = task_of(checkpoint)
    with working(f"looking for the scans of {data}", begin=False):
        found = split_data(data, format, split, sweeps=sweeps)
    if isinstance(task, Segmentation):
        vote.check(task.longest_edge)
    elif vote != Vote():
        raise InputError(f"--tile and --views are for segmentation, and not to {task.task}")
    found.check_classes(task.class_names, f"the network in {checkpoint}")
    check_writable(out)
    with working("loading the network", begin=False):
        network = Trained(checkpoint)
    score = network.task.score()
    with Pipeline(run, workers=workers) as pipeline, scan_bar(len(found.scans)) as bar:
        for scene in pipeline(found.scans):
            if vote == Vote():
                score.add(*network.predict(scene))
            else:
                score.add(scene.labels, vote(scene, network.logits))
            bar()
    metrics = {
        "task": task.task,
        **score.metrics(),
        "checkpoint": str(checkpoint),
        "data": str(data),
        "split": split,
        "scans": len(found.scans),
        "versions": {"voxax": __version__},
    }
    paths = {"metrics": write_atomically(out / "metrics.json", json.dumps(metrics, indent=2))}
    matrix = getattr(score, "matrix", None)
    if matrix is not None:
        table = _csv(matrix, task.class_names)
        paths["table"] = write_atomically(out / "confusion.csv", table)
        title = f"voxax evaluate: {score.figure} {score.value():.3f}"
        paths["picture"] = confusion_png(
            out / "confusion.png", matrix, task.class_names, title=title
        )
    columns, rows = score.table()
    print_table(columns, rows, f"{split}: {score.figure} {score.value():.3f}", columns[1:])
    for label, path in paths.items():
        print(f"{label:>10}  {path}")
    return 0


def _csv(matrix: np.ndarray, names: Sequence[str]) -> str:
    quoted = ['"' + name.replace('"', '""') + '"' for name in names]
    rows = [
        ",".join([name, *map(str, row)]) for name, row in zip(quoted, matrix.tolist(), strict=True)
    ]
    return "\n".join([",".join(["true \\ predicted", *quoted]), *rows]) + "\n"
