"""Predict all scans of a folder, and write files for a benchmark's server or one file per scan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from voxax import _limits
from voxax.cli.progress import scan_bar
from voxax.cli.scenes import run
from voxax.cli.split_data import SplitData
from voxax.detection import Objects
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
          read: the scan.
          found: prediction for the scan.
        """

    def close(self) -> Path:
        """Finish writing, and return the path of the results."""
        ...


class LabeledScans:
    """Writer of a labeled PLY file for each scan, into a folder."""

    def __init__(self, folder: Path, class_names: Sequence[str]) -> None:
        self.folder, self._names = folder, _Names()
        self._colors = np.stack([rgb(color) for color in class_colors(class_names)])

    def add(self, scan: Any, read: Any, found: np.ndarray) -> None:
        """Write the points of the scan `read` with the predicted labels `found`."""
        path = self.folder / f"{self._names(scan)}_labeled.ply"
        write_ply(path, read.positions, labels=found, colors=self._colors[found])

    def close(self) -> Path:
        """Return the folder."""
        return self.folder


class BoxedScans:
    """Writer of a JSON file with the boxes for each scan, into a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._names = folder, _Names()

    def add(self, scan: Any, read: Any, found: Objects) -> None:
        """Write the predicted boxes `found`."""
        write_boxes(self.folder / f"{self._names(scan)}_boxes.json", found)

    def close(self) -> Path:
        """Return the folder."""
        return self.folder


class _Names:
    """Function that returns a distinct file name for each scan; equal names get numbers."""

    def __init__(self) -> None:
        self._taken: dict[str, int] = {}

    def __call__(self, scan: Any) -> str:
        name = Path(str(scan)).name.replace(".", "_")
        number = self._taken[name] = self._taken.get(name, 0) + 1
        return name if number == 1 else f"{name}_{number}"


def write_all(
    data: SplitData | Sequence[Any],
    out: Path,
    workers: int,
    class_names: Sequence[str],
    predict: Callable[[Any], Any],
    plain: Callable[[], Results],
) -> int:
    """Predict each scan, write the predictions, and return the exit status 0.

    Args:
      data: scans of a split, or tasks that read the scans of a folder without a known layout.
      out: folder for the files of a benchmark.
      workers: number of processes that read scans.
      class_names: names of the network's classes, which must be the classes of a split's data.
      predict: function from a scan to its prediction.
      plain: function that makes the writer for data without a benchmark.
    """
    _limits.WORKERS.check("--workers", workers, 0)
    results = plain()
    scans = data.scans if isinstance(data, SplitData) else data
    if isinstance(data, SplitData):
        data.check_classes(class_names, "the network")
        kind = SUBMISSIONS.get(data.format)
        task = "detect" if isinstance(results, BoxedScans) else "segment"
        if data.layout.task != task:
            raise InputError(
                f"{data.layout.folder} is for the task {data.layout.task!r}: `voxax "
                f"{data.layout.task}` takes it"
            )
        if kind is not None:
            if data.radius:
                raise InputError(
                    f"data.radius = {data.radius}: a benchmark wants every point; set it to 0"
                )
            results = kind(out, data.layout, data.split)
    with Pipeline(run, workers=workers) as pipeline, scan_bar("scans", len(scans)) as bar:
        for scan, read in zip(scans, pipeline(scans), strict=True):
            results.add(scan, read, predict(read))
            bar()
    print(f"{len(scans)} scans\n{'results':>10}  {results.close()}")
    return 0
