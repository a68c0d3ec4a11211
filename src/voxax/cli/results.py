"""Results for all scans of a folder: files for a benchmark's server, or one for each scan."""

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
    """Writer of the results of scans; see :class:`voxax.io.submission.Submission`."""

    def add(self, scan: Any, read: Any, found: Any) -> None:
        """Write what was found in a scan."""

    def close(self) -> Path:
        """Finish, and return where the results are."""
        ...


class LabeledScans:
    """A labeled PLY for each scan."""

    def __init__(self, folder: Path, class_names: Sequence[str]) -> None:
        self.folder, self._names = folder, _Names()
        self._colors = np.stack([rgb(color) for color in class_colors(class_names)])

    def add(self, scan: Any, read: Any, found: np.ndarray) -> None:
        """Write the points with their labels."""
        path = self.folder / f"{self._names(scan)}_labeled.ply"
        write_ply(path, read.positions, labels=found, colors=self._colors[found])

    def close(self) -> Path:
        """Return the folder."""
        return self.folder


class BoxedScans:
    """Boxes in JSON for each scan; args as of :class:`LabeledScans`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._names = folder, _Names()

    def add(self, scan: Any, read: Any, found: Objects) -> None:
        """Write the boxes."""
        write_boxes(self.folder / f"{self._names(scan)}_boxes.json", found)

    def close(self) -> Path:
        """Return the folder."""
        return self.folder


class _Names:
    """Names for the files of scans; scans of one name in different folders get numbers."""

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
    """Predict each scan, of a layout or of none, and write its result; return the exit status.

    `predict` takes what a scan's task returns, and `plain` makes what takes the results where there
    is no benchmark.
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
