"""The comparison in the documentation: a cell of voxax leads to a test, or says what is missing."""

import re
from pathlib import Path

from conformance.catalogue import OPERATORS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "operators" / "index.md"
CELL = re.compile(r'^\[(?P<says>[^]]+)\]\((?P<file>[^ ]+) "(?P<names>[^"]+)"\)$')
# A cell without a test claims nothing, or says what is left to the user.
LACKING = re.compile(r"^(no|no: .+|partly: .+)$")
PEERS = 5


def rows(text):
    """The cells of each row: the name, voxax, and the other libraries."""
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 2 + PEERS and cells[1] not in ("voxax", "---"):
            yield cells


def trouble(name, ours, *others):
    """Return what is wrong with a row, or None."""
    if not all(others):
        return f"{name}: an empty cell"
    if LACKING.match(ours):
        return None
    cell = CELL.match(ours)
    if not cell:
        return f"{name}: {ours!r} has neither a test nor 'no' or 'partly: ...'"
    if cell["says"].startswith(("no", "partly")):
        return f"{name}: {ours!r} has a test for what is missing"
    test = (PAGE.parent / cell["file"]).resolve()
    if not test.is_file():
        return f"{name}: no file {cell['file']}"
    source = test.read_text()
    unknown = [
        entry
        for entry in cell["names"].split(", ")
        if entry not in OPERATORS and f"def {entry}(" not in source
    ]
    return f"{name}: {test.name} has no {', '.join(unknown)}" if unknown else None


def test_every_cell_of_ours_leads_to_a_test():
    table = list(rows(PAGE.read_text()))
    assert [found for row in table if (found := trouble(*row))] == []
    assert sum(bool(CELL.match(ours)) for _, ours, *_ in table) > 60
