"""Features of points from files of released encoders, which say what network they are of."""

import numpy as np
import pytest

import voxax as vx
from models.test_weights import drawn, same
from voxax.interop.peer import find_layers
from voxax.interop.sources import weights_of
from voxax.models import PTv3Encoder, encoder_voxels, load_encoder, upcast_features

OPTIONS = {
    "encoder_depths": (1, 2, 1),
    "encoder_channels": (6, 12, 12),
    "encoder_num_heads": (1, 2, 2),
    "strides": (2, 2),
    "orders": ("z", "hilbert"),
    "patch_size": 16,
}
CONFIG = {
    "in_channels": 9,
    "order": ["z", "hilbert"],
    "stride": [2, 2],
    "enc_depths": [1, 2, 1],
    "enc_channels": [6, 12, 12],
    "enc_num_head": [1, 2, 2],
    "enc_patch_size": [16, 16, 16],
    "enable_flash": True,
    "mask_token": True,
    "enc_mode": True,
}


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="PyTorch is not installed")


def file_of(torch, path, config=CONFIG, rotary=False, **changed):
    model = drawn(PTv3Encoder(**OPTIONS), 0)
    state = {name: torch.from_numpy(value) for name, value in weights_of(model).items()}
    state["embedding.mask_token"] = torch.zeros(1, 6)
    if rotary:
        for level, depth in enumerate(OPTIONS["encoder_depths"]):
            for block in range(depth):
                state[f"enc.enc{level}.block{block}.attn.rope.inv_freq"] = torch.ones(1)
    torch.save({"config": {**config, **changed}, "state_dict": state}, path)
    return model, path


def points(rng, number=300):
    positions = rng.uniform(-1, 1, (number, 3)) * (0.3, 0.2, 0.1)
    return positions, rng.integers(0, 256, (number, 3)), rng.normal(size=(number, 3))


