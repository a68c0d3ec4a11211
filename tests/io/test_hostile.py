"""Under a ceiling of memory, files that claim more than they hold are refused, and quickly."""

import sys

import hostile
import pytest

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the limit of memory is Linux's"),
    pytest.mark.filterwarnings("ignore"),
]


def wrong(found):
    return [line for line in found if line["problem"]]


def test_some_hostile_files():
    for extra in ("flax", "orbax.checkpoint", "laspy", "h5py", "flatbuffers"):
        pytest.importorskip(extra)
    found = hostile.read_all(25)
    assert wrong(found) == []
    assert len(found) == 25
    assert {line["how"] for line in found} == {"read", "refused"}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_hostile_files():
    found = hostile.read_all(hostile.NUMBER, seed=1)
    assert wrong(found) == []
    assert len(found) == hostile.NUMBER
