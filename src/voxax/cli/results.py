"""Predict all scans of a folder, and write files for a benchmark's server or one file per scan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from voxax import _limits
from voxax.cli.progress import command_of, scan_bar
from voxax.cli.scenes import run
from voxax.cli.split_data import SplitData
from voxax.errors import InputError
from voxax.io import write_ply
from voxax.io.box_file import write_boxes
from voxax.io.pipeline import Pipeline
from voxax.io.submission import SUBMISSIONS
from voxax.plot import class_colors, rgb


class Results(Protocol):
    """Interface of writers of predictions, such as :class:`voxax.io.submission.Submission`."""

    def add(self, scan: Any, read: Any, found: Any) -> None:
        """Write the prediction for one scan.

        Args:
          scan: task that reads the scan; its ``str`` is the scan's name.
          read: the scan that this task returned.
          found: prediction for the scan: labels of its points, or boxes.
        """

    def close(self) -> Path:
        """Finish writing, and return the path of the results."""
        ...


class ScanFiles:
    """Writer of one file for each scan into a folder: labeled points, or the boxes as JSON.

    If several scans have the same name, a number is added to the names of their files.
    """

    def __init__(self, folder: Path, task: str, class_names: Sequence[str]) -> None:
        self._folder, self._task = folder, task
        self._colors = np.stack([rgb(color) for color in class_colors(class_names)])
        self._taken: dict[str, int] = {}

    def add(self, scan: Any, read: Any, found: Any) -> None:
        """Write the prediction `found` for a scan to a file that is named after the task `scan`.

        Labels are written with the points of the scan `read`. Boxes are written without points.
        """
        name = Path(str(scan)).name.replace(".", "_")
        number = self._taken[name] = self._taken.get(name, 0) + 1
        if number > 1:
            name = f"{name}_{number}"
        if self._task == "detect":
            write_boxes(self._folder / f"{name}_boxes.json", found)
        else:
            path = self._folder / f"{name}_labeled.ply"
            write_ply(path, read.positions, labels=found, colors=self._colors[found])

    def close(self) -> Path:
        """Return the folder."""
        return self._folder


def write_all(
    data: SplitData | Sequence[Any],
    out: Path,
    workers: int,
    task: Literal["segment", "detect"],
    class_names: Sequence[str],
    predict: Callable[[Any], Any],
) -> int:
    """Predict each scan, write the predictions, and return the exit status 0.

    Args:
      data: scans of a split, or tasks that read the scans of a folder without a known layout.
      out: folder for the files.
      workers: number of processes that read scans.
      task: what the network predicts: labels of points, or boxes.
      class_names: names of the network's classes, which must be the classes of a split's data.
      predict: function from a scan to its prediction.
    """
    _limits.WORKERS.check("--workers", workers, 0)
    results: Results = ScanFiles(out, task, class_names)
    scans = data.scans if isinstance(data, SplitData) else data
    if isinstance(data, SplitData):
        data.check_classes(class_names, "the network")
        kind = SUBMISSIONS.get(data.format)
        if data.layout.task != task:
            raise InputError(
                f"{data.layout.folder} is for the task {data.layout.task!r}: `voxax "
                f"{command_of(data.layout.task)}` takes it"
            )
        if kind is not None:
            if data.radius:
                raise InputError(
                    f"data.radius = {data.radius}: a benchmark wants every point; set it to 0"
                )
            results = kind(out, data.layout, data.split)
    with Pipeline(run, workers=workers) as pipeline, scan_bar(len(scans)) as bar:
        for scan, read in zip(scans, pipeline(scans), strict=True):
            results.add(scan, read, predict(read))
            bar()
    print(f"{len(scans)} scans\n{'results':>10}  {results.close()}")
    return 0
