"""Compare outputs with spconv's on a CPU for the same weights, if it is installed."""

from pathlib import Path

import jax
import numpy as np
import pytest
from benchmarks.workloads import lidar_like, random_cube
from flax import nnx

import voxax as vx
from samples import slow_unless
from voxax.interop import from_spconv, spconv_offsets, to_spconv
from voxax.models import MinkUNet18
from voxax.nn.modules import Linear, SparseConv3d, SparseConvTranspose3d, SubMConv3d

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
spconv = pytest.importorskip("spconv.pytorch", reason="spconv is not installed")

pytestmark = pytest.mark.torch

SHAPE = (13, 6, 9)
C_IN, C_OUT = 3, 5
PEERS = Path(__file__).resolve().parents[2] / "benchmarks" / "peers"


@pytest.fixture(autouse=True)
def _one_thread():
    """Use one thread: with two, spconv 2.3.8 gets some rows wrong on a CPU."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def scene(rng):
    """Rows of a grid that is no cube, in random order, in two scenes, with features."""
    rows = rng.permutation(np.argwhere(rng.random((2, *SHAPE)) < 0.3)).astype(np.int32)
    return rows, rng.normal(size=(len(rows), C_IN)).astype(np.float32)


def peer_tensor(rows, features, shape=SHAPE):
    return spconv.SparseConvTensor(torch.from_numpy(features), torch.from_numpy(rows), shape, 2)


def state_of(module):
    return {name: value.numpy() for name, value in module.state_dict().items()}


def assert_same(voxels, tensor):
    """Same sites, same features, whatever the order of spconv's rows."""
    rows = tensor.indices.numpy()
    order = np.lexsort(rows.T[::-1])
    np.testing.assert_array_equal(voxels.valid_coords(), rows[order])
    np.testing.assert_allclose(
        voxels.valid_features(), tensor.features.numpy()[order], rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("size", [(1, 1, 1), (3, 3, 3), (5, 5, 5), (1, 3, 5)])
@torch.no_grad()
def test_submanifold(scene, size):
    peer = spconv.SubMConv3d(C_IN, C_OUT, size, bias=True)
    layer = SubMConv3d(C_IN, C_OUT, size)
    from_spconv(peer.state_dict(), layer)
    assert_same(layer(vx.Voxels.from_coords(*scene, 2)), peer(peer_tensor(*scene)))
    for name, value in to_spconv(layer).items():
        np.testing.assert_array_equal(value, state_of(peer)[name])


@torch.no_grad()
def test_dilated(scene):
    peer = spconv.SubMConv3d(C_IN, C_OUT, 3, dilation=2)
    layer = SubMConv3d(C_IN, C_OUT, 3, dilation=2)
    from_spconv(peer.state_dict(), layer)
    assert_same(layer(vx.Voxels.from_coords(*scene, 2)), peer(peer_tensor(*scene)))


@pytest.mark.parametrize(
    ("size", "padding", "kernel_shape"),
    [(2, 0, "box"), (3, 1, "box"), (3, 0, spconv_offsets(3, 0)),
     ((3, 2, 2), (0, 1, 0), spconv_offsets((3, 2, 2), (0, 1, 0)))],
)  # fmt: skip
@torch.no_grad()
def test_strided_and_its_inverse(scene, size, padding, kernel_shape):
    """Check a grid of odd shape, whose last plane spconv leaves out."""
    peer = spconv.SparseConv3d(C_IN, C_OUT, size, 2, padding=padding, indice_key="down")
    inverse = spconv.SparseInverseConv3d(C_OUT, C_IN, size, indice_key="down")
    options = {"kernel_shape": kernel_shape}
    layer = SparseConv3d(C_IN, C_OUT, size, 2, generative=True, spatial_shape=SHAPE, **options)
    back = SparseConvTranspose3d(C_OUT, C_IN, size, 2, **options)
    from_spconv(peer.state_dict(), layer)
    from_spconv(inverse.state_dict(), back)
    voxels = vx.Voxels.from_coords(*scene, 2)
    out, tensor = layer(voxels), peer(peer_tensor(*scene))
    assert_same(out, tensor)
    assert_same(back(out, voxels), inverse(tensor))


@torch.no_grad()
def test_halving_needs_no_generative_map_where_the_grid_is_even(scene):
    peer, layer = spconv.SparseConv3d(C_IN, C_OUT, 2, 2), SparseConv3d(C_IN, C_OUT, 2, 2)
    from_spconv(peer.state_dict(), layer)
    tensor = peer(peer_tensor(*scene, shape=[n + n % 2 for n in SHAPE]))
    assert_same(layer(vx.Voxels.from_coords(*scene, 2)), tensor)


@pytest.mark.parametrize(("size", "padding"), [(2, 0), (3, 1)])
@torch.no_grad()
def test_generative_transposed(scene, size, padding):
    peer = spconv.SparseConvTranspose3d(C_IN, C_OUT, size, 2, padding=padding)
    layer = SparseConvTranspose3d(C_IN, C_OUT, size, 2, generative=True, spatial_shape=SHAPE,
                                  capacity=8192)  # fmt: skip
    from_spconv(peer.state_dict(), layer)
    voxels = vx.Voxels.from_coords(*scene, 2, stride=2)
    assert_same(layer(voxels), peer(peer_tensor(*scene)))


@torch.no_grad()
def test_a_convolution_of_size_1_as_a_linear_layer(scene):
    peer, layer = spconv.SubMConv3d(C_IN, C_OUT, 1), Linear(C_IN, C_OUT)
    from_spconv(peer.state_dict(), layer)
    assert_same(layer(vx.Voxels.from_coords(*scene, 2)), peer(peer_tensor(*scene)))
    back = to_spconv(layer, like=peer.state_dict())
    peer.load_state_dict({name: torch.from_numpy(value) for name, value in back.items()})


@pytest.mark.lax_promotion
@pytest.mark.parametrize("size", [slow_unless(False, 0.25), slow_unless(False, 1.0)])
def test_minkunet18(rng, monkeypatch, size):
    """A street and a cloud of negative coordinates, statistics at random around the true ones."""
    monkeypatch.syspath_prepend(str(PEERS))
    import spconv_minkunet

    cloud = random_cube(500, batch_size=1) + np.array([1, 0, 0, 0])
    rows = np.concatenate([lidar_like(2500), cloud]).astype(np.int32)
    features = rng.normal(size=(len(rows), 4)).astype(np.float32)
    voxels, row = vx.Voxels.from_coords(rows, features, 2, return_inverse=True)
    model = MinkUNet18(4, 5, width=size, rngs=nnx.Rngs(3))
    graph, state = nnx.split(model)

    def settled(state, voxels):
        """The running statistics after training steps without updates."""
        model = nnx.merge(graph, state)
        model(voxels)
        return nnx.state(model)

    step = jax.jit(settled)
    for _ in range(40):
        state = step(state, voxels)
    nnx.update(model, state)
    weights = to_spconv(model)
    for name, value in weights.items():
        if name.endswith(("norm.weight", "running_var", "shortcut.layers.1.weight")):
            weights[name] = (value * rng.uniform(0.8, 1.2, value.shape)).astype(np.float32)
        if name.endswith(("bias", "running_mean")):
            noise = rng.normal(scale=0.1, size=value.shape)
            weights[name] = (value + noise).astype(np.float32)
    from_spconv(weights, model)
    model.eval()

    peer = spconv_minkunet.build(model, 4, 5)
    assert sum(p.numel() for p in peer.parameters()) == sum(
        x.size for x in jax.tree.leaves(nnx.state(model, nnx.Param))
    )
    ours = np.asarray(jax.jit(lambda v: model(v).features)(voxels))[np.asarray(row)]
    theirs = spconv_minkunet.run(peer, rows, features).numpy()
    assert 0.1 < np.abs(ours).max() < 100
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)

    peer.train()
    spconv_minkunet.run(peer, rows, features).square().mean().backward()
    assert all(torch.isfinite(p.grad).all() for p in peer.parameters())
