"""What runs on a GPU, tried on a CPU: stages, limits, kills, going on, absent peers, the table."""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from benchmarks.gpu import checks, clouds, ledger, published, rows, run

SCRIPT = Path(run.__file__)
LAUNCH = rows.Row("voxax", "launch")
MACHINE = {"device": "a CPU"}

# A library whose rows do what their names say, in place of all others.
LIBRARY = """
import os, pathlib, time
here = pathlib.Path(__file__).parent
def versions():
    return {"Fake": "1.0"}
def measure(row, cloud):
    (here / "pid").write_text(str(os.getpid()))
    while row.operation == "wait" and not (here / "go").exists():
        time.sleep(0.05)
    if row.operation == "hang":
        time.sleep(1000)
    if row.operation == "crash":
        os._exit(7)
    if row.operation == "fail":
        raise ValueError("a bar | in it")
    return {"seconds": 1.0, "latency": 2.0}
"""
DRIVER = """
import sys
from benchmarks.gpu import ledger, rows, run
found = {stage: [] for stage in run.ROW_STAGES}
found["chip"] = [rows.Row("fake", name) for name in sys.argv.pop().split()]
rows.stages = lambda rehearsal: found
rows.LIBRARIES = ledger.LIBRARIES = ("voxax", "fake", "absent")
ledger.NAMES.clear()
ledger.NAMES.update(fake="Fake", absent="Absent")
run._facts = lambda options: ({"device": "a fake"}, {"driver": "1"})
run.main()
"""


@pytest.fixture
def fake(tmp_path):
    """A function that starts a run of rows of the fake library."""
    folder = tmp_path / "site" / "benchmarks" / "gpu"
    folder.mkdir(parents=True)
    (folder / "by_fake.py").write_text(LIBRARY)
    given = {**os.environ, "PYTHONPATH": os.pathsep.join([str(run.ROOT), str(tmp_path / "site")])}

    def start(names, *options):
        options = ["--rehearsal", "--out", str(tmp_path / "out"), "--stages", "chip", *options]
        return subprocess.Popen(
            [sys.executable, "-c", DRIVER, *options, names],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=given,
        )

    return start, folder, tmp_path / "out"


def known_rows(out):
    return json.loads((out / "gpu.json").read_text())["rows"]


def until(condition, what, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.05)


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_stages_come_by_their_worth_and_rows_once():
    assert run.STAGES[:4] == ("products", "chip", "networks", "layers")
    assert run.STAGES[-2] == "sanitize", "defaults is what was tuned: no stage of its own time"
    every = rows.every_row()
    assert len(set(map(str, every))) == len(every)
    assert {row.library for row in every} == set(rows.LIBRARIES)
    assert str(rows.stages()["networks"][0]) == "voxax SpUNet34C lidar120k float16 forward"
    assert {row.operation for row in rows.stages()["torchsparse"]} == set(published.SEVEN)
    stacks = {(r.cloud, r.channels, r.operation) for r in rows.stages()["flexgemm"]}
    assert stacks == {(f"sphere{n}", c, f"stack{layers}") for n, c, layers in published.EIGHT}
    rehearsed = {stage: set(kinds(rows.stages(True)[stage])) for stage in run.ROW_STAGES}
    for stage in set(run.ROW_STAGES) - {"more", "tuned"}:
        assert rehearsed[stage] == set(kinds(rows.stages()[stage])), stage


def kinds(found):
    """Rows without sizes: library, operation, and mode."""
    for row in found:
        operation = (
            row.operation.rstrip("0123456789") if "stack" in row.operation else row.operation
        )
        if row.operation in published.SEVEN:
            operation = "detector" if published.SEVEN[row.operation].range else "segmentation"
        yield row.library, operation, row.mode


def test_rows_that_fail_crash_or_hang_end_alone(fake):
    start, _, out = fake
    process = start("good fail crash hang last", "--limit", "2")
    text, _ = process.communicate(timeout=300)
    assert process.returncode == 0, text
    assert "5 rows: 2 measured, 3 failed, 0 left. Absent peers: 1." in text
    found = known_rows(out)
    assert {name for name, values in found.items() if "seconds" in values} == {
        "fake good",
        "fake last",
    }
    assert found["fake fail"]["note"] == "failed: ValueError: a bar | in it"
    assert "by_fake.py" in found["fake fail"]["traceback"]
    assert found["fake crash"]["note"] == "its process ended with status 7; see fake.log"
    assert found["fake hang"]["note"] == "stopped after 2 s; see fake.log"
    assert "time.sleep(1000)" in (out / "cache" / "fake.log").read_text() or "hang" in text
    # What is absent is named with its reason, in the output and in the table.
    reason = "ModuleNotFoundError: No module named 'benchmarks.gpu.by_absent'"
    assert f"Absent: absent: {reason}" in text
    table = (out / "gpu.md").read_text()
    assert f"| Absent | **absent**: {reason} |" in table
    assert "| Fake | Fake 1.0 |" in table
    assert "a bar / in it" in table
    # Again: only what failed.
    text, _ = start("good fail crash hang last", "--limit", "2").communicate(timeout=300)
    assert "chip: 3 rows" in text
    assert known_rows(out)["fake good"] == found["fake good"]


