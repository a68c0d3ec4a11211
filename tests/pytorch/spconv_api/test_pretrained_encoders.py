"""Sonata, Concerto and Utonia: our encoder from their files against their own classes.

Small networks with random weights, through spconv on one thread, where alone it is right on a CPU.
"""

import importlib
import os
import sys
from types import ModuleType

import jax
import jax.numpy as jnp
import networks
import numpy as np
import pytest

import voxax as vx

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

pytestmark = pytest.mark.torch

CONFIG = {
    "in_channels": 9,
    "order": ("z", "z-trans", "hilbert", "hilbert-trans"),
    "stride": (2, 2, 2),
    "enc_depths": (1, 1, 2, 1),
    "enc_channels": (18, 36, 36, 54),
    "enc_num_head": (1, 2, 2, 3),
    "enc_patch_size": (48,) * 4,  # whose rest has to be filled
    "mlp_ratio": 4,
    "qkv_bias": True,
    "qk_scale": None,
    "attn_drop": 0.0,
    "proj_drop": 0.0,
    "drop_path": 0.3,
    "layer_scale": None,
    "pre_norm": True,
    "shuffle_orders": False,
    "enable_rpe": False,
    "enable_flash": False,
    "upcast_attention": False,
    "upcast_softmax": False,
    "traceable": True,
    "mask_token": True,
    "enc_mode": True,
    "freeze_encoder": False,
}


class Attributes(dict):
    """addict's: entries are attributes too."""

    def __init__(self, *given, **entries):
        super().__init__(*given, **entries)

    def __getattr__(self, name):
        if name not in self:
            raise AttributeError(name)
        return self[name]

    __setattr__ = dict.__setitem__


@pytest.fixture(params=["sonata", "concerto", "utonia"])
def package(request, monkeypatch):
    """The name and the package, imported from a clone; what is not installed are stubs."""
    name = request.param
    pytest.importorskip("spconv.pytorch", reason="spconv is not installed")
    pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
    variable = f"VOXAX_TEST_{name.upper()}"
    root = os.environ.get(variable)
    if not root:
        pytest.skip(f"set {variable} to a clone of the repository")
    from spconv.pytorch import ops

    monkeypatch.setattr(ops, "get_current_stream", lambda: 0)
    drop_path = {"DropPath": networks.DropPath, "trunc_normal_": torch.nn.init.trunc_normal_}
    stubs = {
        "addict": {"Dict": Attributes},
        "torch_scatter": {"segment_csr": networks.segment_csr},
        "timm": {},
        "timm.layers": drop_path,
    }
    for stub, contents in stubs.items():
        module = ModuleType(stub)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, stub, module)
    monkeypatch.syspath_prepend(root)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield name, importlib.import_module(name)
    torch.set_num_threads(threads)
    for module in [m for m in sys.modules if m.partition(".")[0] == name]:
        del sys.modules[module]


def scan(rng):
    """Points, one in each cell of a box in which no level's last cell is ``2**n - 1``."""
    cells = rng.integers(0, (22, 14, 9), (700, 3))
    cells = np.unique(np.concatenate([cells, [(0, 0, 0), (21, 13, 8)]]), axis=0)
    inside = rng.uniform(0.3, 0.7, cells.shape)
    # The middle of the box is where a cell begins, so that shifted cells are the same.
    inside[0], inside[-1] = (0.1, 0.1, 0.0), 0.9
    positions = (cells + inside) * 0.02
    colors = rng.integers(0, 256, cells.shape)
    normals = rng.normal(size=cells.shape)
    normals /= np.linalg.norm(normals, axis=1, keepdims=True)
    order = rng.permutation(len(cells))
    return [part[order] for part in (positions, colors, normals)]


def upcast(point, joined):
    """As their pages do it."""
    for step in range(3):
        parent, inverse = point.pop("pooling_parent"), point.pop("pooling_inverse")
        back = point.feat[inverse]
        parent.feat = torch.cat([parent.feat, back], dim=-1) if step < joined else back
        point = parent
    return point.feat


@pytest.mark.lax_promotion  # float64
def test_features_of_points(package, tmp_path, rng):
    name, theirs = package
    torch.manual_seed(0)
    network = theirs.model.PointTransformerV3(**CONFIG).eval()
    for parameter in network.parameters():
        parameter.data.normal_(0, 1.0 / np.sqrt(max(1, parameter[0].numel())))
    networks.allow_bias(network)
    for module in network.modules():  # its poolings draw orders in evaluation too
        if hasattr(module, "shuffle_orders"):
            module.shuffle_orders = False
    network.double()
    state = network.state_dict()
    torch.save({"config": dict(CONFIG), "state_dict": state}, tmp_path / f"{name}.pth")

    size = 0.01 if name == "utonia" else 0.02
    positions, colors, normals = scan(rng)
    positions = positions * (size / 0.02)
    data = {"coord": positions.copy(), "color": colors.copy(), "normal": normals.copy()}
    data = theirs.transform.default()(data)
    rows = data["inverse"].numpy()
    data["feat"] = data["feat"].float().double()
    with torch.no_grad():
        point = network(dict(data))
        found = [(point.feat.numpy(), point.grid_coord.numpy())]
        expected = upcast(point, 2).numpy()[rows]

    with jax.enable_x64(True):
        encoder = vx.models.load_encoder(tmp_path / f"{name}.pth")
        assert (encoder.position_channels == 3) == (name == "utonia")
        voxels, row = vx.models.encoder_voxels(positions, colors, normals, voxel_size=size)
        np.testing.assert_allclose(
            np.asarray(voxels.features)[row], data["feat"].numpy()[rows], atol=1e-6
        )
        wide = np.zeros((voxels.capacity, 9))  # without roundings of the last digit
        wide[row] = data["feat"].numpy()[rows]
        voxels = voxels.replace_features(jnp.asarray(wide))
        levels = encoder.levels(vx.plan(encoder, voxels))
        features = vx.models.upcast_features(levels).features[row]
        coarsest, cells = found[0]
        order = np.lexsort(cells.T[::-1])
        np.testing.assert_array_equal(levels[-1].valid_coords()[:, 1:], cells[order])
        for ours, wanted in ((levels[-1].valid_features(), coarsest[order]), (features, expected)):
            assert np.abs(ours - wanted).max() < 1e-9 * np.abs(wanted).max()
        if name == "utonia":  # at the centers of the voxels, it would be another network
            encoder.position_channels = 0
            moved = encoder(voxels).valid_features()
            assert np.abs(moved - coarsest[order]).max() > 1e-6 * np.abs(coarsest).max()
