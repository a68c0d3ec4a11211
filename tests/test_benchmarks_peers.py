"""The comparison with peers: which cases it takes, how it takes turns, what it writes."""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from benchmarks import report
from benchmarks.peers import run, tables, worker
from benchmarks.peers.cases import CHANNELS, Case, Contestant, cases
from benchmarks.peers.match import Match
from benchmarks.peers.problems import WORKLOADS, coords_of, relation
from benchmarks.turns import WorkerFailed

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks" / "peers"


class FakeWorker:
    """Answers like a worker whose contestants take the given seconds, with the given errors."""

    def __init__(self, seconds, errors=None):
        self.seconds, self.errors, self.calls = seconds, errors or {}, []

    def ask(self, do, **arguments):
        self.calls.append((do, arguments.get("name")))
        if do == "prepare":
            return dict.fromkeys(self.seconds)
        if do == "save":
            np.savez(arguments["path"], out=np.zeros(1))
        if do == "check":
            return self.errors.get(arguments["name"], {"error": 0.0, "exact_error": None})
        if do == "time":
            return 0.01 if arguments["slot"] == "sgemm" else self.seconds[arguments["name"]]
        return {}

    def turns(self, name):
        return self.calls.count(("time", name))


HEAD = {
    "device": "a CPU",
    "threads": 2,
    "python": "3",
    "versions": {},
    "code": "0123",
    "absent": {},
}
ARRAYS = {"coords": np.zeros((5, 4), np.int32), "pairs": np.asarray(11)}


def played(crew, tmp_path, channels=(16,)):
    match = Match(crew, 7, tmp_path)
    return [match.play(Case("sphere", "conv3", c, "forward"), ARRAYS) for c in channels]


def test_slow_contestants_run_fewer_rounds(tmp_path):
    torch = FakeWorker({"loop": 0.02, "im2col": 0.05, "dense": 2.0})
    (result,) = played({"voxax": FakeWorker({"voxax": 0.01}), "torch": torch}, tmp_path)
    assert result["rounds"] == {"voxax": 7, "torch loop": 7, "torch im2col": 3, "torch dense": 1}
    assert torch.turns("dense") == 1
    assert result["seconds"]["torch loop"] == 0.02


def test_lower_bound_is_the_arithmetic_over_the_best_dense_product(tmp_path):
    (result,) = played({"voxax": FakeWorker({"voxax": 0.01})}, tmp_path)
    assert result["rate"] == pytest.approx(2 * 4096 * 512 * 512 / 0.01)
    assert result["lower_bound"] == pytest.approx(2 * 11 * 16**2 / result["rate"])


def test_wrong_results_are_not_timed(tmp_path):
    wrong = FakeWorker({"spconv": 0.001}, {"spconv": {"error": 0.5, "exact_error": 0.5}})
    (result,) = played({"voxax": FakeWorker({"voxax": 0.01}), "spconv": wrong}, tmp_path)
    assert list(result["seconds"]) == ["voxax"]
    assert "differs" in result["absent"]["spconv"]


def test_a_library_that_fails_on_the_way_is_named(tmp_path):
    class Mortal(FakeWorker):
        def ask(self, do, **arguments):
            if self.turns("spconv") == 2:
                raise WorkerFailed("spconv is gone")
            return super().ask(do, **arguments)

    crew = {"voxax": FakeWorker({"voxax": 0.01}), "spconv": Mortal({"spconv": 0.01})}
    first, second = played(crew, tmp_path, (16, 32))
    assert first["rounds"] == {"voxax": 7}
    assert first["absent"] == second["absent"] == {"spconv": "spconv is gone"}


def test_results_that_are_exact_on_one_thread_are_timed_and_noted(tmp_path):
    errors = {"spconv": {"error": 0.5, "exact_error": 1e-6, "wrong_rows": 3}}
    crew = {"voxax": FakeWorker({"voxax": 0.01}), "spconv": FakeWorker({"spconv": 0.03}, errors)}
    (result,) = played(crew, tmp_path)
    report = tables.Results(HEAD, {})
    report.results["case"] = result
    text = "\n".join(report.to_markdown())
    assert "spconv agreed on one thread only" in text
    assert "3 rows" in text
    assert "3.00 (spconv) |" in text


