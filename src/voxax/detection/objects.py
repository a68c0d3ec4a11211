"""The input of the metrics: true or found boxes of a scene, with classes and scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from voxax.detection.boxes import as_boxes, check_rows, check_table
from voxax.errors import InputError


@dataclass(frozen=True)
class Objects:
    """True or found boxes of one scene, as NumPy arrays in float64.

    Args:
      boxes: ``[N, 7]`` or ``[N, 9]``.
      classes: ``[N]``, names or numbers.
      scores: ``[N]``, scores of found boxes; None for true boxes, or if there are no boxes.

    Raises:
      InputError: wrong shapes, invalid boxes, or scores that are not finite.
    """

    boxes: Any
    classes: Any
    scores: Any = None

    def __post_init__(self) -> None:
        boxes = np.array(self.boxes, np.float64)
        boxes = boxes if boxes.size else np.zeros((0, 7))
        check_table(boxes)
        number = len(boxes)
        self._set("classes", number)
        boxes = as_boxes(boxes, "boxes", self._is_boxed())
        object.__setattr__(self, "boxes", boxes)
        if self.scores is None and not number:  # no boxes, true or found
            object.__setattr__(self, "scores", np.zeros(0))
        if self.scores is not None:
            self._set("scores", number, np.float64)
            bad = ~np.isfinite(self.scores)
            if bad.any():
                row = int(np.argmax(bad))
                raise InputError(f"scores[{row}]={self.scores[row]}: leave such rows out")

    def __len__(self) -> int:
        return len(self.boxes)

    def _is_boxed(self) -> np.ndarray:
        """Return which rows must have a valid box, ``bool[N]``; subclasses may exempt rows."""
        return np.ones(len(self.classes), bool)

    def _set(self, name: str, number: int, dtype: Any = None) -> None:
        values = np.array(getattr(self, name), dtype)
        values = values if values.size or number else values.reshape(0)
        check_rows(name, values, number, "boxes")
        object.__setattr__(self, name, values)


def check_scenes(truth: Sequence[Objects], found: Sequence[Objects], kind: type) -> None:
    """Raise InputError unless `truth` and `found` are valid arguments of a metric.

    Both must have one object of the type `kind` for each scene. Found boxes need scores. Classes
    must all be names, or all be numbers.
    """
    if len(truth) != len(found):
        raise InputError(
            f"{len(found)} scenes were found and {len(truth)} are true: give one of each for every "
            "scene, with no rows where there is nothing"
        )
    for name, scenes in (("truth", truth), ("found", found)):
        for place, scene in enumerate(scenes):
            if not isinstance(scene, kind):
                raise InputError(
                    f"{name}[{place}] is {type(scene).__name__}: give {kind.__name__}(boxes, ...)"
                )
    named = {isinstance(one, str) for scene in (*truth, *found) for one in scene.classes.tolist()}
    if len(named) > 1:
        raise InputError(
            "classes are names in some scenes and numbers in others, which are never the same: "
            "give one of the two"
        )
    for place, scene in enumerate(found):
        if scene.scores is None:
            raise InputError(f"found[{place}] has no scores: metrics rank what was found by them")
