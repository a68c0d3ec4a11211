"""What scripts share that count programs for TPUs: options, and rows that a run goes on from."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import report

from voxax.predict import TOPOLOGIES

CHIPS = tuple(TOPOLOGIES)
Row = dict[str, Any]


def options(
    about: str | None, chips: Sequence[str] = CHIPS, *, anew: bool = True, data: bool = False
) -> argparse.ArgumentParser:
    """Return a parser with ``--chips``, and what the script says that it has.

    Args:
      about: the script's docstring.
      chips: generations that it knows.
      anew: it writes results, and goes on from them.
      data: it reads scans.
    """
    parser = report.options(about, data=data, out=anew)
    parser.add_argument("--chips", nargs="*", default=list(chips), choices=chips)
    if anew:
        parser.add_argument("--anew", action="store_true", help="count again what is known")
    return parser


class Kept:
    """Rows in the files of a result, which other runs write too.

    Args:
      folder: of the files.
      name: of the result.
      case: the fields that tell rows apart.
      order: by the fields that rows are sorted by, their values in order; None is by value.
      lines: of the page, of all rows.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        case: Sequence[str],
        order: Mapping[str, Sequence[Any] | None],
        lines: Callable[[list[Row]], list[str]],
    ) -> None:
        self._folder, self._name, self._case, self._lines = folder, name, case, lines
        self._order = order

    @property
    def rows(self) -> list[Row]:
        """What the file has."""
        return report.known(self._folder, self._name) or []

    def done(self, fields: Sequence[str], code: Callable[[Row], Any] = lambda row: None) -> set:
        """Return the values of these fields of the rows whose code is still that of ``code``."""
        found = (row for row in self.rows if code(row) in (None, row.get("code")))
        return {tuple(row[field] for field in fields) for row in found}

    def add(self, new: Sequence[Row]) -> None:
        """Put rows in the place of those of the same cases, and write both files."""
        replaced = set(map(self._case_of, new))
        rows = [row for row in self.rows if self._case_of(row) not in replaced]
        rows += new
        rows.sort(
            key=lambda row: [
                row[field] if values is None else values.index(row[field])
                for field, values in self._order.items()
            ]
        )
        report.write(self._folder, self._name, rows, self._lines(rows), show=False)

    def show(self) -> None:
        """Print the page."""
        print("\n".join(self._lines(self.rows)))

    def _case_of(self, row: Row) -> tuple[Any, ...]:
        return tuple(row[field] for field in self._case)
