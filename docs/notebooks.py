"""Notebooks of tutorials: ``python docs/notebooks.py`` writes them from the pages.

A page stays the only source: its Python blocks become cells of code, what stands between them
cells of text. A test compares the files with what this writes.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
FOLDER = DOCS / "notebooks"
PAGES = ("segmentation", "classification", "image")

BLOCK = re.compile(r"^```python\n(.*?)^```$\n?", re.MULTILINE | re.DOTALL)
OWN_LINK = re.compile(r"\nThis page is also a \[notebook\].*\n")


def main() -> None:
    """Write the notebooks."""
    FOLDER.mkdir(exist_ok=True)
    for name in PAGES:
        (FOLDER / f"{name}.ipynb").write_text(notebook(name))


def notebook(name: str) -> str:
    """The text of a notebook of nbformat 4.5."""
    page = OWN_LINK.sub("", (DOCS / "tutorials" / f"{name}.md").read_text())
    parts = BLOCK.split(page)  # text and code in turn
    cells = [
        _cell(number, "code" if number % 2 else "markdown", part.strip("\n"))
        for number, part in enumerate(parts)
        if part.strip()
    ]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    whole = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def _cell(number: int, kind: str, text: str) -> dict[str, Any]:
    own = {"execution_count": None, "outputs": []} if kind == "code" else {}
    source = text.splitlines(keepends=True)
    return {"cell_type": kind, "id": f"cell-{number}", "metadata": {}, **own, "source": source}


if __name__ == "__main__":
    main()
