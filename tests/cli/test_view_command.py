"""``voxax view``: what it shows, served from a process of its own, and seen in a browser."""

import importlib.util
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import voxax as vx
from voxax.cli import main
from voxax.cli.view import colorings_of, names_of
from voxax.io import PointCloud, read, write_ply
from voxax.kernels.implicit_gemm.windows import WINDOW_TILE
from voxax.plot import CORRECT, WRONG, rgb

SCREENSHOT = Path(__file__).resolve().parents[2] / "docs" / "screenshot.py"


def scan(path, rng, points=900):
    """A plane in two classes, sizes 3 and 5, and predictions of which a tenth is wrong."""
    positions = np.column_stack([rng.uniform(-5, 5, (points, 2)), np.zeros(points)])
    labels = (positions[:, 0] > 0).astype(np.int32)
    sizes = np.where(positions[:, 1] > 0, 5, 3).astype(np.uint8)
    np.savez(path, xyz=positions, label=labels, kernel_size=sizes, intensity=rng.random(points))
    spoilt = np.where(np.arange(points) % 10 == 0, 1 - labels, labels)
    return positions, labels, spoilt


def test_ways_to_color(tmp_path, rng):
    positions, labels, spoilt = scan(tmp_path / "a.npz", rng)
    cloud = read(tmp_path / "a.npz")
    assert list(colorings_of(cloud)) == ["label", "height", "kernel_size", "intensity"]
    predicted = PointCloud(positions, {"score": rng.random(900)}, spoilt)
    found = colorings_of(cloud, predicted, ("left", "right"))
    names = ["label", "prediction", "error", "height", "score", "kernel_size", "intensity"]
    assert list(found) == names
    for name in names:
        assert found[name]().colors.shape == (900, 3)
    assert found["label"]().legend[1][0] == f"right: {labels.sum()}"
    assert found["error"]().note == "10.0 % of 900 labeled points wrong"
    assert [words[0] for words, _ in found["kernel_size"]().legend] == ["3", "5"]


def test_names_of_classes_come_from_the_checkpoint_beside_the_file(tmp_path, rng, monkeypatch):
    scan(tmp_path / "a.npz", rng)
    clouds, files = (read(tmp_path / "a.npz"), None), (None, tmp_path / "a.npz")
    assert names_of(None, files, clouds) is None
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint/voxax.json").write_text("{}")
    names = ["left", "right"]
    monkeypatch.setattr(
        "voxax.cli.tasks.task_of", lambda folder: SimpleNamespace(class_names=names)
    )
    assert names_of(None, files, clouds) == names
    names.pop()  # of another data set: a label has no name
    assert names_of(None, files, clouds) is None
    assert names_of(tmp_path, files, clouds) == ["left"]