def test_nan_is_an_error_beyond_every_tolerance(tmp_path):
    right = np.arange(8, dtype=np.float32).reshape(4, 2)
    wrong = right.copy()
    wrong[2, 0] = np.nan
    assert np.isnan(worker._error({"out": wrong}, {"out": right}))
    # Wherever it stands among the arrays.
    for order in (["a", "b"], ["b", "a"]):
        found, expected = {"a": right, "b": wrong}, {"a": right, "b": right}
        assert np.isnan(
            worker._error({n: found[n] for n in order}, {n: expected[n] for n in order})
        )
    assert worker._error({"out": right}, {"out": right}) == 0.0
    assert worker._error({"out": right[:0]}, {"out": right[:0]}) == 0.0

    class Library:
        def contestants(self, case, arrays):
            def of(out):
                return lambda: Contestant(lambda: None, lambda _: {"out": out})

            return {"right": of(right), "wrong": of(wrong)}

    own, path = worker.Worker(Library()), str(tmp_path / "reference.npz")
    np.savez(tmp_path / "problem.npz")
    case = ["sphere", "conv3", 2, "forward"]
    own.prepare(case, str(tmp_path / "problem.npz"))
    with pytest.raises(ValueError, match="out with entries that are not finite"):
        own.save("wrong", path)
    own.save("right", path)
    answer = own.check("wrong", path, 1e-4)
    assert np.isnan(answer["error"])
    assert np.isnan(answer["exact_error"])
    assert answer["wrong_rows"] == 1


def test_nan_is_not_timed(tmp_path):
    nan = float("nan")
    broken = FakeWorker({"loop": 0.001}, {"loop": {"error": nan, "exact_error": nan}})
    (result,) = played({"voxax": FakeWorker({"voxax": 0.01}), "torch": broken}, tmp_path)
    assert list(result["seconds"]) == ["voxax"]
    assert "differs" in result["absent"]["torch loop"]


def test_spconv_on_one_thread_counts(tmp_path):
    spconv = FakeWorker({"spconv": 0.03, "single": 0.2})
    crew = {"voxax": FakeWorker({"voxax": 0.01}), "spconv": spconv}
    first, second = played(crew, tmp_path, (16, 32))
    assert {"spconv", "spconv single"} <= set(first["seconds"]) & set(second["seconds"])
    assert tables.fastest_peer(first) == ("spconv", 0.03)
    del first["seconds"]["spconv"]
    assert tables.fastest_peer(first) == ("spconv, 1 thread", 0.2)


def test_a_file_of_other_code_or_peers_is_not_touched(tmp_path, monkeypatch):
    def opened(absent, anew=False):
        options = argparse.Namespace(out=tmp_path, threads=2, anew=anew)
        return tables.Results.open(options, {"voxax": "1"}, absent)

    monkeypatch.setattr(tables, "device", lambda: "a CPU")
    first = opened({})
    assert first.head["code"] == report.code()
    assert len(report.code()) == 12
    (result,) = played({"voxax": FakeWorker({"voxax": 0.01})}, tmp_path)
    first.results[str(Case(*result["case"]))] = result
    first.write(tmp_path)
    assert list(opened({}).results) == ["sphere conv3 C16 forward"]
    with pytest.raises(tables.OtherResults, match=r"absent.*no network.*--anew"):
        opened({"torch": "no network"})
    monkeypatch.setattr(tables, "code", lambda: "other")
    with pytest.raises(tables.OtherResults, match=r"code: .* other now.*--anew"):
        opened({})
    assert not opened({}, anew=True).results


def test_a_library_without_its_dense_product_does_not_play(tmp_path, monkeypatch):
    closed = []

    class Fake:
        def __init__(self, library, *rest):
            if library == "spconv":
                raise WorkerFailed("it cannot")
            self.library, self.hello = library, {library: "1"}

        def ask(self, do):
            if (self.library, do) == ("torch", "sgemm"):
                raise WorkerFailed("it cannot")

        def close(self):
            closed.append(self.library)

    monkeypatch.setattr(run, "Worker", Fake)
    monkeypatch.setattr(sys, "argv", ["run.py"])
    absent = {}
    crew, versions = run.muster(absent, run.parse(), tmp_path, None)
    assert set(crew) == {"voxax", "voxax-xla", "numpy", "open3d"}
    assert set(versions) == {"voxax", "numpy", "open3d"}
    assert absent == {"torch": "it cannot", "spconv": "it cannot"}
    assert closed == ["torch"]


