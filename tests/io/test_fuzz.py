"""No broken file hangs a reader, takes memory that it does not have, or raises something else."""

import datetime
import sys

import fuzz
import pytest

from voxax.io import readable_extensions

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="peak memory is Linux's")
GZIP = ".gz"
NAMES = [name for name in fuzz.FILES if name.removesuffix(GZIP).endswith(readable_extensions())]
# Read where PyTorch is, and tried there: test_torch_file.py.
TORCH = {".pt", ".pth"}
# Each day another part of all mutations.
PART = 5


def test_every_format_has_a_file():
    assert {name[name.index(".") :] for name in NAMES} >= set(readable_extensions()) - TORCH


def test_some_mutations_of_every_file():
    start = datetime.date.today().toordinal() * PART % fuzz.MUTATIONS
    found = fuzz.read_mutations(NAMES, start, start + PART)
    assert {name: seen.wrong for name, seen in found.items() if seen.wrong} == {}
    assert all(seen.read + seen.refused == PART for seen in found.values())


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", NAMES)
def test_all_mutations(name):
    assert fuzz.read_mutations([name], 0, fuzz.MUTATIONS)[name].wrong == []
