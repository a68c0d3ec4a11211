"""Every program in ``examples/`` runs, on small data, and does what it is for.

They are cases of one test, of which CI takes some in turn: each compiles a network.
"""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

import folders
from parallel.own_devices import on_devices

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "examples"


def example(name):
    spec = importlib.util.spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def folder_of_semantic_kitti(tmp_path, rng):
    folders.semantic_kitti(tmp_path, rng, {"00": 2, "08": 1}, points=500)
    options = "--format semantic_kitti --train 00 --validation 08 --voxel-size 1"
    options += " --width 0.25 --steps 2"
    matrix = example("segment_folder").main([str(tmp_path), *options.split()])
    assert matrix.sum() == 500


def folder_of_scannet(tmp_path, rng):
    folders.scannet(tmp_path, rng, ["scene0", "scene1"], points=500)
    (tmp_path / "val.txt").write_text("scene1\n")
    options = f"--format scannet --train scene0 --validation {tmp_path / 'val.txt'}"
    options += " --voxel-size 0.5 --width 0.25 --steps 2"
    matrix = example("segment_folder").main([str(tmp_path), *options.split()])
    assert 0 < matrix.sum() < 500  # one of the three classes does not count


def airborne(path, rng):
    positions, house = folders.street(rng, 2500, reach=20)
    labels = np.where(house, 6, 2)
    labels[:100] = 1
    np.savez(path, xyz=positions + np.array([85_000, 446_000, 0]), label=labels)


def airborne_scan(tmp_path, rng):
    airborne(tmp_path / "scan.npz", rng)
    out = tmp_path / "classified.ply"
    options = f"--voxel-size 1 --width 0.25 --steps 2 --out {out}"
    matrix = example("classify_airborne").main([str(tmp_path / "scan.npz"), *options.split()])
    assert matrix.sum() > 500
    from voxax.io import read

    assert set(np.unique(read(out).labels)) <= {0, 1, 2}


def shapes_are_completed(tmp_path, rng):
    module = example("complete_shapes")
    losses, seen, completed = module.main(["--steps", "8", "--shapes", "4"])
    assert np.mean(losses[-2:]) < losses[0]
    assert 0.4 < seen < 0.6
    assert 0 <= completed <= 1


def pixels_are_smoothed(tmp_path, rng):
    errors = example("smooth_by_pixel").main(["--steps", "25", "--size", "24", "--fixed", "1", "5"])
    assert errors[None] < errors[1]
    assert errors[5] < errors[1]


def several_devices(tmp_path, rng):
    path = FOLDER / "several_devices.py"
    options = ["--devices", "2", "--steps", "4", "--scenes", "3", "--radius", "8"]
    on_devices(
        f"import runpy\nmain = runpy.run_path({str(path)!r})['main']\n"
        f"losses = main({options!r})\nassert losses[-1] < losses[0], losses",
        2,
    )


def export_and_reload(tmp_path, rng):
    pytest.importorskip("flatbuffers", reason="jax.export needs it")
    module = example("export_and_reload")
    file = ["--file", str(tmp_path / "street.voxax"), "--radius", "8"]
    trained = module.main([*file, "--steps", "10"])
    assert module.main([*file, "--load"]) == trained > 0.4


CASES = (
    folder_of_semantic_kitti,
    folder_of_scannet,
    airborne_scan,
    shapes_are_completed,
    pixels_are_smoothed,
    several_devices,
    export_and_reload,
)


@pytest.mark.slow
@pytest.mark.lax_promotion  # examples are written for JAX's default promotion
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_example(case, tmp_path, rng):
    case(tmp_path, rng)


@pytest.mark.slow
@pytest.mark.lax_promotion
def test_learned_size(tmp_path, monkeypatch, capsys):
    module = example("learned_size")
    monkeypatch.setattr(module, "SIZES", (1, 3))
    monkeypatch.setattr(module, "PRICES", (0.0, 0.01))
    monkeypatch.setattr(module, "VALIDATION", 1)
    options = ["--steps", "2", "--voxel-size", "1.0", "--scenes", "1", "--seeds", "1"]
    module.main([*options, "--out", str(tmp_path)])
    report = json.loads((tmp_path / "learned_size.json").read_text())
    names = [row["name"] for row in report["rows"]]
    assert names == ["fixed 1", "fixed 3", "learned, price 0", "learned, price 0.01"]
    small, large = (row["mflop"][0] for row in report["rows"][:2])
    assert 0 < small < large
    curve = (tmp_path / "learned_size.svg").read_text()
    for text in ("one size for all voxels", "learned at each voxel, by price", "validation mIoU"):
        assert f">{text}<" in curve
    assert (tmp_path / "learned_size.png").stat().st_size > 10_000
    from voxax.io import read

    scene = read(tmp_path / "learned_size.npz")
    assert set(scene.attributes) == {"kernel_size"}
    assert set(np.unique(scene.attributes["kernel_size"])) <= {1, 2, 3}
    assert "| learned, price 0 |" in capsys.readouterr().out


def test_learned_sizes_need_a_seed(tmp_path, capsys):
    with pytest.raises(SystemExit):
        example("learned_size").main(["--out", str(tmp_path), "--seeds", "0"])
    assert "--seeds 0 must be at least 1" in capsys.readouterr().err


@pytest.mark.torch
@pytest.mark.lax_promotion
def test_pytorch():
    pytest.importorskip("torch", reason="PyTorch is not installed")
    losses = example("train_in_pytorch").main(["--steps", "8", "--radius", "8"])
    assert losses[-1] < losses[0]


def test_every_example_has_a_test_and_is_in_the_docs():
    page = (ROOT / "docs" / "examples.md").read_text()
    places = (Path(__file__), ROOT / "tests" / "parallel" / "test_processes.py")
    tests = "".join(place.read_text() for place in places)
    names = sorted(path.stem for path in FOLDER.glob("*.py"))
    assert len(names) > 6
    for name in names:
        assert f"| `{name}.py` |" in page, name
        assert f"python examples/{name}.py" in page, name
        assert f'"{name}' in tests, name
