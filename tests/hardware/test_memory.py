"""Memory that this process used, and no other."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from voxax.errors import InputError
from voxax.hardware import cpu, peak_memory, process_memory
from voxax.hardware.info import facts_from


def test_peak_covers_what_was_touched():
    before = peak_memory()["host"]
    block = bytearray(os.urandom(1 << 20) * 64)
    assert peak_memory()["host"] >= max(before, len(block))
    assert peak_memory()["host"] >= (process_memory() or 0)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_peak_is_not_inherited():
    """``ru_maxrss`` survives ``exec``: the small child of a large process reads the parent's."""
    script = """
import subprocess, sys
block = bytearray(1 << 29)
block[::4096] = b"x" * len(block[::4096])
child = "from voxax.hardware import peak_memory; print(peak_memory()['host'])"
result = subprocess.run([sys.executable, "-c", child], capture_output=True, check=True)
print(result.stdout.decode())
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert int(result.stdout) < 1 << 29


def test_sizes_beyond_the_free_memory(monkeypatch):
    facts = facts_from("test", host_memory_bytes=8 << 30, host_memory_in_use=5 << 30)
    monkeypatch.setattr(cpu, "_memory", lambda root: facts)
    cpu.check_host_memory("a grid", 3 << 30, "take less")
    with pytest.raises(InputError, match=r"a grid: 4\.0 GiB .* 3\.0 are free; take less"):
        cpu.check_host_memory("a grid", 4 << 30, "take less")
    monkeypatch.setattr(cpu, "_memory", lambda root: {})
    monkeypatch.setattr(cpu, "_psutil_memory", dict)
    cpu.check_host_memory("a grid", 1 << 60, "take less")
