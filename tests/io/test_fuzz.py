"""No broken file hangs a reader, takes memory that it does not have, or raises something else."""

import datetime
import sys
from importlib.util import find_spec

import fuzz
import pytest

from voxax.io import readable_extensions

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="peak memory is Linux's")
GZIP = ".gz"
# PyTorch's are tried where PyTorch is; pye57 has no wheel for Linux on ARM.
ELSEWHERE = {".pt", ".pth"} | (set() if find_spec("pye57") else {".e57"})
ENDS = tuple(set(readable_extensions()) - ELSEWHERE)
NAMES = [name for name in fuzz.FILES if name.removesuffix(GZIP).endswith(ENDS)]
# Each day another part of all mutations.
PART = 5


def test_every_format_has_a_file():
    assert {name[name.index(".") :] for name in NAMES} >= set(ENDS)


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
