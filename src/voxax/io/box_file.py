"""Write and read boxes of objects as a JSON file.

``{"boxes": [{"class": "car", "box": [x, y, z, length, width, height, yaw], "score": 0.9}, ...]}``
The numbers are in meters and radians. Detected boxes have a score, and true boxes have none.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from voxax._atomic_file import write_atomically
from voxax._bounded_file import MEBIBYTE, bounded_json
from voxax.detection.objects import Objects
from voxax.errors import FileFormatError, InputError

# Names of the files with detected and true boxes in a folder of one scan.
FOUND, TRUE = "found.json", "true.json"
# A scan has hundreds of objects. A larger file is not a file of boxes.
MOST_BYTES = 16 * MEBIBYTE


def write_boxes(path: str | Path, objects: Objects) -> Path:
    """Write boxes, class names and scores (if any) to a JSON file; return the file's path."""
    scores = [None] * len(objects) if objects.scores is None else objects.scores.tolist()
    rows: list[dict[str, Any]] = []
    for name, box, score in zip(
        objects.classes.tolist(), objects.boxes.tolist(), scores, strict=True
    ):
        own: dict[str, Any] = {"class": str(name), "box": [round(v, 4) for v in box]}
        rows.append(own if score is None else {**own, "score": round(score, 4)})
    # One line for each box, so that people can compare two files.
    lines = ",\n".join(json.dumps(row) for row in rows)
    return write_atomically(Path(path), f'{{"boxes": [\n{lines}\n]}}\n')


def read_boxes(path: str | Path) -> Objects:
    """Read the boxes [M, 7] and class names from a JSON file, and scores if every box has one."""
    values = bounded_json(path, MOST_BYTES)
    rows = values.get("boxes") if isinstance(values, dict) else None
    if not isinstance(rows, list):
        raise FileFormatError(f'{path} has no boxes: it should be {{"boxes": [...]}}')
    table, names, scores = [], [], []
    for number, row in enumerate(rows):
        try:
            box = np.asarray(row["box"], np.float64)
            if box.shape not in ((7,), (9,)):
                raise ValueError(f"a box of {box.size} numbers; 7 are needed, or 9")
            table.append(box[:7])
            names.append(str(row["class"]))
            scores.append(row.get("score"))
        except (KeyError, TypeError, ValueError) as error:
            raise FileFormatError(
                f'{path}: boxes[{number}] must have "class" and "box", seven numbers: {error!r}'
            ) from error
    is_scored = bool(scores) and None not in scores
    try:
        boxes = np.asarray(table).reshape(-1, 7)
        return Objects(boxes, np.asarray(names, str), scores if is_scored else None)
    except (InputError, TypeError, ValueError) as error:
        raise FileFormatError(f"{path}: {error}") from error
