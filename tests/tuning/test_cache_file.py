"""Files of every kind where the cache should be: a warning and a new start, never a crash."""

import errno
import json
import logging
import os
import stat
import time

import pytest
from cache_entries import DEVICE, entry, measured

from voxax.tuning import cache as tuning_cache
from voxax.tuning.cache import TuningCache
from voxax.tuning.entry import jaxlib_version

HEADER = {"format": 1, "device": DEVICE}
NAN = json.dumps(entry().to_json()).replace("0.001", "NaN").encode()


def text(entries, **changes):
    return json.dumps({**HEADER, "entries": entries, **changes}).encode()


@pytest.fixture
def cache(tmp_path):
    return TuningCache(tmp_path / "tuning", DEVICE)


def write(cache, raw):
    cache.path.parent.mkdir(exist_ok=True)
    cache.path.write_bytes(raw)


def set_aside(cache):
    """Return the kinds of files that were set aside."""
    names = [path.name.removeprefix(f"{cache.path.name}.") for path in cache.path.parent.iterdir()]
    return sorted(name for name in names if not name.endswith((".lock", ".json")))


UNUSABLE = {
    "empty": b"",
    "truncated": text({"old": [entry().to_json()]})[:-40],
    "no JSON": b"\x00\xff\xfe" * 9,
    "deep": b"[" * 500_000,
    "deep object": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "many digits": b'{"format": ' + b"1" * 10_000 + b"}",
    "not UTF-8": json.dumps(HEADER).encode("utf-16"),
    "a list": b"[1, 2]",
    "a number": b"7",
    "other program": b'{"name": "voxax", "dependencies": {}}',
    "other format": text({"old": [entry().to_json()]}, format=2),
    "format true": text({}, format=True),
    "other device": text({"old": [entry().to_json()]}, device="gpu-other"),
    "path as device": text({}, device="../../etc/passwd"),
    "device of no type": text({}, device=[[]]),
    "entries of no type": text([]),
    "no entries": json.dumps(HEADER).encode(),
}


@pytest.mark.parametrize("raw", UNUSABLE.values(), ids=UNUSABLE)
def test_not_ours(raw, cache, caplog):
    write(cache, raw)
    assert cache.get("old") is None
    (record,) = caplog.records
    assert record.name == "voxax.tuning"
    assert record.levelno == logging.WARNING
    assert "is unusable" in record.message
    assert cache.path.read_bytes() == raw  # looking changes nothing

    cache.put("key", entry())
    assert cache.flush()
    assert cache.get("key") == entry()
    # No data of others is destroyed.
    assert set_aside(cache) == ["unusable-1"]
    assert cache.path.with_name(f"{cache.path.name}.unusable-1").read_bytes() == raw
    assert TuningCache(cache.path.parent, DEVICE).get("key") == entry()


def test_set_aside_again_and_again(cache):
    for number in (1, 2, 3):
        write(cache, b"{")
        cache.put(f"key {number}", entry())
        assert cache.flush()
    assert set_aside(cache) == ["unusable-1", "unusable-2", "unusable-3"]


def test_ill_formed_entries_cost_only_themselves(cache, caplog):
    good = entry().to_json()
    negative = {**good, "measured": [{**good["measured"][0], "seconds": -1}]}
    entries = {
        "good": [good],
        "negative": [negative],
        "both": [negative, good],
        "nothing": None,
        "text": ["text"],
        "k" * 513: [good],
        "\x1b[2J": [good],
        "": [good],
    }
    raw = text(entries)[:-2] + b', "nan": [' + NAN + b"]}}"
    write(cache, raw)
    assert cache.get("good") == cache.get("both") == entry()
    assert [key for key, _ in cache.items()] == ["both", "good"]
    (record,) = caplog.records
    assert "8 entries left out" in record.message
    assert record.message.isprintable()


def test_foreign_algorithms_are_kept(cache):
    """Another version of voxax may know them."""
    write(cache, text({"key": [entry(measured("of_the_future", size=3)).to_json()]}))
    cache.put("other", entry())
    cache.flush()
    assert (
        TuningCache(cache.path.parent, DEVICE).get("key").measured[0].algorithm == "of_the_future"
    )


def test_other_jaxlib_is_ignored_and_kept(cache):
    other = entry(measured(seconds=1e-9), jaxlib="0.0.1")
    write(cache, text({"key": [other.to_json()]}))
    assert cache.get("key") is None
    cache.put("key", entry())
    assert cache.flush()
    assert cache.get("key") == entry()
    store = tuning_cache.read_file(cache.path, DEVICE).store
    assert store == {("key", "0.0.1"): other, ("key", jaxlib_version()): entry()}


def test_too_big(cache, monkeypatch):
    monkeypatch.setattr(tuning_cache, "MAX_BYTES", 1000)
    write(cache, text({"key": [entry().to_json()]}) + b" " * 1000)
    found = tuning_cache.read_file(cache.path, DEVICE)
    assert (found.store, found.problem) == ({}, "unusable")


def test_what_is_written_stays_within_the_limits(cache, monkeypatch):
    monkeypatch.setattr(tuning_cache, "MAX_ENTRIES", 5)
    monkeypatch.setattr(tuning_cache, "MAX_BYTES", 1200)
    for day in range(1, 10):
        cache.put(f"day {day}", entry(when=f"2026-01-0{day}T00:00:00Z"))
    assert cache.flush()
    kept = [key for key, _ in TuningCache(cache.path.parent, DEVICE).items()]
    assert 1 <= len(kept) < 5
    assert kept == [f"day {day}" for day in range(10 - len(kept), 10)]  # the newest
    assert cache.path.stat().st_size <= 1200


