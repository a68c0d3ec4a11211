"""Each promise on the page of the campaign has tests, and they exist."""

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parent
PAGE = TESTS.parent / "docs" / "reliability.md"


def test_the_tests_of_every_promise_exist():
    table = PAGE.read_text().partition("| promise | tests |")[2].partition("\n\n")[0]
    rows = [line.split("|")[1:3] for line in table.splitlines()[2:]]
    assert len(rows) > 20
    for promise, tests in rows:
        named = re.findall(r"`([\w/]+\.py)(?:::(\w+))?`", tests)
        assert named, promise
        for path, name in named:
            assert f"def {name}" in (TESTS / path).read_text() if name else (TESTS / path).exists()