def test_a_killed_run_loses_at_most_one_row_and_goes_on(fake):
    start, folder, out = fake
    process = start("good wait last")
    until(lambda: (out / "gpu.json").exists() and known_rows(out), "no row came")
    until(lambda: int((folder / "pid").read_text() or 0), "no process")
    pid = int((folder / "pid").read_text())
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    before = known_rows(out)
    assert set(before) == {"fake good"}
    until(lambda: not alive(pid), "a killed run left a process on the GPU", 60)
    (folder / "go").touch()
    text, _ = start("good wait last").communicate(timeout=300)
    assert "chip: 2 rows" in text
    assert "3 rows: 3 measured, 0 failed, 0 left" in text
    after = known_rows(out)
    assert {name: values["run"] for name, values in after.items()} == {
        "fake good": 1,
        "fake wait": 2,
        "fake last": 2,
    }
    assert "chip:" not in start("good wait last").communicate(timeout=300)[0], "nothing is left"
    assert len(json.loads((out / "gpu.json").read_text())["runs"]) == 3


def test_rows_not_begun_come_before_those_that_failed(fake):
    start, _, out = fake
    start("fail").communicate(timeout=300)
    text, _ = start("fail first second").communicate(timeout=300)
    assert text.index("fake second: ") < text.index("fake fail: ")
    assert known_rows(out)["fake fail"]["run"] == 2


def namespace(out, **changes):
    given = {"rehearsal": True, "out": out, "cache": out, "data": None, "stages": (), "only": ""}
    return argparse.Namespace(**{**given, "anew": False, **changes})


def test_a_stage_that_hangs_is_cut_with_all_that_it_started(tmp_path):
    inner = f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(1000)"
    code = (
        "import subprocess, sys, time\n"
        "print('begun', flush=True)\n"
        f"subprocess.run([sys.executable, '-c', {'import os, time; ' + inner!r}])"
    )
    status, text = checks.run(namespace(tmp_path), [sys.executable, "-c", code], 3)
    assert status == 124
    assert text.endswith("stopped after 3 s; last line: begun")
    if (tmp_path / "pid").exists():
        pid = int((tmp_path / "pid").read_text())
        until(lambda: not alive(pid), "a stage left a process", 30)


def test_a_stage_gets_half_of_the_time_that_is_left(tmp_path, monkeypatch):
    given = {}

    def stage(name, result):
        def work(options, seconds):
            given[name] = seconds
            return result()

        return work

    def broken():
        raise OSError("no tool")

    works = dict.fromkeys(checks.CHECKS, lambda: {"passed": True, "result": "fine"})
    works["candidates"] = broken
    for name, result in works.items():
        monkeypatch.setitem(checks.CHECKS, name, stage(name, result))
    monkeypatch.setattr(run, "_facts", lambda options: (MACHINE, {"driver": "1"}))
    monkeypatch.setattr(run, "_peers", lambda options: {})
    command = ["run.py", "--rehearsal", "--out", str(tmp_path), "--seconds", "1000", "--stages"]
    monkeypatch.setattr(sys, "argv", [*command, *works])
    before = signal.getsignal(signal.SIGTERM)
    try:
        run.main()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert list(given) == list(works), "a stage that failed does not stop the others"
    assert list(given.values()) == pytest.approx([500.0, 500.0, 500.0, 1000.0], abs=20)
    known = json.loads((tmp_path / "gpu.json").read_text())["stages"]
    assert known["candidates"]["result"] == "failed: OSError: no tool"