@pytest.mark.parametrize("rotary", [False, True])
def test_features_of_a_scan(torch, tmp_path, rng, rotary):
    first, path = file_of(torch, tmp_path / "encoder.pth", rotary=rotary)
    encoder = load_encoder(path)
    same(weights_of(first), weights_of(encoder))
    assert encoder.position_channels == (3 if rotary else 0)
    assert encoder.down[0].blocks[0].attn.rotary_base == (10 if rotary else None)
    voxels, row = encoder_voxels(*points(rng))
    levels = encoder.levels(vx.plan(encoder, voxels))
    assert [level.num_channels for level in levels] == [6, 12, 12]
    features = upcast_features(levels)
    assert features.num_channels == 6 + 12 + 12
    assert upcast_features(levels, 0).num_channels == 12
    by_hand = np.asarray(levels[2].features)
    table = {tuple(c): f for c, f in zip(levels[2].valid_coords(), by_hand, strict=False)}
    coords = np.asarray(voxels.coords)[row]
    wanted = [table[(b, *(np.array(c) // 4))] for b, *c in coords]
    np.testing.assert_array_equal(np.asarray(features.features)[row][:, 18:], wanted)
    np.testing.assert_array_equal(
        np.asarray(features.features)[row][:, :6], np.asarray(levels[0].features)[row]
    )
    np.testing.assert_array_equal(encoder(voxels).valid_features(), levels[2].valid_features())


def test_a_file_without_a_config(tmp_path):
    pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")
    first = drawn(PTv3Encoder(9, "tiny", **OPTIONS), 0)
    path = vx.models.save(first, tmp_path / "encoder.safetensors")
    same(weights_of(first), weights_of(load_encoder(path, size="tiny", in_channels=9, **OPTIONS)))
    with pytest.raises(vx.InputError, match=r"encoder\.safetensors: .* not that of this PTv3"):
        load_encoder(path, size="tiny")


def test_rotary_positions_are_those_of_the_points(rng):
    """Moving all points turns all queries and keys alike: features stay; one moved point's do not.

    Of the position as a feature the stem knows nothing here.
    """
    model = drawn(PTv3Encoder(**OPTIONS, position="rotary-points", rotary_base=10.0), 0)
    (kernel,) = (x.arrays["weight"] for x in find_layers(model) if x.path == "stem.layers.0")
    assert kernel[...].shape == (9, 6)
    kernel.set_value(np.asarray(kernel[...]) * (np.arange(9) >= 3)[:, None].astype(np.float32))
    model.eval()
    voxels, _ = encoder_voxels(*points(rng))
    features = np.array(voxels.features)
    moved, one = features.copy(), features.copy()
    moved[:, :3] += (0.5, -2.0, 1.0)
    one[5, :3] += (0.5, -2.0, 1.0)
    plain, shifted, other = (
        model(voxels.replace_features(x)).valid_features() for x in (features, moved, one)
    )
    np.testing.assert_allclose(shifted, plain, atol=1e-3 * np.abs(plain).max())
    assert np.abs(other - plain).max() > 0
    planned = model(vx.plan(model, voxels)).valid_features()
    np.testing.assert_allclose(planned, plain, atol=1e-4 * np.abs(plain).max())


def test_input_recipe(rng):
    positions, colors, normals = points(rng, 50)
    positions = np.concatenate([positions, positions[:1] + 1e-6])  # in the cell of the first
    colors, normals = (np.concatenate([x, 0 * x[:1]]) for x in (colors, normals))
    voxels, row = encoder_voxels(positions, colors, normals)
    features = np.asarray(voxels.features)[row]
    low, high = positions.min(0), positions.max(0)
    middle = [*((low + high) / 2)[:2], low[2]]
    np.testing.assert_allclose(features[:50, :3], (positions - middle)[:50], atol=1e-6)
    np.testing.assert_allclose(features[:50, 3:6], colors[:50] / 255, atol=1e-6)
    np.testing.assert_allclose(features[:50, 6:], normals[:50], atol=1e-6)
    np.testing.assert_array_equal(features[50], features[0])
    assert np.asarray(voxels.valid_coords())[:, 1:].min(0).tolist() == [0, 0, 0]
    twice, _ = encoder_voxels(positions, colors / 255, normals, scale=2.0, center=False)
    assert np.abs(twice.features).max() > np.abs(voxels.features).max() - 1
    bare, where = encoder_voxels(positions)
    assert not np.asarray(bare.features)[np.asarray(where)][:, 3:].any()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"positions": np.zeros((0, 3))}, r"positions of shape \[0, 3\]: give \[N, 3\]"),
        ({"positions": np.zeros((4, 2))}, r"positions of shape \[4, 2\]"),
        ({"positions": [[0, 0, np.nan]]}, "positions are not all finite"),
        ({"colors": np.zeros((3, 3))}, r"colors of shape \[3, 3\]: give \[4, 3\]"),
        ({"colors": np.full((4, 3), 200.0)}, "integers of 0..255, or floats of 0..1"),
        ({"colors": np.full((4, 3), -1)}, "integers of 0..255"),
        ({"normals": np.full((4, 3), np.inf)}, "normals are not all finite"),
        ({"voxel_size": 0.0}, "voxel_size=0.0 and scale=1.0 must be positive"),
        ({"positions": np.eye(4, 3) * 1e9}, "cells of 0.02 m along an axis"),
    ],
)
def test_bad_points(given, message):
    with pytest.raises(vx.InputError, match=message):
        encoder_voxels(**{"positions": np.zeros((4, 3)), **given})
    with pytest.raises(vx.InputError, match="0 levels and joined=2"):
        upcast_features([])


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"layer_scale": 1e-5}, vx.InputError, "not supported here: 'layer_scale=1e-05'"),
        ({"enc_mode": False}, vx.InputError, "enc_mode=False"),
        ({"enc_patch_size": [16, 32, 16]}, vx.InputError, r"enc_patch_size=\[16, 32, 16\]"),
        ({"gating": True}, vx.InputError, "'gating'"),
        ({"enc_channels": [6, 12, 10**9]}, vx.FileFormatError, "qkv.weight is .3000000000"),
        ({"enc_depths": [1, 2, 10**9]}, vx.InputError, "enc_depths 1000000000 must be at most"),
        ({"enc_depths": [1, 2]}, vx.FileFormatError, "does not say the sizes"),
        ({"enc_depths": 7}, vx.FileFormatError, "does not say the sizes"),
        ({"in_channels": 10**9}, vx.FileFormatError, "stem.linear.weight is .6, 1000000000"),
        ({"mlp_ratio": 1e9}, vx.FileFormatError, "fc1.weight is"),
        ({"order": ["z", "spiral"]}, vx.InputError, "unknown order 'spiral'"),
        ({"enc_num_head": [1, 5, 2]}, vx.InputError, "num_heads=5 must divide channels=12"),
    ],
)
def test_configs_that_are_refused(torch, tmp_path, changed, error, message):
    _, path = file_of(torch, tmp_path / "encoder.pth", **changed)
    with pytest.raises(error, match=message):
        load_encoder(path)


def test_files_that_are_refused(torch, tmp_path):
    path = tmp_path / "encoder.pth"
    with pytest.raises(FileNotFoundError):
        load_encoder(path)
    torch.save({"config": [1, 2], "state_dict": {"a": torch.zeros(1)}}, path)
    with pytest.raises(vx.FileFormatError, match="its config is list, not a mapping"):
        load_encoder(path)
    torch.save({"config": CONFIG, "state_dict": {"a": torch.zeros(1)}}, path)
    with pytest.raises(
        vx.FileFormatError, match=r"stem\.linear\.weight is \(6, 9\), and the file has N"
    ):
        load_encoder(path)
