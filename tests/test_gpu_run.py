"""What runs on a GPU, row by row, tried on a CPU: rows, limits, going on, the table."""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.gpu import clouds, ledger, rows, run

SCRIPT = Path(run.__file__)
LAUNCH = rows.Row("voxax", "launch")


def options(out, **changes):
    given = {"data": None, "peers": None, "budget": 0.0, "limit": 300.0, "rehearsal": True}
    return argparse.Namespace(out=out, verbose=False, **{**given, **changes})


def test_rows_come_by_their_worth_and_once():
    every = rows.selected(rows.every_row(), "")
    assert len(set(map(str, every))) == len(every)
    assert {row.library for row in every} == set(rows.LIBRARIES)
    kinds = list(dict.fromkeys(row.operation.removeprefix(rows.TUNED) for row in every))
    assert kinds == ["rates", "launch", *rows.NETWORKS, "layer", "map"]
    assert str(every[2]) == "voxax SpUNet34C lidar120k float16 forward"
    assert {row.cloud.partition(":")[0] for row in every if row.cloud} == set(clouds.FILES)
    rehearsed = {(row.library, row.operation, row.mode) for row in rows.every_row(True)}
    assert rehearsed == {
        (r.library, r.operation, r.mode) for r in every if not r.operation.startswith(rows.TUNED)
    }


def test_a_run_writes_each_row_and_goes_on(tmp_path):
    command = [sys.executable, str(SCRIPT), "--rehearsal", "--out", str(tmp_path)]
    command += ["--stages", "sanitize", "rows", "--only"]
    known = {}
    for only, measured in (("voxax launch", 1), ("voxax launch", 0), ("spconv_triton map", 1)):
        done = subprocess.run([*command, only], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("1/1 ") == measured, done.stdout
        before, known = known, json.loads((tmp_path / "gpu.json").read_text())
        assert before.get("rows", {}).items() <= known["rows"].items()
    assert known["rows"]["voxax launch"]["seconds"] > 0
    # A library that is not here, or has no GPU, is named with the reason.
    assert known["rows"]["spconv_triton map lidar:300"]["note"].startswith(("absent: ", "failed: "))
    table = (tmp_path / "gpu.md").read_text()
    assert "no compute-sanitizer" in table or "SUMMARY" in table
    assert table.count("\n| launch |") == 1


def test_a_row_that_takes_too_long_is_stopped_and_the_next_one_runs(tmp_path):
    processes, given = {}, options(tmp_path)
    kept = ledger.Ledger(tmp_path / "gpu.json", {"device": "a CPU"})

    def values(row):
        return run._values_of(row, given, kept, processes, tmp_path)

    try:
        assert "seconds" in values(LAUNCH)
        first = processes["voxax"]
        first._limit = 0.0
        assert values(LAUNCH) == {"note": "stopped after 0 s"}
        assert "seconds" in values(LAUNCH)
        second = processes["voxax"]
        assert second is not first
        second._process.kill()
        second._process.wait()
        assert "note" in values(LAUNCH)
        assert "seconds" in values(LAUNCH)
    finally:
        for process in processes.values():
            process.close()


def test_a_row_that_fails_does_not_end_the_run(tmp_path, monkeypatch):
    def broken(*_):
        raise OSError("no such scan | here")

    monkeypatch.setattr(clouds, "prepare", broken)
    kept = ledger.Ledger(tmp_path / "gpu.json", {"device": "a CPU"})
    row = rows.Row("voxax", "map", "lidar")
    values = run._values_of(row, options(tmp_path), kept, {}, tmp_path)
    kept.add(row, values)
    assert not kept.has(row)
    assert "failed: OSError: no such scan / here |" in (tmp_path / "gpu.md").read_text()


def test_results_of_another_machine_are_left_alone(tmp_path):
    path = tmp_path / "gpu.json"
    ledger.Ledger(path, {"device": "one"}).add(LAUNCH, {"seconds": 1.0, "latency": 1.0})
    with pytest.raises(SystemExit, match="move it, or give --out"):
        ledger.Ledger(path, {"device": "another"})


def test_clouds_stand_in_where_no_scan_is(tmp_path):
    path = clouds.prepare("lidar:100", None, tmp_path)
    assert clouds.prepare("lidar:100", None, tmp_path) == path
