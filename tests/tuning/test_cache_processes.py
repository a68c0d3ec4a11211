"""Several processes on one cache: writers killed at any moment, eight at once, ends of processes.

This file is also the script of a fresh interpreter, which imports voxax once and forks the
writers: importing takes longer than their whole life.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cache_entries import DEVICE, entry, measured

from voxax._file_lock import locked
from voxax.tuning import cache as tuning_cache
from voxax.tuning.cache import TuningCache, cache_for

KEYS = 40

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")


def write_and_report(folder, pipe, number):
    """Put and flush for ever; tell each (key, number) that is on disk. Numbers only grow."""
    cache = TuningCache(folder, DEVICE)
    while True:
        key = f"key {number % KEYS}"
        cache.put(key, entry(measured(seconds=float(number))))
        if cache.flush():
            os.write(pipe, f"{json.dumps([key, number])}\n".encode())
        number += 1


def kill(folder, kills):
    """Kill writers; after each, the file is whole, holds all that was told, and is not locked."""
    rng = random.Random(0)
    told, reports = {}, 0
    path = folder / f"{DEVICE}.json"
    for _ in range(kills):
        start = max(told.values(), default=0) + 1
        ours, theirs = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(ours)
            write_and_report(folder, theirs, start)
        os.close(theirs)
        time.sleep(rng.uniform(0.0, 0.04))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        with os.fdopen(ours) as pipe:
            for line in pipe.read().splitlines():
                key, number = json.loads(line)
                told[key], reports = number, reports + 1
        found = tuning_cache.read_file(path, DEVICE)
        assert found.problem is None, found
        assert found.reason == "", found
        have = {key: e.measured[0].seconds for (key, _), e in found.store.items()}
        lost = {key: number for key, number in told.items() if have.get(key, -1) < number}
        assert not lost, lost
        if folder.is_dir():
            with locked(folder / f".{DEVICE}.lock", 1.0):
                pass
    sys.stdout.write(f"{reports}")


def together(folder, writers):
    """Writers at once, on keys of their own and on one key of all."""
    children = []
    for writer in range(int(writers)):
        child = os.fork()
        if child == 0:
            cache = TuningCache(folder, DEVICE)
            for i in range(6):
                cache.put(f"writer {writer} key {i}", entry())
                cache.put("shared", entry(measured(f"algorithm {writer} {i}")))
                if not cache.flush():
                    os._exit(1)
            os._exit(0)
        children.append(child)
    statuses = [os.waitpid(child, 0)[1] for child in children]
    assert statuses == [0] * len(statuses), statuses


def leave(folder, _):
    """A process that ends at once behind a measurement, and one that forks amid a save."""
    child = os.fork()
    if child == 0:
        cache_for(DEVICE).put("at the end", entry())
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)

    cache_for(DEVICE).put("parent", entry())
    with cache_for(DEVICE)._lock:  # as where another thread saves
        child = os.fork()
        if child == 0:
            cache_for(DEVICE).put("child", entry())
            os._exit(0 if cache_for(DEVICE).get("parent") == entry() else 1)
        assert os.waitpid(child, 0)[1] == 0


def run(mode, folder, argument):
    tests = Path(__file__).resolve().parents[1]
    paths = [str(tests), str(tests / "tuning"), str(tests.parent / "src")]
    result = subprocess.run(
        [sys.executable, __file__, mode, str(folder), str(argument)],
        capture_output=True,
        text=True,
        timeout=300,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "VOXAX_CACHE_DIR": str(folder.parent),
        },
    )
    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr, result.stderr
    return result.stdout


@pytest.mark.parametrize("kills", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_writers_killed_at_any_moment_lose_nothing(kills, tmp_path):
    folder = tmp_path / "tuning"
    # Writers did get to write. On a busy machine many are killed before.
    assert int(run("kill", folder, kills)) >= kills / 10
    leftovers = [path.name for path in folder.iterdir() if "unusable" in path.name]
    assert leftovers == []


def test_eight_writers_at_once_lose_nothing(tmp_path):
    folder = tmp_path / "tuning"
    run("together", folder, 8)
    store = {
        key: e
        for (key, _), e in tuning_cache.read_file(folder / f"{DEVICE}.json", DEVICE).store.items()
    }
    assert len(store) == 8 * 6 + 1
    assert len(store["shared"].measured) == 8 * 6
    assert sorted(path.name for path in folder.iterdir()) == [f".{DEVICE}.lock", f"{DEVICE}.json"]


def test_ends_and_forks(tmp_path):
    folder = tmp_path / "tuning"
    run("leave", folder, 0)
    store = tuning_cache.read_file(folder / f"{DEVICE}.json", DEVICE).store
    assert sorted(key for key, _ in store) == ["at the end", "child", "parent"]


if __name__ == "__main__":
    mode, folder, argument = sys.argv[1:]
    modes = {"kill": kill, "together": together, "leave": leave}
    modes[mode](Path(folder), int(argument))
