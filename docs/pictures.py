"""Draw the pictures of the operators' pages: ``python docs/pictures.py`` writes them all.

``python docs/pictures.py points- union`` writes those with one of these words in their names.
Every picture is made by calls of the library itself, so it shows what the operators do.
"""

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from drawings.panel import Panel
from drawings.sites import draw_sites

DOCS = Path(__file__).resolve().parent
FOLDER = DOCS / "images" / "operators"
# Each has a module in `drawings`, whose PICTURES are functions that return panels.
PAGES = (
    "convolution",
    "transposed-and-generative",
    "pooling",
    "coordinates",
    "order",
    "points",
    "normalization",
    "elementwise",
    "attention",
)


def pictures(page: str) -> Iterator[tuple[str, Callable[[], list[Panel]], dict[str, Any]]]:
    """``(file name, function that returns its panels, how to draw them)`` of a page's pictures."""
    module = importlib.import_module(f"drawings.{page.replace('-', '_')}")
    options = {"cell": module.CELL} if hasattr(module, "CELL") else {}
    for function in module.PICTURES:
        yield f"{page}-{function.__name__.replace('_', '-')}.svg", function, options


def main() -> None:
    """Write every picture whose name contains one of the arguments; all without arguments."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    words = sys.argv[1:] or [""]
    for page in PAGES:
        for name, function, options in pictures(page):
            if any(word in name for word in words):
                draw_sites(function(), FOLDER / name, **options)


if __name__ == "__main__":
    main()