def test_tests_that_were_all_skipped_are_no_success(tmp_path, monkeypatch):
    monkeypatch.setattr(checks, "run", lambda *_: (0, "13 skipped, 69 deselected in 1.41s"))
    assert not checks.run_tests(namespace(tmp_path, rehearsal=False), 1, "")["passed"]
    monkeypatch.setattr(checks, "run", lambda *_: (0, "11 passed, 2 skipped in 9.41s"))
    assert checks.run_tests(namespace(tmp_path, rehearsal=False), 1, "")["passed"]


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    command = [sys.executable, str(SCRIPT), "--rehearsal", "--out", str(tmp_path / "file" / "in")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "cannot write results" in done.stderr
    assert "give --out and --cache folders that you may write" in done.stderr


def test_results_of_another_machine_are_left_alone(tmp_path):
    path = tmp_path / "gpu.json"
    ledger.Ledger(path, {"device": "one"}).add(LAUNCH, {"seconds": 1.0, "latency": 1.0})
    with pytest.raises(SystemExit, match="move it, or give --out"):
        ledger.Ledger(path, {"device": "another"})


def test_a_cloud_that_cannot_be_made_fails_its_rows_alone(tmp_path, monkeypatch):
    def broken(*_):
        raise OSError("no such scan | here")

    monkeypatch.setattr(clouds, "prepare", broken)
    kept = ledger.Ledger(tmp_path / "gpu.json", MACHINE)
    row = rows.Row("voxax", "map", "lidar")
    given = namespace(tmp_path, clouds=tmp_path)
    assert not run._cloud_is_there(row, given, kept)
    assert run._cloud_is_there(LAUNCH, given, kept)
    assert not kept.has(row)
    assert "failed: OSError: no such scan / here |" in (tmp_path / "gpu.md").read_text()


def loaded(path):
    with np.load(path) as file:
        return dict(file)


def test_clouds_stand_in_where_no_scan_is(tmp_path):
    path = clouds.prepare("lidar:100", None, tmp_path)
    assert clouds.prepare("lidar:100", None, tmp_path) == path
    found = loaded(path)
    assert "synthetic" in str(found["source"])
    assert found["pairs"] >= len(found["coords"]) == 100


@pytest.mark.parametrize("name", published.SEVEN)
def test_workloads_of_torchsparse_lie_in_their_grids(name, tmp_path):
    work = published.SEVEN[name]
    one = loaded(clouds.prepare(name, None, tmp_path))["coords"]
    two = loaded(clouds.prepare(name + published.TWO_SCENES, None, tmp_path))["coords"]
    assert set(one[:, 0]) == {0}
    np.testing.assert_array_equal(two[: len(one)], one)
    assert len(two) == 2 * len(one)
    assert len(np.unique(two, axis=0)) == len(two)
    assert (two >= 0).all()
    assert work.channels == (5 if work.range else 4)
    if work.range:
        assert (two[:, 1:] < work.grid).all()
        assert work.grid in {(1024, 1024, 40), (1504, 1504, 40)}


def test_frames_add_voxels():
    counts = [len(published.scene(published.SEVEN[n], None)[0]) for n in ("NS-M-1f", "NS-M-3f")]
    assert 1.5 * counts[0] < counts[1] < 3 * counts[0]


@pytest.mark.parametrize("size", [8, 11])
def test_spheres_are_flexgemms(size):
    """Its definition: centers of cells at most 1.25 within the sphere."""
    cells = [
        (x, y, z)
        for x in range(size)
        for y in range(size)
        for z in range(size)
        if size / 2 - 1.25 <= sum((c - size / 2 + 0.5) ** 2 for c in (x, y, z)) ** 0.5 <= size / 2
    ]
    np.testing.assert_array_equal(published.sphere(size), cells)


def rehearsed(tmp_path, *options):
    command = [sys.executable, str(SCRIPT), "--rehearsal", "--out", str(tmp_path), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    known = json.loads((tmp_path / "gpu.json").read_text())
    assert set(known["peers"]) == set(rows.LIBRARIES) - {"voxax"}
    assert {"begun", "driver", "runtime", "Python", "code of voxax"} == set(known["runs"][0])
    table = (tmp_path / "gpu.md").read_text()
    assert "no compute-sanitizer" in table or "SUMMARY" in table
    for name in published.SEVEN:
        assert f"| {name} | {published.DIFFERS[name]} |" in table
    return done.stdout, known


def test_a_short_rehearsal(tmp_path):
    text, known = rehearsed(tmp_path, "--stages", "chip", "sanitize", "--only", "voxax launch")
    assert "1 rows: 1 measured, 0 failed, 0 left." in text
    assert known["rows"]["voxax launch"]["seconds"] > 0


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_rehearsal_reaches_its_end(tmp_path):
    text, known = rehearsed(tmp_path, "--seconds", "1500", "--limit", "400")
    assert set(known["stages"]) == {"products", "candidates", "auto", "sanitize", "defaults"}
    left = re.search(r"(\d+) rows: (\d+) measured, (\d+) failed, 0 left", text)
    assert left, text
    ours = {name: v for name, v in known["rows"].items() if name.startswith("voxax ")}
    assert set(ours) == {str(row) for row in rows.every_row(True) if row.library == "voxax"}
    assert all("seconds" in v or "matrix" in v for v in ours.values()), ours
    assert known["rows"]["voxax map lidar:300"]["error"] == 0, "entries of the map"
    assert known["rows"]["voxax layer lidar:300 float32 C8 forward"]["error"] < 1e-6
