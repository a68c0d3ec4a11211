"""The comparison in the documentation: every cell of ours leads to a test that exists."""

import re
from pathlib import Path

from conformance.catalogue import OPERATORS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "operators" / "index.md"
CELL = re.compile(r'^\[(?P<says>[^]]+)\]\((?P<file>[^ ]+) "(?P<names>[^"]+)"\)$')


def rows():
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 7 and cells[1] not in ("voxax", "---"):
            yield cells


def test_every_cell_of_ours_leads_to_a_test():
    number = 0
    for name, ours, *_ in rows():
        cell = CELL.match(ours)
        assert cell, f"{name}: {ours}"
        test = (PAGE.parent / cell["file"]).resolve()
        source = test.read_text()
        for entry in cell["names"].split(", "):
            assert entry in OPERATORS or f"def {entry}(" in source, f"{name}: {entry}"
        number += 1
    assert number > 60


def test_no_row_where_another_has_what_we_lack():
    lacking = [
        name
        for name, ours, *others in rows()
        if not CELL.match(ours)["says"].startswith(("yes", "1-4"))
        and any(other.startswith("yes") for other in others)
    ]
    assert lacking == []
