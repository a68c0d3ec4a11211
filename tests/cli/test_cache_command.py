"""`voxax cache` end to end."""

import dataclasses
import json
import sys

import pytest

from voxax.cli import main
from voxax.hardware import describe
from voxax.tuning.cache import TuningCache, device_name
from voxax.tuning.entry import Entry, Measured

KEY = "forward dense float32 [bold]K27[/bold]"


def entry(seconds=2e-3, when="2026-01-01T12:00:00+00:00", **more):
    candidates = (
        Measured("explicit_gemm", (("fwd_block_size", 16),), 1, seconds, "ok"),
        Measured("implicit_gemm", (), 1, 5e-3, "ok"),
        Measured("cutlass_implicit_gemm", (), 1, None, "failed", "no GPU"),
    )
    return Entry(candidates, "caller's map", "measured", when, 1.5, **more)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("VOXAX_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tuning"


def fill(folder, device, **entries):
    cache = TuningCache(folder, device)
    for key, value in entries.items():
        cache.put(key.replace("KEY", KEY), value)
    assert cache.flush()
    return cache


def run(capsys, *arguments):
    status = main(["cache", *map(str, arguments)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_nothing_there(capsys, folder):
    for action in ("list", "show", "clear"):
        status, out, _ = run(capsys, action)
        assert status == 0
        assert str(folder) in out
    assert not folder.exists()


@pytest.mark.parametrize("below", ["", "below"])
@pytest.mark.parametrize("actions", [["list"], ["show"], ["export", "x"], ["clear"]])
def test_a_file_in_the_place_of_the_folder(actions, below, capsys, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("VOXAX_CACHE_DIR", str(tmp_path / "file" / below))
    status, out, err = run(capsys, *actions)
    assert (status, out) == (2, "")
    assert f"{tmp_path / 'file'} is no folder. Set VOXAX_CACHE_DIR to a folder" in err


def test_a_folder_without_permission(capsys, tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    (folder / "tuning").mkdir(parents=True)
    # For those who may read everything, such as root.
    monkeypatch.setattr("os.access", lambda path, mode: str(path) != str(folder / "tuning"))
    monkeypatch.setenv("VOXAX_CACHE_DIR", str(folder))
    status, out, err = run(capsys, "list")
    assert (status, out) == (2, "")
    assert f"{folder / 'tuning'} may not be read by this user" in err


def test_list(capsys, folder):
    fill(folder, "cpu-a-2-cores", x=entry(), y=entry())
    fill(folder, "gpu-b", x=entry(jaxlib="0.0.1"), y=entry())
    (folder / "tpu-c.json").write_text("{")
    status, out, _ = run(capsys, "list")
    assert status == 0
    rows = [line.split("│")[1:-1] for line in out.splitlines() if line.startswith("│")]
    assert [[cell.strip() for cell in row[:3]] for row in rows] == [
        ["cpu-a-2-cores", "2", "0"],
        ["gpu-b", "1", "1"],
        ["tpu-c", "unusable", "0"],
    ]
    assert str(folder / "gpu-b.json") in out


def test_show(capsys, folder):
    fill(folder, device_name(describe()), KEY=entry())
    status, out, _ = run(capsys, "show")
    assert status == 0
    (row,) = [line for line in out.splitlines() if KEY in line]
    for cell in ("explicit_gemm(fwd_block_size=16)", " 2 ", "implicit_gemm ", " 5 ", "2026-01-01"):
        assert cell in row
    assert run(capsys, "show", device_name(describe()))[1] == out


def test_show_without_a_winner(capsys, folder):
    failed = Entry((Measured("a", (), 1, None, "failed"),), "x", "measured", "2026-01-01", 1.0)
    fill(folder, "gpu-b", KEY=failed)
    status, out, _ = run(capsys, "show", "gpu-b")
    assert status == 0
    assert KEY in out


def test_export_and_import(capsys, folder, tmp_path, monkeypatch):
    fill(folder, "cpu-a-2-cores", x=entry(), y=entry())
    fill(folder, "gpu-b", x=entry(), z=entry(jaxlib="0.0.1"))
    file = tmp_path / "all.json"
    assert run(capsys, "export", file)[1].startswith("4 entries of cpu-a-2-cores, gpu-b")
    assert run(capsys, "export", tmp_path / "one.json", "--device", "gpu-b")[1].startswith("2 ")

    monkeypatch.setenv("VOXAX_CACHE_DIR", str(tmp_path / "elsewhere"))
    elsewhere = tmp_path / "elsewhere" / "tuning"
    fill(elsewhere, "gpu-b", x=entry(1.0, when="2025-01-01"))
    status, out, _ = run(capsys, "import", file)
    assert status == 0
    assert "cpu-a-2-cores: 2 entries came in, 0 were refused" in out
    assert "gpu-b: 2 entries came in, 0 were refused" in out
    assert TuningCache(elsewhere, "gpu-b").get("x").ranked()[0].seconds == 2e-3  # the newer
    for name in ("cpu-a-2-cores.json", "gpu-b.json"):
        ours = json.loads((elsewhere / name).read_text())["entries"]
        assert ours.keys() == json.loads((folder / name).read_text())["entries"].keys()
    assert "gpu-b: 0 entries came in, 2 were known" in run(capsys, "import", file)[1]


def test_import_does_not_replace_what_is_newer(capsys, folder, tmp_path):
    fill(tmp_path / "other", "gpu-b", x=entry(9.0, when="2025-01-01"))
    fill(folder, "gpu-b", x=entry())
    # A cache file itself is taken as well.
    assert run(capsys, "import", tmp_path / "other" / "gpu-b.json")[0] == 0
    assert TuningCache(folder, "gpu-b").get("x") == entry()


def test_import_of_a_newer_prediction_leaves_what_was_measured(capsys, folder, tmp_path):
    guess = dataclasses.replace(entry(9.0, when="2027-01-01"), source="predicted")
    fill(tmp_path / "other", "gpu-b", x=guess)
    fill(folder, "gpu-b", x=entry())
    out = run(capsys, "import", tmp_path / "other" / "gpu-b.json")[1]
    assert "gpu-b: 1 entries came in, 0 were refused" in out, "beside the other"
    assert TuningCache(folder, "gpu-b").get("x") == entry()


def test_import_refuses_what_is_ill_formed(capsys, folder, tmp_path):
    bad = entry().to_json() | {"seconds_spent": -1}
    devices = {"gpu-b": {"good": [entry().to_json()], "bad": [bad]}}
    file = tmp_path / "some.json"
    file.write_text(json.dumps({"format": 1, "devices": devices}))
    status, out, _ = run(capsys, "import", file)
    assert status == 0
    assert "gpu-b: 1 entries came in, 1 were refused" in out
    assert "'bad': seconds_spent -1" in out


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"format": 2, "devices": {}}',
        '{"format": 1}',
        '{"format": 1, "device": [], "entries": {}}',
        '{"format": 1, "devices": {"../up": {}}}',
        '{"format": 1, "devices": {"gpu-b": []}}',
        '{"format": 1, "devices": []}',
        "[" * 100_000,
    ],
)
def test_import_of_something_else(text, capsys, folder, tmp_path):
    file = tmp_path / "some.json"
    file.write_text(text)
    status, _, err = run(capsys, "import", file)
    assert status == 2
    assert "is not what `voxax cache export` writes" in err
    assert not folder.exists()


def test_clear(capsys, folder, monkeypatch):
    cache = fill(folder, "gpu-b", x=entry())
    (folder / "notes.txt").write_text("mine")
    assert run(capsys, "clear")[0] == 2  # no terminal to ask
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda prompt: "n")
    assert run(capsys, "clear")[0] == 0
    assert cache.path.exists()
    monkeypatch.setattr("builtins.input", lambda prompt: "y")
    assert run(capsys, "clear")[0] == 0
    assert not cache.path.exists()
    fill(folder, "gpu-b", x=entry())
    status, out, _ = run(capsys, "clear", "--yes")
    assert (status, str(cache.path) in out) == (0, True)
    assert sorted(path.name for path in folder.iterdir()) == [".gpu-b.lock", "notes.txt"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "../up"], "is not a device's name"),
        (["show", "tpu-c"], "is unusable"),
        (["export", "x.json"], "is unusable"),
        (["export", "x.json", "--device", "gpu-b"], "nothing to export"),
        (["export", "no/such/folder/x.json", "--device", "cpu-a"], "cannot be written"),
        (["import", "missing.json"], "missing.json cannot be read: No such file"),
        (["clear"], "give --yes"),
    ],
)
def test_mistakes(arguments, message, capsys, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fill(folder, "cpu-a", x=entry())
    (folder / "tpu-c.json").write_text("{")
    status, _, err = run(capsys, *arguments)
    assert status == 2
    assert message in err
