"""mmdetection3d's networks, and CenterPoint of its authors: the same numbers from their files."""

import os

import jax
import numpy as np
import other_codebases
import pytest
from flax import nnx

import voxax as vx
from own_process import run_python
from voxax import detection as vd
from voxax.interop.checkpoint_file import read_checkpoint
from voxax.interop.sources import ENTRIES, weights_of
from voxax.interop.state_dict import COUNTERS
from voxax.models.registry import NUSCENES

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

pytestmark = pytest.mark.torch

GRID = other_codebases.GRID
SIZES = {"in_channels": 5, "num_classes": 10, "grid": GRID, "bev": other_codebases.BEV}
# Network here, and what its arrays are there, by name: channels in their order, and the sign.
CASES = {
    "mmdetection3d": (
        "centerpoint-mmdetection3d-nuscenes",
        {"center": ("reg",), "center_z": ("height",), "hm": ("heatmap",)},
        {"rot": (1, 0)},
    ),
    "centerpoint": ("centerpoint-nuscenes", {"center": ("reg",), "center_z": ("height",)}, {}),
}


def reference(package, folder, coords, features):
    """Run a network there, which leaves its state and outputs in a folder."""
    pytest.importorskip("spconv.pytorch", reason="spconv is not installed")
    clones = {"minkunet": "mmdetection3d", "spunet_v1m2": "pointcept"}
    variable = f"VOXAX_TEST_{clones.get(package, package).upper()}"
    if not os.environ.get(variable):
        pytest.skip(f"set {variable} to a clone of the repository")
    np.savez(folder / "scan.npz", coords=coords, features=features)
    run_python(other_codebases.__file__, package, folder)


@pytest.mark.parametrize("package", CASES)
def test_same_predictions(package, tmp_path, rng):
    coords = np.unique(rng.integers(0, GRID, (300, 3)), axis=0)
    features = rng.normal(size=(len(coords), 5)).astype(np.float32)
    reference(package, tmp_path, coords, features)
    name, renamed, _ = CASES[package]
    model = vx.models.load(name, tmp_path / "state.pth", source=package, **SIZES)

    state = read_checkpoint(tmp_path / "state.pth", ENTRIES)
    kept = {k: v for k, v in state.items() if k.rpartition(".")[2] not in COUNTERS}
    written = weights_of(model, package)
    assert set(written) == set(kept)
    for key, value in written.items():
        np.testing.assert_array_equal(value, kept[key])
    other = vx.models.create(name, **SIZES)
    path = vx.models.save(model, tmp_path / "again.pth", source=package)
    assert vx.models.load(other, path).groups == NUSCENES  # found by its names

    model.eval()
    rows = np.pad(coords, ((0, 0), (1, 0))).astype(np.int32)
    voxels = vx.Voxels.from_coords(rows, features, batch_size=1)
    found = model(vx.plan(model, voxels))
    theirs = torch.load(tmp_path / "outputs.pt", weights_only=True)
    for ours, group in zip(found, theirs, strict=True):
        there = {k: v.numpy().transpose(0, 3, 2, 1) for k, v in group.items()}
        for branch, value in ours.items():
            expected = as_ours(package, branch, there[renamed.get(branch, (branch,))[0]])
            assert value.shape == expected.shape
            assert np.abs(value - expected).max() < 1e-4 * np.abs(expected).max(), branch


UNETS = {
    "minkunet": (
        "minkunet-18",
        {"blocks": (1, 2, 1, 1, 1, 1, 1, 2), "planes": (8, 12, 16, 16, 16, 12, 8, 8)},
        None,  # found by its names
    ),
    "spunet_v1m2": ("spunet-14", {"channels": (8,) * 4, "blocks": (1,) * 4}, "pointcept-v1m2"),
}


@pytest.mark.parametrize("package", UNETS)
def test_networks_that_lose_the_last_plane(package, tmp_path, rng):
    """At levels with an odd number of cells."""
    coords = np.unique(rng.integers(0, (39, 45, 27), (2500, 3)), axis=0)
    coords = np.unique(np.concatenate([coords, [(0, 0, 0), (38, 44, 26)]]), axis=0)
    features = rng.normal(size=(len(coords), 5)).astype(np.float32)
    reference(package, tmp_path, coords, features)
    name, sizes, source = UNETS[package]
    sizes |= {"in_channels": 5, "num_classes": 4, "stem": 8}
    model = vx.models.load(name, tmp_path / "state.pth", source=source, **sizes)
    assert model.drops_last_plane
    model.eval()
    rows = np.pad(coords, ((0, 0), (1, 0))).astype(np.int32)
    voxels, row = vx.Voxels.from_coords(rows, features, batch_size=1, return_inverse=True)
    (theirs,) = torch.load(tmp_path / "outputs.pt", weights_only=True)
    expected = theirs["logits"].numpy()

    def apart(found):
        return np.abs(np.asarray(found.features)[row] - expected).max() / np.abs(expected).max()

    graph, state = nnx.split(model)
    for given in (voxels, vx.plan(model, voxels)):
        run = jax.jit(lambda state, given: nnx.merge(graph, state)(given))
        assert apart(run(state, given)) < 1e-4
    assert apart(model(voxels)) < 1e-4
    model.drops_last_plane = False
    assert apart(model(voxels)) > 1e-3


def as_ours(package, branch, value):
    """The meaning of a branch there, in ours: logarithms of sizes, cosine and sine of the yaw."""
    if branch == "rot" and package == "mmdetection3d":
        return value[..., ::-1]
    if branch == "rot":  # their box has -yaw - pi / 2
        yaw = -np.arctan2(value[..., 0], value[..., 1]) - np.pi / 2
        length = np.hypot(value[..., 0], value[..., 1])
        return np.stack([length * np.cos(yaw), length * np.sin(yaw)], axis=-1)
    if branch == "dim" and package == "centerpoint":  # width, length, height
        return value[..., [1, 0, 2]]
    return value


def test_sizes_and_yaw_after_their_conventions():
    """``as_ours`` against boxes: encoded by the formulas of both, the box is the same."""
    box = np.array([[3.0, -2.0, 0.5, 4.5, 1.9, 1.6, 0.7, 1.0, -0.5]])
    cells = np.array([[3, 5]])
    code = vd.encode_boxes(box, cells, vd.BevGrid((0.0, 0.0), (0.8, 0.8), (8, 8)))[0]
    sine_first = np.array([[np.sin(0.7), np.cos(0.7)]])
    yaw = -0.7 - np.pi / 2
    turned = np.array([[np.sin(yaw), np.cos(yaw)]])
    sizes = np.log([[1.9, 4.5, 1.6]])
    np.testing.assert_allclose(as_ours("mmdetection3d", "rot", sine_first)[0], code[6:8])
    np.testing.assert_allclose(as_ours("centerpoint", "rot", turned)[0], code[6:8], atol=1e-12)
    np.testing.assert_allclose(as_ours("centerpoint", "dim", sizes)[0], code[3:6])
