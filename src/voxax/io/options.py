"""What a caller says of a file that the file itself does not say."""

from collections.abc import Sequence
from dataclasses import dataclass

SAMPLED_POINTS = 200_000


@dataclass(frozen=True)
class ReadOptions:
    """The arguments of :func:`voxax.io.read` that readers take; each reader takes what it needs.

    Args:
        columns: names of the columns, or their number, of a file that names none.
        label_field: the column with the labels; None takes the usual ones.
        delimiter: between the columns of text; None finds it.
        item: which cloud of a file that holds several; None is all.
        points: how many points to draw from the surface of a mesh.
        seed: of that drawing.
    """

    columns: int | Sequence[str] | None = None
    label_field: str | None = None
    delimiter: str | None = None
    item: int | None = None
    points: int = SAMPLED_POINTS
    seed: int = 0


DEFAULT = ReadOptions()


def columns_from_text(text: str | None) -> int | tuple[str, ...] | None:
    """Return columns as a command line names them: ``6``, or ``x,y,z,red,green,blue``."""
    if text is None:
        return None
    words = text.replace(",", " ").split()
    return int(words[0]) if len(words) == 1 and words[0].isdecimal() else tuple(words)
