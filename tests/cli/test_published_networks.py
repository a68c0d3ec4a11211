"""`voxax segment` and `voxax detect` with networks by name and files of weights."""

import pickle

import numpy as np
import pytest
from flax import nnx

import voxax as vx
from voxax.cli import main
from voxax.cli.published import class_names, made, numbers, voxel_sides
from voxax.errors import InputError
from voxax.io import read
from voxax.io.mean_features import MeanFeatures

pytest.importorskip("safetensors")

SMALL = {"channels": (8,) * 8, "stem": 8}
OPTIONS = "channels=[8, 8, 8, 8, 8, 8, 8, 8], stem=8"


@pytest.fixture
def scan(tmp_path, rng):
    path = tmp_path / "room.npz"
    colors = rng.integers(0, 256, (400, 3)).astype(np.uint8)
    np.savez(path, xyz=rng.uniform(100, 102, (400, 3)), rgb=colors)
    return path


def spunet(folder, num_classes=3, **more):
    model = vx.models.create(
        "spunet-14", in_channels=6, num_classes=num_classes, rngs=nnx.Rngs(3), **(SMALL | more)
    )
    model.eval()
    return model, vx.models.save(model, folder / "weights.safetensors")


def segment(scan, weights, out, *more, **changes):
    given = {
        "network": "spunet-14",
        "weights": weights,
        "classes": "wall,floor,chair",
        "voxel-size": 0.2,
        "attributes": "rgb,xyz",
        "options": OPTIONS,
    } | {name.replace("_", "-"): value for name, value in changes.items()}
    words = [f"--{name}={value}" for name, value in given.items() if value is not None]
    return main(["segment", str(scan), "--out", str(out), *words, *more])


@pytest.mark.parametrize(
    ("option", "match"),
    [
        ({"width": 1e9}, r"minkunet-14: width 1000000000.0 must be at most 32.0, since"),
        ({"width": float("nan")}, "width nan must be a finite number"),
        ({"planes": [1, 1e300]}, r"planes 1e\+300 must be at most 1,048,576.0, since"),
        ({"stem": 2**30}, "stem 1073741824 must be at most 1,048,576, since"),
        ({"blocks": [300] * 8}, "blocks 300 must be at most 256, since"),
    ],
)
def test_options_beyond_every_network(option, match):
    with pytest.raises(InputError, match=match):
        made("minkunet-14", 3, 2, option)


@pytest.mark.slow
def test_segment(scan, tmp_path, capsys):
    model, weights = spunet(tmp_path)
    more = "--signed-colors", "--source", "pointcept"
    assert segment(scan, weights, tmp_path / "out", *more) == 0
    said = capsys.readouterr().out
    assert "400 points in" in said
    assert "wall" in said
    found = read(tmp_path / "out/room_npz_labeled.ply")
    cloud = read(scan)
    features = np.column_stack([cloud.attributes["rgb"] / 127.5 - 1, cloud.positions])
    corner = np.floor(cloud.positions.min(0) / 0.2) * 0.2
    voxels, rows = vx.voxelize(
        (cloud.positions - corner).astype(np.float32),
        features.astype(np.float32),
        0.2,
        return_inverse=True,
    )
    expected = np.asarray(model(voxels).features)[rows].argmax(1)
    assert (found.labels == expected).mean() > 0.99  # but for rounding at the faces of voxels


class Code:
    def __reduce__(self):
        return print, ("this ran",)


def test_weights_that_do_not_fit_are_one_line(scan, tmp_path, capsys):
    _, weights = spunet(tmp_path)
    other = vx.models.save(
        vx.models.create("minkunet-14", in_channels=6, num_classes=3, width=0.25),
        tmp_path / "other.safetensors",
    )
    short = tmp_path / "short.safetensors"
    short.write_bytes(weights.read_bytes()[:3000])
    pytest.importorskip("torch")
    code = tmp_path / "code.pth"
    code.write_bytes(pickle.dumps({"state_dict": Code()}, protocol=2))
    for given, changes, message in (
        (other, {}, "has no name of a SpUNet"),
        (short, {}, "is no whole .safetensors file"),
        (code, {}, "is no PyTorch file of tensors alone"),
        (weights, {"classes": 20}, "is not that of this SpUNet. 2 of another shape"),
        (weights, {"attributes": "rgb"}, "1 of another shape: 'conv_input.0.weight"),
        (weights, {"options": ""}, "146 of another shape"),
        (weights, {"options": "stem=["}, "is no TOML"),
        (weights, {"options": "sterm=8"}, "unknown option of spunet-14"),
        (weights, {"network": "resnet"}, "unknown network 'resnet'; known: centerpoint"),
        (weights, {"network": "voxelnext", "options": ""}, "finds boxes: `voxax detect` takes it"),
        (weights, {"voxel_size": "0"}, "--voxel-size 0.0 must be at least 1e-30"),
        (weights, {"classes": None}, "--network spunet-14 needs --classes too"),
        (tmp_path / "nowhere.pth", {}, "nowhere.pth"),
        ("hf://owner", {}, "must be hf://owner/name/file"),
    ):
        assert segment(scan, given, tmp_path / "out", **changes) == 2, message
        said = capsys.readouterr()
        assert message in said.err, said.err
        assert said.err.count("\n") == 1
        assert "this ran" not in said.out
    assert main(["segment", str(scan)]) == 2
    assert "give either --checkpoint" in capsys.readouterr().err
    assert main(["segment", str(scan), "--checkpoint", ".", "--classes", "3"]) == 2
    assert "--classes: the checkpoint contains it" in capsys.readouterr().err


def test_options_in_words():
    assert class_names("3") == ("class 0", "class 1", "class 2")
    assert len(class_names("semantic_kitti")) == 19
    assert class_names("a, b") == ("a", "b")
    assert voxel_sides("0.1") == (0.1, 0.1, 0.1)
    assert voxel_sides("0.1,0.1,0.2") == (0.1, 0.1, 0.2)
    for bad in ("0", "a,a", ","):
        with pytest.raises(InputError, match="--classes"):
            class_names(bad)
    for bad in ("1,2", "x", "1,2,nan"):
        with pytest.raises(InputError, match="3 numbers with commas"):
            numbers("--region", bad, 3)


def test_mean_features(rng):
    from voxax.io import PointCloud

    positions = np.array([[1.0, 1, 1], [1.2, 1.2, 1.2], [9, 9, 9], [-1, 0, 0]])
    own = {"intensity": np.arange(4.0), "rgb": np.full((4, 3), 255, np.uint8)}
    cloud = PointCloud(positions, own, labels=[2, 2, 1, 0])
    make = MeanFeatures(1.0, ("xyz", "intensity", "zero", "rgb"), (0, 0, 0), (5, 5, 5))
    assert make.num_channels == 8
    example = make(cloud)
    assert example.inverse.tolist() == [0, 0, -1, -1]
    np.testing.assert_allclose(
        example.voxels.features[0], [1.1, 1.1, 1.1, 0.5, 0, 1, 1, 1], rtol=1e-6
    )
    np.testing.assert_array_equal(example.voxels.coords[0], [0, 1, 1, 1])
    assert example.labels[:2].tolist() == [2, -1]
    with pytest.raises(InputError, match="none of the 4 points"):
        MeanFeatures(1.0, low=(20, 0, 0), high=(30, 5, 5))(cloud)
    with pytest.raises(InputError, match="has no attribute 'ring'"):
        MeanFeatures(1.0, ("ring",))(cloud)
