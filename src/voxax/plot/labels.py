"""A point cloud with checked labels, and the counts and percentages for legends."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from voxax.errors import InputError
from voxax.plot import palette

RIGHT, WRONG, SKIPPED = 0, 1, 2
# Name and color of each of the three values.
VERDICTS = (
    ("correct", palette.CORRECT),
    ("wrong", palette.WRONG),
    ("ignored", palette.IGNORED),
)


@dataclass(frozen=True)
class Labeled:
    """A cloud of N points with labels, which :func:`labeled` checks and creates.

    Attributes:
      positions: [N, 3] float64, in meters.
      prediction: [N] int64, the predicted class of each point; negative is "no prediction".
      truth: [N] int64, the true class of each point, or None if unknown; negative is "ignored".
      class_names: the names of class 0, 1, and so on.
      dropped: number of points left out because a coordinate was not finite.
    """

    positions: np.ndarray
    prediction: np.ndarray
    truth: np.ndarray | None
    class_names: tuple[str, ...]
    dropped: int

    def verdict(self) -> np.ndarray:
        """Compare prediction and truth: return RIGHT, WRONG or SKIPPED (no truth), [N] int64."""
        if self.truth is None:
            return np.full(len(self.prediction), SKIPPED)
        wrong = np.where(self.prediction == self.truth, RIGHT, WRONG)
        return np.where(self.truth < 0, SKIPPED, wrong)

    def verdict_counts(self) -> list[tuple[str, str, int]]:
        """Return ``(name, color, number of points)`` for each of RIGHT, WRONG and SKIPPED."""
        numbers = np.bincount(self.verdict(), minlength=3).tolist()
        return [(*verdict, number) for verdict, number in zip(VERDICTS, numbers, strict=True)]

    def counts(self) -> np.ndarray:
        """Return the number of points of each of the C classes, [C] int64.

        Points are counted by their true class, or by the predicted class if there is no truth.
        """
        labels = self.prediction if self.truth is None else self.truth
        return np.bincount(labels[labels >= 0], minlength=len(self.class_names))

    def present(self) -> list[int]:
        """Return the sorted numbers of the classes that occur in the prediction or the truth."""
        seen = np.unique(self.prediction)
        if self.truth is not None:
            seen = np.union1d(seen, self.truth)
        return [int(label) for label in seen if label >= 0]

    def ceiling(self) -> np.ndarray:
        """Return a mask [N] bool of the points whose class is called "ceiling".

        The class is the true class of a point, or the predicted one if the truth is unknown.
        """
        # Index -1 selects the last entry.
        table = np.array([*map(is_ceiling, self.class_names), False])
        labels = self.prediction
        if self.truth is not None:
            labels = np.where(self.truth >= 0, self.truth, labels)
        return table[np.maximum(labels, -1)]

    def error_sentence(self) -> str:
        """Return a sentence with the percentage of wrong points among the labeled ones."""
        (*_, right), (*_, wrong), _ = self.verdict_counts()
        judged = right + wrong
        if not judged:
            return "no labeled points"
        return f"{percent(wrong, judged)} of {judged:,} labeled points wrong"


def checked_positions(positions: np.ndarray) -> np.ndarray:
    """Return ``positions`` as an array, or raise ``InputError`` unless it is real and [N, 3]."""
    positions = np.asarray(positions)
    if positions.ndim != 2 or positions.shape[1] != 3:
        raise InputError(f"positions must have shape [N, 3], not {list(positions.shape)}.")
    if positions.dtype.kind not in "fiu":
        raise InputError(f"positions must be real numbers, not {positions.dtype}.")
    return positions


def labeled(
    positions: np.ndarray,
    prediction: np.ndarray,
    truth: np.ndarray | None,
    class_names: Sequence[str],
) -> Labeled:
    """Check a cloud and its labels, and drop points with a coordinate that is not finite.

    The arguments are as the attributes of :class:`Labeled`, but positions may have any real dtype,
    and classes any integer dtype.

    Raises:
      InputError: an argument has a wrong shape, length or dtype, or a class has no name.
    """
    positions = checked_positions(positions)
    if isinstance(class_names, str):
        raise InputError(f"class_names must be a sequence of names, not the one {class_names!r}.")
    names = tuple(str(name) for name in class_names)
    prediction = _class_ids("prediction", prediction, len(positions), names)
    if truth is not None:
        truth = _class_ids("truth", truth, len(positions), names)

    finite = np.isfinite(positions).all(axis=1)
    # Survey coordinates are millions of meters: take the differences before float32 rounds.
    positions = positions[finite].astype(np.float64)
    return Labeled(
        positions,
        prediction[finite],
        None if truth is None else truth[finite],
        names,
        int((~finite).sum()),
    )


def _class_ids(what: str, values: np.ndarray, points: int, names: tuple[str, ...]) -> np.ndarray:
    values = np.asarray(values)
    if values.ndim != 1:
        raise InputError(f"{what} must have shape [N], not {list(values.shape)}.")
    if len(values) != points:
        raise InputError(f"{what} has {len(values)} labels, but positions has {points} points.")
    if values.size == 0:
        return np.zeros(0, np.int64)
    if values.dtype.kind not in "iub":
        raise InputError(f"{what} must be integers, not {values.dtype}.")
    values = values.astype(np.int64)
    if values.max() >= len(names):
        raise InputError(
            f"{what} has class {values.max()}, but class_names has {len(names)} names "
            f"(classes 0 to {len(names) - 1}); mark points to ignore with -1."
        )
    return values


def is_ceiling(name: str) -> bool:
    """Return whether a class name means ceiling, which hides a room from a viewer above it."""
    return name.strip().lower() in ("ceiling", "ceilings")


def iou_of(iou: Mapping | None, label: int, name: str) -> float | None:
    """Look up the IoU of a class by name, else by number; None if it is missing or not finite."""
    value = None if iou is None else iou.get(name, iou.get(label))
    return None if value is None or not np.isfinite(value) else float(value)


def percent(part: int, whole: int) -> str:
    """Return `part` of `whole` in percent, such as "3.2 %".

    More digits are shown if one digit would wrongly give "0.0 %" or "100.0 %".
    """
    share = 100.0 * part / whole
    digits = 1
    while digits < 4 and part not in (0, whole) and round(share, digits) in (0.0, 100.0):
        digits += 1
    return f"{share:.{digits}f} %"
