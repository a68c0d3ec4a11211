"""The cache in one process: memory, reset by hand, other writers, threads, names."""

import dataclasses
import errno
import json
import os
import shutil
import threading
import time

import pytest
from cache_entries import DEVICE, entry, measured

from voxax._file_lock import PATIENCE, locked
from voxax.hardware import HardwareInfo
from voxax.kernels import lookup
from voxax.tuning import cache as tuning_cache
from voxax.tuning.cache import TuningCache, cache_for, device_name, is_device


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "cache" / "tuning"


@pytest.fixture
def cache(folder):
    return TuningCache(folder, DEVICE)


def fresh(cache):
    """Return the cache as another process would see it."""
    return dict(TuningCache(cache.path.parent, DEVICE).items())


def test_nothing_happens_before_the_first_put(cache, folder):
    assert cache.get("key") is None
    assert cache.items() == []
    assert cache.flush()
    tuning_cache.remove_file(cache.path)
    assert not folder.parent.exists()


def test_put_is_known_and_saved_at_once(cache):
    cache.put("key", entry())
    assert cache.get("key") == entry()
    assert fresh(cache) == {"key": entry()}
    cache.put("later", entry())
    assert len(fresh(cache)) == 2


def test_entries_merge_in_memory_and_on_disk(cache):
    for name in ("a", "b"):
        cache.put("key", entry(measured(name)))
    cache.flush()
    cache.put("key", entry(measured("c")))
    assert {c.algorithm for c in cache.get("key").measured} == {"a", "b", "c"}
    other = TuningCache(cache.path.parent, DEVICE)
    other.put("key", entry(measured("d")))
    other.flush()
    cache.flush()
    assert {c.algorithm for c in fresh(cache)["key"].measured} == {"a", "b", "c", "d"}


def test_a_file_is_read_only_when_it_changed(cache, monkeypatch):
    reads = []
    read_bounded = tuning_cache.read_bounded
    monkeypatch.setattr(
        tuning_cache, "read_bounded", lambda *asked: reads.append(asked) or read_bounded(*asked)
    )
    tuning_cache.shipped(DEVICE)
    reads.clear()
    for number in range(5):
        cache.put(f"key {number}", entry())
        assert cache.get(f"key {number}") == entry()
    assert len(reads) == 5  # each save, to merge with what others wrote
    TuningCache(cache.path.parent, DEVICE).put("other", entry())
    reads.clear()
    assert cache.get("other") == cache.get("key 0") == entry()
    assert len(reads) == 1


@pytest.mark.parametrize("noticed_by", ["get", "put"])
def test_removing_the_folder_is_a_reset(cache, folder, noticed_by):
    cache.put("old", entry())
    cache.flush()
    shutil.rmtree(folder.parent)
    if noticed_by == "get":
        assert cache.get("old") is None
        assert cache.items() == []
        assert not folder.parent.exists()
    cache.put("new", entry())
    assert cache.flush()
    assert cache.get("old") is None
    assert fresh(cache) == {"new": entry()}


def test_reset_forgets_also_what_a_new_entry_was_merged_with(cache, folder, monkeypatch):
    cache.put("key", entry(measured("a")))
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", refuse)
        cache.put("key", entry(measured("b")))
        assert {m.algorithm for m in cache.get("key").measured} == {"a", "b"}
    shutil.rmtree(folder)
    assert cache.flush()
    assert [c.algorithm for c in fresh(cache)["key"].measured] == ["b"]


@pytest.mark.parametrize("what", ["folder", "file"])
def test_removal_in_the_middle_of_a_save(what, cache, folder, monkeypatch):
    cache.put("old", entry())
    fsync, calls = os.fsync, []

    def remove_once(descriptor):
        fsync(descriptor)
        if not calls:
            calls.append(1)
            shutil.rmtree(folder) if what == "folder" else cache.path.unlink()

    monkeypatch.setattr(tuning_cache.os, "fsync", remove_once)
    cache.put("new", entry())
    assert cache.flush()
    assert fresh(cache) == {"new": entry()}


def test_several_threads(cache):
    def work(number):
        for i in range(10):
            cache.put(f"key {number} {i}", entry())
            cache.put("shared", entry(measured(f"a{number}_{i}")))
            assert cache.get(f"key {number} {i}") is not None
            if i % 4 == number % 4:
                cache.flush()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cache.flush()
    assert len(fresh(cache)) == 41
    assert len(fresh(cache)["shared"].measured) == 40


def test_a_held_lock_is_waited_for_once_and_tried_again(cache, monkeypatch, caplog):
    """A process that is stopped may hold it for hours."""
    cache._patience = 0.05
    cache.path.parent.mkdir(parents=True)
    with locked(cache.path.parent / f".{DEVICE}.lock", 10.0):
        begin = time.monotonic()
        for number in range(20):
            cache.put(f"key {number}", entry())
        assert not cache.flush()
        assert time.monotonic() - begin < PATIENCE / 2
        assert cache.get("key 0") == entry()
    cache.put("key", entry())
    assert len(fresh(cache)) == 21
    assert "is locked, saving later" in caplog.records[0].message
    assert len(caplog.records) == 1