def test_too_many_entries_in_a_file(monkeypatch):
    monkeypatch.setattr(tuning_cache, "MAX_ENTRIES", 2)
    store, refused = tuning_cache.entries_of({str(i): [entry().to_json()] for i in range(3)})
    assert len(store) == 2
    assert len(refused) == 1


def test_symlink_is_replaced_not_followed(cache, tmp_path):
    target = tmp_path / "elsewhere.json"
    target.write_bytes(text({"key": [entry().to_json()]}))
    before = target.read_bytes()
    cache.path.parent.mkdir()
    cache.path.symlink_to(target)
    assert cache.get("key") == entry()
    cache.put("other", entry())
    assert cache.flush()
    assert not cache.path.is_symlink()
    assert target.read_bytes() == before
    assert len(tuning_cache.read_file(cache.path, DEVICE).store) == 2


def test_lock_file_is_no_way_to_write_elsewhere(cache, tmp_path, caplog):
    cache.path.parent.mkdir()
    (cache.path.parent / f".{DEVICE}.lock").symlink_to(tmp_path / "victim")
    cache.put("key", entry())
    assert not cache.flush()
    assert not (tmp_path / "victim").exists()
    assert cache.get("key") == entry()
    assert len(caplog.records) == 1


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes in this file system")
@pytest.mark.parametrize("make", ["mkfifo", "mkdir"])
def test_a_pipe_or_folder_of_the_files_name(make, cache):
    cache.path.parent.mkdir()
    getattr(os, make)(cache.path)
    assert cache.get("key") is None
    cache.put("key", entry())
    assert cache.flush()
    assert set_aside(cache) == ["unusable-1"]


def test_only_the_owner_may_read(cache):
    cache.put("key", entry())
    cache.flush()
    assert stat.S_IMODE(cache.path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(cache.path.stat().st_mode) == 0o600


def test_readable(cache):
    cache.put("b", entry(measured("implicit_gemm", fwd_block_size=16)))
    cache.put("a", entry())
    cache.flush()
    lines = cache.path.read_text().splitlines()
    values = json.loads(cache.path.read_text())
    assert list(values) == ["format", "voxax", "jaxlib", "device", "entries"]
    assert list(values["entries"]) == ["a", "b"]
    # One candidate on one line.
    assert sum('"fwd_block_size": 16' in line and '"ok"' in line for line in lines) == 1


def test_temporary_files_of_the_dead_are_swept(cache):
    cache.path.parent.mkdir()
    old, young = (cache.path.parent / f".{DEVICE}.json.{name}.tmp" for name in ("old", "young"))
    for path in (old, young):
        path.write_text("{")
    os.utime(old, (time.time() - 4000,) * 2)
    cache.put("key", entry())
    cache.flush()
    assert (old.exists(), young.exists()) == (False, True)


class FullDisk:
    def __init__(self, file):
        self.file = file

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.file.close()

    def write(self, raw):
        self.file.write(raw[:20])
        raise OSError(errno.ENOSPC, "No space left on device")


def fdopen_full(descriptor, mode, **options):
    file = open(descriptor, mode, **options)  # noqa: SIM115
    return FullDisk(file) if "w" in mode else file


def refuse(*arguments, **options):
    raise PermissionError(errno.EROFS, "Read-only file system")


@pytest.mark.parametrize(("target", "name", "replacement"), [
    (os, "fdopen", fdopen_full),
    (os, "replace", refuse),
    (os, "fsync", refuse),
    (os, "open", refuse),
])  # fmt: skip
def test_disk_that_takes_nothing(target, name, replacement, cache, monkeypatch, caplog):
    cache.put("before", entry())
    cache.flush()
    before = cache.path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(target, name, replacement)
        for key in ("key", "other"):
            cache.put(key, entry())
            assert not cache.flush()
        assert cache.get("key") == cache.get("other") == entry()
        assert len(caplog.records) == 1  # told once
    assert cache.path.read_bytes() == before
    assert set_aside(cache) == []
    # When the disk is back, all is saved.
    cache.put("last", entry())
    assert cache.flush()
    assert len(tuning_cache.read_file(cache.path, DEVICE).store) == 4


def test_file_that_cannot_be_read_is_not_overwritten(cache, monkeypatch, caplog):
    cache.put("before", entry())
    cache.flush()
    tuning_cache.shipped(DEVICE)  # read once in a process: not while reading is refused
    other = TuningCache(cache.path.parent, DEVICE)
    with monkeypatch.context() as patch:
        patch.setattr(tuning_cache, "read_bounded", refuse)
        assert other.get("before") is None
        other.put("key", entry())
        assert not other.flush()
    assert len(caplog.records) == 2  # not readable, not saved
    assert other.get("before") == entry()
    assert other.flush()
    assert [key for key, _ in TuningCache(cache.path.parent, DEVICE).items()] == ["before", "key"]


def test_folder_that_cannot_be(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    cache = TuningCache(tmp_path / "file" / "tuning", DEVICE)
    assert cache.get("key") is None
    cache.put("key", entry())
    assert not cache.flush()
    assert cache.get("key") == entry()
    assert len(caplog.records) == 1
    assert "is no folder. Set VOXAX_CACHE_DIR to a folder" in caplog.text
