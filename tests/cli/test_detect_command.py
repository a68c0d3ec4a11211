"""`voxax detect` with detectors by name and files of weights."""

import json

import numpy as np
import pytest
from flax import nnx

import voxax as vx
from voxax.cli import main
from voxax.detection import Region

pytest.importorskip("safetensors")

BEV = {"layers": [1, 1], "channels": [4, 6], "up_channels": [5, 3]}
NETWORKS = {
    "second": ({"bev": BEV}, "bev={ layers=[1, 1], channels=[4, 6], up_channels=[5, 3] }"),
    "centerpoint": (
        {"bev": BEV, "channels": [4] * 4, "residual": False, "groups": [[0, 2], [1]]},
        "bev={ layers=[1, 1], channels=[4, 6], up_channels=[5, 3] }, channels=[4, 4, 4, 4],"
        "residual=false, groups=[[0, 2], [1]]",
    ),
    "voxelnext": (
        {"channels": [4] * 5, "out_channels": 4},
        "channels=[4, 4, 4, 4, 4], out_channels=4",
    ),
}
REGION = "0,-6.4,-2,12.8,6.4,2.8"


def detect(scan, weights, network, out, **changes):
    given = {
        "network": network,
        "weights": weights,
        "classes": "kitti",
        "voxel-size": "0.4,0.4,0.2",
        "region": REGION,
        "attributes": "xyz,intensity",
        "options": NETWORKS.get(network, ("", ""))[1],
        "min-score": 0,
    } | {name.replace("_", "-"): value for name, value in changes.items()}
    words = [f"--{name}={value}" for name, value in given.items() if value is not None]
    return main(["detect", str(scan), "--out", str(out), *words])


@pytest.fixture
def scan(tmp_path, rng):
    rows = rng.uniform((-5, -8, -2, 0), (14, 8, 1, 1), (600, 4)).astype("<f4")
    rows.tofile(tmp_path / "000000.bin")
    return tmp_path / "000000.bin"


def saved(folder, network):
    sizes = {"grid": (32, 32, 24), "rngs": nnx.Rngs(2), **NETWORKS[network][0]}
    model = vx.models.create(network, in_channels=4, num_classes=3, **sizes)
    return model, vx.models.save(model, folder / f"{network}.safetensors")


@pytest.mark.slow
@pytest.mark.parametrize("network", NETWORKS)
def test_detect(network, scan, tmp_path):
    model, weights = saved(tmp_path, network)
    model.eval()
    assert detect(scan, weights, network, tmp_path) == 0
    rows = json.loads((tmp_path / "000000_bin_boxes.json").read_text())["boxes"]
    points = np.fromfile(scan, "<f4").reshape(-1, 4)
    inside = (points[:, :3] >= (0, -6.4, -2)).all(1) & (points[:, :3] < (12.8, 6.4, 2.8)).all(1)
    points = points[inside]
    shifted = points[:, :3].astype(np.float64) - (0, -6.4, -2)
    voxels = vx.voxelize(shifted.astype(np.float32), points, (0.4, 0.4, 0.2))
    region = Region((0, -6.4, -2), (12.8, 6.4, 2.8), (0.4, 0.4, 0.2))
    assert region.grid == (32, 32, 24)
    groups = getattr(model, "groups", None)
    output = model(vx.plan(model, voxels))
    (found,) = vx.models.found_boxes(output, region, num_classes=3, groups=groups, min_score=0.0)
    assert len(rows) == int(found.valid.sum()) > 0
    assert {row["class"] for row in rows} <= {"Car", "Pedestrian", "Cyclist"}
    scores = [row["score"] for row in rows]
    np.testing.assert_allclose(scores, found.scores[: len(rows)], atol=2e-3)


def test_mistakes_are_one_line(scan, tmp_path, capsys):
    _, weights = saved(tmp_path, "second")
    for changes, message in (
        ({"classes": "nuscenes"}, "of another shape"),
        ({"region": "0,0,0,1,1"}, "--region '0,0,0,1,1' must be 6 numbers"),
        ({"region": "0,0,0,-1,1,1"}, "a region begins below its end"),
        ({"region": None}, "--network second needs --region too"),
        ({"min_score": 2}, "--min-score 2.0 must lie in 0..1"),
        ({"attributes": "xyz"}, "of another shape"),
        ({"weights": tmp_path / "nowhere.safetensors"}, "nowhere.safetensors"),
        ({"network": "spunet-14"}, "spunet-14 finds no boxes: `voxax segment` takes it"),
    ):
        given = {"weights": weights, "network": "second", **changes}
        options = {name: given.pop(name) for name in ("weights", "network")}
        sizes = {"options": NETWORKS["second"][1], **given}
        assert detect(scan, out=tmp_path, **options, **sizes) == 2, changes
        said = capsys.readouterr().err
        assert message in said, said
        assert said.count("\n") == 1
    assert main(["detect", str(scan), "--checkpoint", str(tmp_path)]) == 2
    assert "no voxax checkpoint in" in capsys.readouterr().err
