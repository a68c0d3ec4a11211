"""Every case's faults are found at their lines, and nothing else; see ``corpus``."""

import pytest

import voxax as vx
from check.corpus import cases_of

CASES = cases_of("jax_cases.py")
# Compiling these has side effects, or would contradict what the source ignores.
UNVERIFIED = ("leaked", "not_repeatable", "host_in_the_step", "ignored")

pytestmark = pytest.mark.lax_promotion


@pytest.mark.parametrize("name", CASES)
def test_case(name):
    case = CASES[name]
    report = vx.check_static(case.build(), *case.inputs(), verify=name not in UNVERIFIED)
    found = sorted((f.line, f.code) for f in report.counted)
    assert found == case.expected(), str(report)
    assert all(f.file == str(case.path) for f in report.findings)
    assert report.verdict == case.verdict, str(report)
    assert report.static_arguments == case.static, str(report)
    if report.verification is not None:
        assert report.verification.holds, str(report)
        assert report.verification.programs <= 1


@pytest.mark.parametrize("file", ["jax_cases.py", "torch_cases.py"])
def test_corpora_have_both_kinds(file):
    cases = cases_of(file).values()
    innocent = [case for case in cases if not case.expected()]
    assert len(cases) >= 55
    assert len(cases) / 4 <= len(innocent) <= len(cases) / 2
