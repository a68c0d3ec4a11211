"""Check the description of TPUs that are not present, by their topology."""

import importlib.util
import subprocess

import pytest

from voxax.errors import InputError
from voxax.hardware import Fact, describe, tpu

# name, devices, cores of a device, MiB of vector memory, SparseCores
TOPOLOGIES = [
    ("v4:2x2x1", 8, 1, 16, 0),
    ("v5e:2x2", 4, 1, 128, 0),
    ("v5p:2x2x1", 4, 2, 64, 4),
    ("v6e:2x2", 4, 1, 128, 2),
    ("tpu7x:2x2x1", 8, 1, 64, 2),
]


@pytest.fixture
def without_libtpu(monkeypatch):
    monkeypatch.setattr(tpu, "_described", lambda name: None)


@pytest.mark.parametrize(("name", "devices", "cores", "vmem", "sparse"), TOPOLOGIES)
def test_by_the_table(without_libtpu, name, devices, cores, vmem, sparse):
    info = describe(name)
    assert (info.platform, info.vmem_bytes, info.sparse_cores) == ("tpu", vmem << 20, sparse)
    # Where both cores can be one device, the table alone cannot tell whether they are.
    assert info.num_devices * info.cores == 4 * info.cores_per_chip
    assert info.fact("vmem_bytes").source == "pltpu.get_tpu_info_for_chip"
    assert info.fact("topology_shape").source == "name of the topology"
    assert info.memory_free == info.memory_bytes > 0
    assert set(info.facts) == set(describe().facts)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu")
@pytest.mark.parametrize(("name", "devices", "cores", "vmem", "sparse"), TOPOLOGIES)
def test_through_the_compiler(name, devices, cores, vmem, sparse):
    info = describe(name)
    assert (info.num_devices, info.cores, info.sparse_cores) == (devices, cores, sparse)
    assert info.vmem_bytes == vmem << 20
    assert info.fact("topology_shape") == Fact((2, 2, 1), "libtpu topology")
    assert info.fact("device_coords") == Fact((0, 0, 0), "libtpu topology")
    assert info.fact("vmem_bytes").source == "pltpu.get_tpu_info"


@pytest.mark.parametrize("name", ["v5e", "2x2", "v5e:", "", "v5e:2x", "a chip"])
def test_no_topology(without_libtpu, name):
    with pytest.raises(InputError, match="give CHIP:EXTENTS, for example v5e:2x2"):
        describe(name)


def test_unknown_chip(without_libtpu):
    with pytest.raises(InputError, match=r"knows no TPU 'v77'.*known chips: .*v5e"):
        describe("v77:2x2")


def test_compiler_that_fails_is_no_reason_to_fail(monkeypatch):
    monkeypatch.setattr(tpu._compat, "has_libtpu", lambda: True)
    answer = subprocess.CompletedProcess([], 0, stdout="no JSON\n")
    monkeypatch.setattr(subprocess, "run", lambda *arguments, **options: answer)
    monkeypatch.setattr(tpu, "_described", tpu._described.__wrapped__)  # nothing is remembered
    assert describe("v5e:2x2").num_devices == 4
