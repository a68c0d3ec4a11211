"""Find the scans of a data set's split, for ``voxax evaluate``, ``segment`` and ``detect``."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from voxax._bounded_file import MEBIBYTE, bounded_text
from voxax.cli.scenes import Near
from voxax.cli.train_config import read_config
from voxax.errors import InputError
from voxax.io.dataset import LAYOUTS, chosen, layout_of, prepared, recognized, scans_of
from voxax.io.labeled_files import LabeledFile, labeled_files
from voxax.io.layout import SPLITS, Layout
from voxax.io.options import checked_columns

# Enough for a list of a million scans.
_MOST_BYTES = 64 * MEBIBYTE


@dataclasses.dataclass(frozen=True)
class SplitData:
    """Scans of one split of a data set.

    Attributes:
      format: name of the data set's layout, such as ``kitti``.
      layout: the data set in its folder, as an object that knows its files and classes.
      split: name of the split, comma-separated names of scans, or path of a text file of names.
      scans: tasks that read the scans.
      radius: distance from the origin in x and y beyond which points are left out; 0 keeps all.
    """

    format: str
    layout: Layout
    split: str
    scans: tuple[Any, ...]
    radius: float = 0.0

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes of the data set's labels or boxes."""
        return self.layout.class_names

    def check_classes(self, names: Sequence[str], network: str) -> None:
        """Raise :class:`voxax.InputError` if a network has other classes than the data set.

        The order of the classes must be the same too.

        Args:
          names: class names of the network.
          network: name of the network in the message.
        """
        if tuple(names) != self.class_names:
            raise InputError(
                f"{network} has the {len(names)} classes {_some(names)}, and {self.layout.folder} "
                f"the {len(self.class_names)} of {self.format}, {_some(self.class_names)}: they "
                "must be the same, in the same order"
            )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + ", ..." * (len(names) > 4)


def split_data(
    data: Path, kind: str | None, split: str, *, labeled: bool = True, sweeps: int | None = None
) -> SplitData:
    """Return the scans of a data set's split, without reading them.

    Args:
      data: folder in a known layout, or a configuration file of ``voxax train``.
      kind: name of the folder's layout; None recognizes it from the files.
      split: ``train``, ``validation`` or ``test``; comma-separated names of scans; or the path of a
        text file with one name on each line.
      labeled: whether the scans will be read with their labels.
      sweeps: number of sweeps in a scan, see :func:`voxax.io.dataset.dataset`; None for 1, or for
        the number in the configuration.

    Raises:
      InputError: the layout is unknown, or the configuration fixes an argument that is given.
    """
    if data.suffix.lower() == ".toml":
        if sweeps is not None:
            raise InputError(f"--sweeps {sweeps}: {data} has data.sweeps; leave it out")
        return _configured(data, kind, split, labeled)
    if kind is None and data.is_dir():
        kind = recognized(data)
        if kind is None:
            known = ", ".join(name for name in LAYOUTS if name != "files")
            why = f"; {hint}" if (hint := prepared(data)) else ""
            raise InputError(
                f"{data} has none of the layouts {known}: give one of them as --format, the folder "
                f"that has one, or a configuration of `voxax train`{why}"
            )
    layout = layout_of(kind or "files", data, None if kind else {0: ""}, sweeps=sweeps or 1)
    found = scans_of(layout, chosen(layout, split, _names(split)), labeled)
    return SplitData(kind or "files", layout, split, found)


def found_scans(
    data: Path, kind: str | None, split: str, columns: str | None, sweeps: int | None = None
) -> SplitData | list[LabeledFile]:
    """Return the scans to predict: a data set's split, or all files of a folder without layout.

    Args:
      data, kind, split, sweeps: see :func:`split_data`.
      columns: columns of files that do not name them, see :func:`voxax.io.read`; only for a folder
        without a known layout.
    """
    if data.is_dir() and kind is None and sweeps is None and recognized(data) is None:
        return labeled_files(data, ["*"], (), checked_columns(columns))
    if columns is not None:
        raise InputError(f"--columns {columns}: the layout of {data} fixes them; leave it out")
    return split_data(data, kind, split, labeled=False, sweeps=sweeps)


def _configured(path: Path, kind: str | None, split: str, labeled: bool) -> SplitData:
    if kind is not None:
        raise InputError(f"--format {kind}: {path} has its own data.format; leave it out")
    config = read_config(path)
    data = config.data
    own = {"train": "train", "validation": "validation"}.get(split)
    names = config.split(own) if own else _names(split)
    with config.errors_of("data"):
        layout = layout_of(
            data.format,
            config.place(data.folder),
            config.classes(),
            columns=data.columns or None,
            label_field=data.label_field or None,
            sweeps=data.sweeps,
        )
        found = scans_of(layout, chosen(layout, split, names), labeled)
    if data.radius:
        found = tuple(Near(scan, data.radius) for scan in found)
    return SplitData(data.format, layout, split, found, data.radius)


def _names(split: str) -> tuple[str, ...] | None:
    if split in SPLITS:
        return None
    if Path(split).is_file():
        lines = bounded_text(split, _MOST_BYTES).splitlines()
        return tuple(line.strip() for line in lines if line.strip())
    return tuple(name.strip() for name in split.split(",") if name.strip())