def refuse(*arguments):
    raise OSError(errno.EROFS, "Read-only file system")


def unsupported(descriptor, operation):
    raise OSError(errno.ENOLCK, "No locks available")


def test_file_system_without_locks(tmp_path, monkeypatch):
    monkeypatch.setattr("fcntl.flock", unsupported)
    path, held = tmp_path / "lock", tmp_path / "lock-held"
    with locked(path, 0.05):
        assert held.exists()
    assert not held.exists()
    held.touch()  # by a process that lives
    with (
        pytest.raises(TimeoutError, match="locked by another process"),
        locked(path, 0.05),
    ):
        pass
    os.utime(held, (time.time() - 100,) * 2)  # by one that died
    with locked(path, 0.05):
        pass
    assert not held.exists()


def test_bad_keys_and_devices(cache, tmp_path):
    for key in ("", "k" * 513, "new\nline", "é", None):
        with pytest.raises(ValueError, match="512 ASCII characters"):
            cache.put(key, entry())
    for device in ("../other", "", "a/b", "A", ".hidden", "x" * 101, "nul.json"):
        with pytest.raises(ValueError, match="not a device's name"):
            TuningCache(tmp_path, device)


def test_cache_for_follows_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("VOXAX_CACHE_DIR", str(tmp_path / "a"))
    first = cache_for(DEVICE)
    assert cache_for(DEVICE) is first
    assert first.path == tmp_path / "a" / "tuning" / f"{DEVICE}.json"
    monkeypatch.setenv("VOXAX_CACHE_DIR", str(tmp_path / "b"))
    assert cache_for(DEVICE).path.parent == tmp_path / "b" / "tuning"
    assert cache_for("gpu-other") is not cache_for(DEVICE)
    monkeypatch.setenv("VOXAX_CACHE_DIR", "~no-user-of-this-name/x")
    nowhere = cache_for(DEVICE)
    nowhere.put("key", entry())
    assert not nowhere.flush()
    assert nowhere.get("key") == entry()


@pytest.mark.parametrize(
    ("facts", "name"),
    [
        (("cpu", "cpu", 2, "AMD EPYC 9R14"), "cpu-amd-epyc-9r14-2-cores"),
        (("cpu", "cpu", 16, None), "cpu-16-cores"),
        (("gpu", "NVIDIA H200", 8, None), "gpu-nvidia-h200"),
        (("tpu", "TPU v5 lite", 8, None), "tpu-v5-lite"),
        (("cpu", "cpu", 4, "Intel(R) Xeon(R) @ 2.20GHz"), "cpu-intel-r-xeon-r-2-20ghz-4-cores"),
        (("", "", 1, ""), "device"),
    ],
)
def test_device_name(facts, name):
    platform, kind, cores, model = facts
    info = HardwareInfo(platform=platform, device_kind=kind, cpu_cores=cores, model=model)
    assert device_name(info) == name


def test_long_device_names_stay_apart():
    infos = [HardwareInfo("gpu", "x" * 300 + end) for end in "ab"]
    names = [device_name(info) for info in infos]
    assert names[0] != names[1]
    assert all(map(is_device, names))


def test_shipped_entries_come_after_the_users(cache, tmp_path, monkeypatch):
    other = entry(measured(seconds=1.0), jaxlib="0.0.1")
    source = TuningCache(tmp_path / "defaults", DEVICE)
    source.put("key", entry(measured(seconds=2.0)))
    source.put("old", other)
    guess = entry(measured(seconds=4.0), source="predicted")
    source.put("guess", guess)
    source.flush()
    monkeypatch.setattr(tuning_cache, "FOLDER", tmp_path / "defaults")
    tuning_cache.shipped.cache_clear()
    try:
        known = cache.get("key")
        assert known == dataclasses.replace(entry(measured(seconds=2.0)), source="shipped")
        assert cache.get("guess") == guess
        assert cache.get("old") is None
        assert cache.items() == []
        cache.put("key", dataclasses.replace(guess, when="2026-06-01"))
        assert cache.get("key") == known
        cache.put("key", entry(measured(seconds=3.0)))
        assert cache.get("key") == entry(measured(seconds=3.0))
        tuning_cache.remove_file(cache.path)
        assert cache.get("key") == known
    finally:
        tuning_cache.shipped.cache_clear()


def test_shipped_files_are_well_formed():
    for path in tuning_cache.FOLDER.glob("*.json"):
        found = tuning_cache.read_file(path, path.stem)
        assert (found.problem, found.reason) == (None, ""), path
        assert json.loads(path.read_text())["device"] == path.stem
        # Nothing was measured on a TPU.
        assert all(e.predicted == path.stem.startswith("tpu-") for e in found.store.values())
        for (key, _), known in found.store.items():
            kind = next((word for word in key.split() if word in ("grouped", "depthwise")), "dense")
            # A prediction of other kernels says nothing: then the tables are to be made again.
            assert all(
                m.revision in {kernel.revision for kernel in lookup(m.algorithm, kind)}
                for m in known.measured
            ), path
