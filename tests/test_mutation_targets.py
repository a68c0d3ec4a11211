"""Every planted fault has its place: what it replaces exists, and so do the tests that find it."""

import importlib
import sys
from pathlib import Path

import pytest

from mutation.faults import FAULTS

TESTS = Path(__file__).resolve().parent


@pytest.mark.parametrize("name", FAULTS)
def test_targets_and_tests_exist(name):
    fault = FAULTS[name]
    for target in fault.targets:
        path, _, attribute = target.partition(":")
        importlib.import_module(path)
        owner = sys.modules[path]
        for step in attribute.split("."):
            assert hasattr(owner, step), target
            owner = getattr(owner, step)
    for path in fault.tests:
        assert (TESTS / path.partition("::")[0]).exists(), path