def test_every_case_has_its_own_budget_and_counts_what_it_left(tmp_path):
    class Tuned(FakeWorker):
        def ask(self, do, **arguments):
            answer = super().ask(do, **arguments)
            return {"unmeasured": 2} if do == "drop" else answer

    results = played({"voxax": Tuned({"voxax": 0.01})}, tmp_path, (16, 32))
    assert [r["unmeasured"] for r in results] == [{"voxax": 2}] * 2
    report = tables.Results(HEAD, {str(r["case"]): r for r in results})
    assert "voxax: 4 products in 2 of 2 cases ran as predicted" in "\n".join(report.to_markdown())

    from benchmarks.peers import by_voxax

    from voxax.tuning import measure

    before = measure.spent()
    try:
        measure.spend(30.0)
        by_voxax.contestants(Case("sphere", "conv3", 4, "forward"), {})
        assert measure.spent() == 0
    finally:
        measure.spend(before - measure.spent())


def test_cases_are_chosen_by_words():
    chosen = cases(WORKLOADS, CHANNELS, "os0-128 conv3 forward", False)
    assert [case.channels for case in chosen] == list(CHANNELS)
    either = cases(WORKLOADS, CHANNELS, "mesh conv3 C32, map3 shuffled", False)
    assert [str(case) for case in either[:2]] == [
        "mesh conv3 C32 forward",
        "mesh conv3 C32 forward+backward",
    ]
    assert [case.mode for case in either[2:]] == ["shuffled"] * len(WORKLOADS)
    assert {str(case) for case in cases(WORKLOADS, CHANNELS, "", False)} < {
        str(case) for case in cases(WORKLOADS, CHANNELS, "", True)
    }


def test_pairs_of_a_relation_are_those_of_dense_grids():
    """Counted on a dense grid, as a convolution of ones."""
    coords = coords_of("sphere", Path(), 300)
    assert coords.min() >= 0
    grid = (coords[:, 1:].max(0) // 16 + 1) * 16
    full = np.zeros(grid + 2, int)
    full[tuple(coords[:, 1:].T + 1)] = 1
    x, y, z = grid
    counts = sum(
        full[i : i + x, j : j + y, k : k + z] for i in range(3) for j in range(3) for k in range(3)
    )
    table, out = relation("conv3", coords, grid)
    assert (table >= 0).sum() == counts[tuple(coords[:, 1:].T)].sum()
    np.testing.assert_array_equal(out, coords)
    table, out = relation("conv3s2", coords, grid)
    assert (table >= 0).sum() == counts[::2, ::2, ::2].sum()
    assert len(out) == (counts[::2, ::2, ::2] > 0).sum()
    table, out = relation("conv2s2", coords, grid)
    assert (table >= 0).sum() == len(coords)
    np.testing.assert_array_equal(out[:, 1:], np.unique(coords[:, 1:] // 2, axis=0))


def test_peers_that_cannot_be_imported_are_named_with_the_reason(tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'first\nModuleNotFoundError: no such peer' >&2\nexit 1\n")
    python.chmod(0o755)
    absent = run.unusable(python)
    assert set(absent) == {"torch", "spconv", "open3d"}
    assert absent["torch"] == "import torch: ModuleNotFoundError: no such peer"


@pytest.mark.slow
def test_one_command_writes_table_data_and_picture(tmp_path):
    """On a small shape, with the peers that the running Python has."""
    command = [sys.executable, str(FOLDER / "run.py"), "--python", sys.executable]
    command += ["--workloads", "sphere", "--size", "300", "--channels", "4", "8", "--rounds", "2"]
    command += ["--budget", "0", "--threads", "1", "--out", str(tmp_path)]
    for part in (["--only", "conv3"], ["--only", "map3"]):
        # A guard against hanging; a busy machine may take many minutes.
        done = subprocess.run(command + part, capture_output=True, text=True, timeout=7200)
        assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "peers.json").read_text())
    cases = {tuple(r["case"]): r for r in report["results"]}
    modes = ("forward", "forward+backward")
    layers = {("sphere", "conv3", c, mode) for c in (4, 8) for mode in modes}
    assert set(cases) == layers | {("sphere", "map3", 0, mode) for mode in ("sorted", "shuffled")}
    for case, result in cases.items():
        assert {"voxax", "voxax-xla"} <= set(result["seconds"]), result["absent"]
        assert all(seconds > 0 for seconds in result["seconds"].values())
        assert ("lower_bound" in result) == (case[1] == "conv3")
        for check in result["checks"].values():
            assert min(check["error"], check["exact_error"] or 1) <= 1e-4
    for peer in report["absent"]:
        assert peer in ("torch", "spconv", "open3d")
    table = (tmp_path / "peers.md").read_text()
    assert table.count("\n| sphere |") == len(cases)
    assert report["device"] in table
