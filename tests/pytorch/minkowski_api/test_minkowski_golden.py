"""The golden results of MinkowskiEngine: every case is there, and every defect is one of a case."""

import importlib
from fnmatch import fnmatchcase

import minkowski_golden as golden
import pytest
from record import MODULES

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("module", MODULES)
def test_every_case_is_recorded(module):
    names = set(importlib.import_module(f"minkowski_cases.{module}").cases())
    assert names == set(golden.load(module, release=True))
    assert names == set(golden.load(module))


def test_every_defect_is_one_of_a_case():
    names = [f"{m}/{case}" for m in MODULES for case in golden.load(m)]
    assert all(any(fnmatchcase(name, pattern) for name in names) for pattern in golden.DEFECTS)
    found = [case for case in golden.load("pooling") if golden.defect("pooling", case)]
    assert "max3_k2_s4" in found
    assert "max3_k2_s2" not in found
