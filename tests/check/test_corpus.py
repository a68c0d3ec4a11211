"""Every case's faults are found at their lines, and nothing else.

A case is a file with `model`, `inputs()`, `VERDICT` (and `STATIC`), and a comment `# expect: CODE`
on each line with a fault.
"""

import importlib.util
import re
from pathlib import Path

import pytest

import voxax as vx

CASES = sorted((Path(__file__).parent / "cases").glob("*.py"))
EXPECTED = re.compile(r"# expect: ([A-Z0-9, ]+)$")
# Compiling these has side effects, or would contradict what the source ignores.
UNVERIFIED = ("leaked", "not_repeatable", "host_in_the_step", "ignored")

pytestmark = pytest.mark.lax_promotion


def load(path):
    spec = importlib.util.spec_from_file_location(f"cases.{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def expected(path):
    return sorted(
        (number, code.strip())
        for number, line in enumerate(path.read_text().splitlines(), 1)
        for match in [EXPECTED.search(line)]
        if match
        for code in match[1].split(",")
    )


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_case(path):
    case = load(path)
    report = vx.check_static(case.model, *case.inputs(), verify=path.stem not in UNVERIFIED)
    found = sorted((f.line, f.code) for f in report.counted)
    assert found == expected(path), str(report)
    assert all(f.file == str(path) for f in report.findings)
    assert report.verdict == case.VERDICT, str(report)
    assert report.static_arguments == tuple(sorted(getattr(case, "STATIC", ()))), str(report)
    if report.verification is not None:
        assert report.verification.holds, str(report)
        assert report.verification.programs <= 1


def test_corpus_has_both_kinds():
    innocent = [path for path in CASES if not expected(path)]
    assert len(CASES) >= 30
    assert len(CASES) / 4 <= len(innocent) <= len(CASES) / 2
