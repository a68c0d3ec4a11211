"""The file of results that benchmarks/tpu/device_suite.py writes, and its rows as measurements."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.tpu import device_cases
from benchmarks.tpu.published import Case as Measurement

from voxax._atomic_file import write_atomically
from voxax.errors import InputError
from voxax.hardware import HardwareInfo

FORMAT = 1
"""Of the file; raised where a field changes its meaning."""
BEGUN, PASSED, FAILED, SKIPPED = STATES = ("begun", "passed", "failed", "skipped")
BAND = (0.85, 1.35)
"""The widest band that a published measurement has."""
HOW = "host clock, mean of a call among many"
# Fields of a row, with their types; optional ones are None where they are absent.
_ROW: dict[str, tuple[type, ...]] = {"code": (str,), "versions": (str,), "state": (str,)}
_MORE: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("seconds", "latency", "compile", "predicted", "passes"), (int, float)),
    **dict.fromkeys(("note", "bound", "parameters", "counted"), (str,)),
    "at_least": (bool,),
}


class Results:
    """Rows by case of one kind of device, of one run or of several that went on.

    Args:
      path: of the JSON file; a table is written beside it.
      device: kind of device, and whether it is a rehearsal; a file of another one is refused.
      hardware: facts about it.

    Raises:
      InputError: the file is of another device or format, or damaged.
    """

    def __init__(self, path: Path, device: Mapping[str, Any], hardware: HardwareInfo) -> None:
        self.path = path
        self.known: dict[str, Any] = {
            "format": FORMAT,
            "device": dict(device),
            "hardware": hardware.to_json(),
            "rows": {},
        }
        if path.exists():
            known = read(path)
            if known["device"] != self.known["device"]:
                found, this = known["device"], dict(device)
                raise InputError(f"{path} is of {found}, this is {this}: move it, or give --out")
            self.known = known

    @property
    def rows(self) -> dict[str, dict[str, Any]]:
        return self.known["rows"]

    def set(self, name: str, row: Mapping[str, Any]) -> None:
        """Put a row into the file; it is written at once, since a run may be killed any moment."""
        self.rows[name] = dict(row)
        write_atomically(self.path, json.dumps(self.known, indent=1) + "\n")
        kind = self.known["device"]["kind"]
        text = f"# Kernels on {kind}\n\nSee benchmarks/tpu/device_suite.py.\n\n"
        write_atomically(self.path.with_suffix(".md"), text + table_of(self.rows) + "\n")


def read(path: Path) -> dict[str, Any]:
    """Return the content of a file of results.

    Raises:
      InputError: there is none, it is damaged or of another format; with the first row and field
        that are wrong.
    """
    fix = "move it away, or give another file"
    try:
        known = json.loads(path.read_text())
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise InputError(f"{path} is no JSON ({error}): a copy may have stopped; {fix}") from None
    if not isinstance(known, dict) or known.get("format") != FORMAT:
        found = known.get("format") if isinstance(known, dict) else type(known).__name__
        raise InputError(f"{path} has the format {found}, this version reads {FORMAT}: {fix}")
    for part, kind in (("device", dict), ("hardware", dict), ("rows", dict)):
        if not isinstance(known.get(part), kind):
            raise InputError(f"{path} has no {part}: {fix}")
    try:
        HardwareInfo.from_json(known["hardware"])
    except (KeyError, TypeError) as error:
        raise InputError(f"{path}: hardware lacks {error}: {fix}") from None
    for name, row in known["rows"].items():
        if wrong := _wrong(row):
            raise InputError(f"{path}: row {name!r}: {wrong}: {fix}")
    return known


def _wrong(row: Any) -> str | None:
    """The reason why a row is none, or None."""
    if not isinstance(row, dict):
        return f"expected fields, got {row!r:.40}"
    for name, kinds in {**_ROW, **_MORE}.items():
        value = row.get(name)
        if (value is None and name in _ROW) or (value is not None and type(value) not in kinds):
            return f"{name} is {value!r:.40}, expected {' or '.join(k.__name__ for k in kinds)}"
        if isinstance(value, float) and not (math.isfinite(value) and value >= 0):
            return f"{name} is {value}, expected a finite number of 0 or more"
    if row["state"] not in STATES:
        return f"state is {row['state']!r}, expected {', '.join(STATES)}"
    if unknown := set(row) - set(_ROW) - set(_MORE):
        return f"unknown fields {', '.join(sorted(unknown))}"
    return None


def measurements(path: Path) -> tuple[list[Measurement], list[str]]:
    """Return the measured programs of a file that this code still has, and names of the others.

    Others: of another version of the code, not timed, or whose prediction is no whole one.

    Raises:
      InputError: see :func:`read`; or a rehearsal's file.
    """
    known = read(path)
    if known["device"].get("rehearsal"):
        raise InputError(f"{path} is of a rehearsal, whose times mean nothing: give a TPU's file")
    hardware = known["hardware"]
    scale = device_cases.Scale(HardwareInfo.from_json(hardware))
    code = {case.name: case.code for case in device_cases.cases(scale)}
    found, others = [], []
    for name, row in known["rows"].items():
        complete = row.get("predicted") and not row.get("at_least")
        if row.get("code") != code.get(name) or not (row.get("seconds") and complete):
            others.append(name)
            continue
        found.append(
            Measurement(
                name,
                known["device"]["chip"],
                device_cases.program.__name__,
                {"case": name, "hardware": hardware},
                row["seconds"],
                BAND,
                HOW,
                str(path),
                place=device_cases.__name__,
                passes=row.get("passes"),
            )
        )
    return found, others


def table_of(rows: Mapping[str, Mapping[str, Any]], only: Iterable[str] | None = None) -> str:
    """A line for each case."""
    lines = []
    for name in rows if only is None else only:
        row = rows[name]
        seconds, predicted = row.get("seconds"), row.get("predicted")
        mark = "≥ " if row.get("at_least") else ""
        cells = [
            f"{1e6 * seconds:,.1f}" if seconds else "",
            f"{mark}{1e6 * predicted:,.1f}" if predicted else "",
            f"{'≤ ' if mark else ''}{seconds / predicted:.2f}" if seconds and predicted else "",
            row.get("bound") or "",
            f"{row['compile']:.1f}" if "compile" in row else "",
            " ".join(row.get("note", "").replace("|", "/").split()),
        ]
        lines.append([name, row["state"], *cells])
    head = ["case", "result", "measured, us", "predicted, us", "measured / predicted", "bound by"]
    return "\n".join(report.table([*head, "compiled, s", ""], lines, (0, 1, 5, 7)))