def test_windows_are_those_of_the_kernel_map(rng):
    positions = rng.uniform(-4, 4, (700, 3)) + 1e6
    found = colorings_of(PointCloud(positions), voxel_size=0.5)
    assert list(found) == ["height", "tile", "window"]
    window = found["window"]
    local = (positions - positions.min(axis=0)).astype(np.float32)
    voxels, inverse = vx.voxelize(local, voxel_size=0.5, return_inverse=True)
    neighbors = np.asarray(vx.kernel_map(voxels, kernel_size=3).view("neighbors"))
    assert window.count == -(-int(voxels.count) // WINDOW_TILE) > 2
    for number in range(window.count):
        painted = window.color(number)
        own, read, _ = (tuple(rgb(color)) for _, color in painted.legend)
        rows = slice(number * WINDOW_TILE, (number + 1) * WINDOW_TILE)
        needed = np.unique(neighbors[rows])
        colors = [tuple(color) for color in painted.colors]
        for row, color in zip(np.asarray(inverse), colors, strict=True):
            assert (row // WINDOW_TILE == number) == (color == own)
            if row in needed:
                assert color in (own, read)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--classes", "a,b", "--checkpoint", "c"], "--classes and --checkpoint both name"),
        (["--classes", "a"], "label 1 has no name: 1 classes are known"),
        (["--color", "window"], "--color window needs --voxel-size"),
        (["--voxel-size", "0"], "--voxel-size 0.0 must be at least"),
        (["--predictions", "short.npy"], "3 labels in .*short.npy for 900 points"),
        (["--predictions", "bare.ply"], "bare.ply has no labels"),
        (["--predictions", "few.npz"], "few.npz has 2 points, and .* has 900"),
    ],
)
def test_mistakes_are_said(options, message, tmp_path, rng, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    positions, _, _ = scan(tmp_path / "a.npz", rng)
    np.save("short.npy", np.zeros(3, int))
    write_ply("bare.ply", positions)
    np.savez("few.npz", xyz=np.zeros((2, 3)), label=np.zeros(2, int))
    assert main(["view", "a.npz", *options]) == 2
    assert re.search(message, capsys.readouterr().err)


def test_missing_viser(tmp_path, rng, capsys, monkeypatch):
    scan(tmp_path / "a.npz", rng)
    monkeypatch.setitem(sys.modules, "viser", None)
    assert main(["view", str(tmp_path / "a.npz")]) == 2
    assert 'pip install "voxax[view]"' in capsys.readouterr().err


def test_unknown_color(tmp_path, rng, capsys):
    pytest.importorskip("viser", reason="viser is not installed")
    scan(tmp_path / "a.npz", rng)
    assert main(["view", str(tmp_path / "a.npz"), "--color", "smell"]) == 2
    message = "no colors by 'smell' here, only by label, height, kernel_size, intensity"
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("host", ["192.0.2.1", "nosuchhost.invalid", "x" * 99])
def test_an_address_of_no_machine_here(host, tmp_path, rng, capsys):
    pytest.importorskip("viser", reason="viser is not installed")
    scan(tmp_path / "a.npz", rng)
    assert main(["view", str(tmp_path / "a.npz"), "--host", host]) == 2
    assert f"cannot listen on '{host}': " in capsys.readouterr().err


def test_command_serves_until_it_is_interrupted(tmp_path, rng):
    pytest.importorskip("viser", reason="viser is not installed")
    scan(tmp_path / "a.npz", rng)
    # A shell's background jobs, and what they start, ignore interrupts unless told otherwise.
    heed = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    start = f"{heed}; from voxax.cli import main; raise SystemExit(main())"
    command = [sys.executable, "-c", start, "view", str(tmp_path / "a.npz"), "--port", "0"]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            line = process.stdout.readline()
            url = re.search(r"900 points at (http://127\.0\.0\.1:\d+)", line)[1]
            with urllib.request.urlopen(url, timeout=30) as answer:
                assert b"<html" in answer.read(100_000).lower()
            process.send_signal(signal.SIGINT)
            said, complaints = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 0, complaints
    assert (said.strip(), complaints) == ("", "")


def screenshot():
    spec = importlib.util.spec_from_file_location("screenshot", SCREENSHOT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_a_browser_shows_the_points_in_their_colors(tmp_path, rng):
    pytest.importorskip("viser", reason="viser is not installed")
    from voxax.plot.viewer import Viewer

    shots = screenshot()
    if shots.browser() is None:
        pytest.skip(f"no browser: none of {', '.join(shots.BROWSERS)} is on the path")
    positions, _, spoilt = scan(tmp_path / "a.npz", rng)
    predicted = PointCloud(positions, {}, spoilt)
    colorings = colorings_of(read(tmp_path / "a.npz"), predicted, None, voxel_size=0.5)
    viewer = Viewer(positions, colorings, "error", title="a scan", port=0)
    try:
        with shots.Page(viewer.url) as page:
            page.wait(lambda p: "10.0 % of 900 labeled points wrong" in p.words(), "no legend")
            assert "a scan" in page.words()
            for color in (CORRECT, WRONG):
                page.wait(lambda p, c=color: shots.drawn(p, rgb(c).astype(int)), f"no {color}")
            switches = {switch.label: switch for switch in viewer._switches}
            assert list(switches) == ["correct", "wrong"]
            switches["wrong"].value = False
            assert len(viewer._cloud.points) == 810
            assert (viewer._cloud.colors == rgb(CORRECT)).all()
            for name in ("label", "kernel_size", "height", "window"):
                viewer.show(name)
                painted = colorings[name]
                painted = painted.color(painted.count // 2) if name == "window" else painted()
                for words, color in painted.legend[:2]:
                    page.wait(lambda p, w=words: w in p.words(), f"no {words}")
                    wanted = rgb(color).astype(int)
                    page.wait(lambda p, c=wanted: shots.drawn(p, c), f"{name}: no {color}")
    finally:
        viewer.stop()
