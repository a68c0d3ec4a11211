"""Modules of voxax.torch against those of voxax.nn, with weights carried over by the converters."""

import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.workloads import random_cube
from flax import nnx

import voxax as vx
from voxax import models
from voxax.interop import from_torch, to_torch
from voxax.nn import functional
from voxax.nn import modules as jm

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
vxt = pytest.importorskip("voxax.torch")

pytestmark = pytest.mark.torch

CAPACITY = 384


def cloud(channels=3, seed=0, rows=None, batch_size=2, capacity=CAPACITY):
    rows = random_cube(300) if rows is None else rows
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(len(rows), channels, generator=generator)
    return vxt.Voxels.from_coords(rows, features, batch_size, capacity=capacity)


def carried(module, model):
    """``model`` with the weights of ``module``, and its dictionary back."""
    from_torch(module.state_dict(), model)
    back = to_torch(model)
    state = {k: v for k, v in module.state_dict().items() if "num_batches" not in k}
    assert set(back) == set(state)
    for name, value in state.items():
        np.testing.assert_array_equal(back[name], value.numpy())
    return model


def same(ours, theirs, tolerance=1e-6):
    scale = max(1.0, float(np.abs(np.asarray(theirs)).max(initial=0)))
    actual = ours.detach().numpy() if isinstance(ours, torch.Tensor) else np.asarray(ours)
    np.testing.assert_allclose(actual, theirs, rtol=tolerance, atol=tolerance * scale)


PAIRS = {
    "submanifold": (lambda: vxt.SubMConv3d(3, 5), lambda: jm.SubMConv3d(3, 5)),
    "dilated": (lambda: vxt.SubMConv3d(3, 5, dilation=2), lambda: jm.SubMConv3d(3, 5, dilation=2)),
    "strided": (lambda: vxt.SparseConv3d(3, 5, 3, 2), lambda: jm.SparseConv3d(3, 5, 3, 2)),
    "grouped": (
        lambda: vxt.SpatiallySparseConv(3, 6, groups=3),
        lambda: jm.SpatiallySparseConv(3, 6, groups=3),
    ),
    "depthwise": (
        lambda: vxt.SpatiallySparseDepthwiseConv(3),
        lambda: jm.SpatiallySparseDepthwiseConv(3),
    ),
    "generative": (
        lambda: vxt.SparseConv3d(3, 5, 3, 2, generative=True, capacity=1024),
        lambda: jm.SparseConv3d(3, 5, 3, 2, generative=True, capacity=1024),
    ),
    "cross": (
        lambda: vxt.SparseConv3d(3, 5, kernel_shape="cross"),
        lambda: jm.SparseConv3d(3, 5, kernel_shape="cross"),
    ),
    "norm": (lambda: vxt.BatchNorm(3), lambda: jm.BatchNorm(3)),
    "linear": (lambda: vxt.Linear(3, 5), lambda: jm.Linear(3, 5)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_layers_and_their_gradients_equal_jax(name):
    make, make_jax = PAIRS[name]
    module = make()
    with torch.no_grad():
        for parameter in module.parameters():  # biases too
            parameter.add_(torch.randn_like(parameter) / 4)
    model = carried(module, make_jax())
    voxels = cloud()
    voxels.features.requires_grad_()
    out = module(voxels)
    jax_voxels = voxels.to_jax()
    graph, params, rest = nnx.split(model, nnx.Param, ...)

    def forward(params, x):
        return nnx.merge(graph, params, rest, copy=True)(jax_voxels.replace_features(x))

    expected = forward(params, jax_voxels.features)
    np.testing.assert_array_equal(out.coords.numpy(), expected.coords)
    assert out.stride == expected.stride
    same(out.features, expected.features)
    assert not out.features[~out.valid].any()

    weights = np.random.default_rng(3).normal(size=out.features.shape).astype(np.float32)

    def loss(params, x):
        return jnp.sum(forward(params, x).features * weights)

    grads, dx = jax.grad(loss, argnums=(0, 1))(params, jax_voxels.features)
    (out.features * torch.from_numpy(weights)).sum().backward()
    same(voxels.features.grad, dx)
    nnx.update(model, grads)
    expected_grads = to_torch(model)
    for parameter, value in module.named_parameters():
        same(value.grad, expected_grads[parameter], 2e-6)


def test_running_averages_equal_jax():
    module, voxels = vxt.BatchNorm(3), cloud(seed=2)
    model = jm.BatchNorm(3)
    for _ in range(3):
        module(voxels)
        model(voxels.to_jax())
    back = to_torch(model)
    same(module.running_mean, back["running_mean"])
    same(module.running_var, back["running_var"])
    assert module.num_batches_tracked == 3
    before = module.running_var.clone()
    module(cloud(rows=np.zeros((0, 4), np.int32), batch_size=1))
    torch.testing.assert_close(module.running_var, before)


def test_down_and_up_share_one_map():
    down, up = vxt.SparseConv3d(3, 4, 2, 2), vxt.SparseConvTranspose3d(4, 5, 2, 2)
    voxels = cloud()
    coarse = down(voxels)
    out = up(coarse, voxels)
    assert out.geometry is voxels.geometry
    assert len(voxels.geometry.links) == 1
    assert not coarse.geometry.links
    jax_down, jax_up = jm.SparseConv3d(3, 4, 2, 2), jm.SparseConvTranspose3d(4, 5, 2, 2)
    carried(down, jax_down)
    carried(up, jax_up)
    jax_voxels = voxels.to_jax()
    same(out.features, jax_up(jax_down(jax_voxels), jax_voxels).features)
    # Without the forward map the same numbers, from a map of its own.
    alone = vxt.Voxels(vxt.VoxelGeometry(coarse.coords, coarse.stride, 2), coarse.features)
    same(up(alone, voxels).features, out.features.detach())


@pytest.mark.parametrize("kind", ["sum", "mean", "max", "min"])
def test_pooling_equals_jax(kind):
    voxels = cloud()
    voxels.features.requires_grad_()
    out = getattr(vxt, f"{kind}_pool")(voxels, 2)
    jax_voxels = voxels.to_jax()

    def pooled(x):
        return getattr(functional, f"{kind}_pool")(jax_voxels.replace_features(x), 2)

    same(out.features, pooled(jax_voxels.features).features)
    out.features.square().sum().backward()
    dx = jax.grad(lambda x: jnp.sum(pooled(x).features ** 2))(jax_voxels.features)
    same(voxels.features.grad, dx)


@pytest.mark.parametrize("reduction", ["mean", "sum", "max"])
def test_global_pooling_equals_jax(reduction):
    voxels = cloud()
    expected = functional.global_pool(voxels.to_jax(), reduction)
    same(vxt.global_pool(voxels, reduction), expected)
    same(vxt.GlobalPool(reduction)(voxels), expected)


def test_padding_is_inert():
    voxels, layer = (
        cloud(),
        vxt.Sequential(vxt.SubMConv3d(3, 4), vxt.BatchNorm(4), vxt.Linear(4, 2)),
    )
    poison = voxels.features.clone()
    poison[~voxels.valid] = torch.nan
    expected = layer(voxels).features
    out = layer(voxels.on(voxels.geometry, poison)).features
    torch.testing.assert_close(out, expected, rtol=0, atol=0)
    layer.zero_grad()
    out.square().sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in layer.parameters())


@pytest.mark.parametrize("rows", [np.zeros((0, 4), np.int32), np.array([[0, -3, 2, 5]], np.int32)])
def test_no_voxel_and_one(rows):
    voxels = cloud(rows=rows, batch_size=1, capacity=16)
    net = vxt.MinkUNet14(3, 2, width=0.125).eval()
    assert net(vxt.plan(net, voxels)).features.shape == (16, 2)


def test_voxelize_and_from_coords():
    positions = torch.randn(500, 3) * 2
    features = torch.randn(500, 4, requires_grad=True)
    voxels = vxt.voxelize(positions, features, 0.5)
    expected = vx.voxelize(positions.numpy(), features.detach().numpy(), 0.5)
    np.testing.assert_array_equal(voxels.coords.numpy(), expected.coords)
    same(voxels.features, expected.features)
    voxels.features.sum().backward()
    # Every voxel's mean has a gradient of one, shared by its points.
    assert float(features.grad.sum()) == pytest.approx(4 * int(voxels.count), rel=1e-5)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.norm = vxt.SubMConv3d(3, 8), vxt.BatchNorm(8)
        self.down, self.up = vxt.SparseConv3d(8, 8, 2, 2), vxt.SparseConvTranspose3d(8, 8, 2, 2)
        self.depth, self.pool = vxt.SpatiallySparseDepthwiseConv(16), vxt.MaxPool(2)
        self.head = vxt.Linear(16, 4)

    def forward(self, voxels):
        fine = self.norm(self.stem(voxels))
        fine = self.depth(vxt.cat([fine, self.up(self.down(fine), fine)]))
        return self.head(fine).features, self.pool(fine).features


def test_plan_builds_all_maps_and_changes_nothing():
    net, voxels = Net(), cloud()
    state = {k: v.clone() for k, v in net.state_dict().items()}
    planned = vxt.plan(net, voxels)
    assert not voxels.geometry.links
    assert all(torch.equal(v, state[k]) for k, v in net.state_dict().items())
    keys = [link.key for link in planned.geometry.links]
    coarse = next(link.out for link in planned.geometry.links if link.out is not None)
    assert coarse.capacity == vx.bucket_capacity(int(coarse.count)) < CAPACITY
    net.eval()
    out, pooled = net(planned)
    assert [link.key for link in planned.geometry.links] == keys
    expected, unplanned = net(voxels)
    same(out, expected.detach())
    same(pooled, unplanned.detach()[: len(pooled)])


@pytest.mark.parametrize("planned", [True, False])
def test_export(planned, tmp_path):
    net = Net().eval()
    voxels = vxt.plan(net, cloud()) if planned else cloud()
    other = cloud(seed=9)
    other = vxt.plan(net, other) if planned else other
    with torch.no_grad():
        expected = net(cloud(seed=9))[0]
        program = torch.export.export(net, (voxels,), strict=False)
        same(program.module()(other)[0], expected)
        torch.export.save(program, tmp_path / "net.pt2")
        same(torch.export.load(tmp_path / "net.pt2").module()(other)[0], expected)


def test_compile_in_one_graph():
    net = Net()
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    voxels = vxt.plan(net, cloud())
    state = {k: v.clone() for k, v in net.state_dict().items()}
    results = []
    for call in (net, compiled):
        net.load_state_dict(state)
        net.zero_grad()
        out = call(voxels)[0]
        out.square().mean().backward()
        results.append((out.detach(), net.stem.weight.grad.clone(), net.norm.running_var.clone()))
    for ours, theirs in zip(*results, strict=True):
        same(ours, theirs)
    net.eval()
    fresh = cloud()  # maps are built inside the program
    with torch.no_grad():
        same(compiled(fresh)[0], net(cloud())[0])
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # of inductor's own import
def test_compile_with_inductor():
    net = vxt.Sequential(vxt.SubMConv3d(3, 8), vxt.BatchNorm(8), vxt.ReLU(), vxt.SubMConv3d(8, 4))
    voxels = vxt.plan(net, cloud())
    compiled = torch.compile(net, fullgraph=True, backend="inductor")
    results = []
    for call in (net, compiled):
        net.zero_grad()
        out = call(voxels).features
        out.square().mean().backward()
        results.append((out.detach(), *[p.grad.clone() for p in net.parameters()]))
    for ours, theirs in zip(*results, strict=True):
        same(ours, theirs)
    torch._dynamo.reset()


def test_minkunet_has_the_names_and_numbers_of_the_jax_one():
    net = vxt.MinkUNet14(3, 4, width=0.125)
    model = carried(net, models.MinkUNet14(3, 4, width=0.125))
    model.eval()
    voxels = cloud()
    with torch.no_grad():
        out = net.eval()(voxels)
    # Fifty layers deep, float32: compared on the scale of the logits.
    same(out.features, model(voxels.to_jax()).features, 1e-5)
    from_jax = vxt.MinkUNet14(3, 4, width=0.125)
    weights = {k: torch.from_numpy(v) for k, v in to_torch(model).items()}
    missing, unexpected = from_jax.load_state_dict(weights, strict=False)
    assert not unexpected
    assert all(name.endswith("num_batches_tracked") for name in missing)
    with torch.no_grad():
        same(from_jax.eval()(voxels).features, out.features, 0)


def test_overflow_is_an_error_in_every_mode():
    layer = vxt.SparseConv3d(3, 4, 2, 2, capacity=8)
    with pytest.raises(vx.CapacityError, match="do not fit into capacity 8"):
        layer(cloud())


@pytest.mark.parametrize("capacity", [64.0, "64", 0, -1])
def test_capacities_that_are_none(capacity):
    with pytest.raises(vx.InputError, match=f"capacity=.*{capacity}"):
        vxt.SparseConv3d(3, 4, 2, 2, capacity=capacity)(cloud())
    assert vxt.SparseConv3d(3, 4, 2, 2, capacity=np.int64(128))(cloud()).capacity == 128


@pytest.mark.parametrize("features", [None, np.ones((2, 1), np.float32), [[1.0], [2.0]]])
def test_features_that_are_no_tensor(features):
    with pytest.raises(vx.InputError, match=r"features of type .*give a torch\.Tensor"):
        vxt.voxelize(np.zeros((2, 3)), features, 1.0)
    with pytest.raises(vx.InputError, match=r"features of type .*give a torch\.Tensor"):
        vxt.Voxels.from_coords(random_cube(2), features)


def test_wrong_input():
    with pytest.raises(vx.InputError, match="expects 4 channels, the voxels have 3"):
        vxt.SubMConv3d(4, 4)(cloud())
    with pytest.raises(vx.InputError, match=r"torch\.int64: expected float32"):
        vxt.Voxels.from_coords(random_cube(10), torch.zeros(10, 3, dtype=torch.long), 2)
    with pytest.raises(vx.InputError, match="needs out_voxels="):
        vxt.SparseConvTranspose3d(3, 4)(vxt.sum_pool(cloud()))
    with pytest.raises(vx.InputError, match="keeps the voxels, so it takes no stride 2"):
        vxt.SubMConv3d(3, 4, 3, 2)
    with pytest.raises(vx.AlgorithmError, match="fwd_algo"):
        vxt.SubMConv3d(3, 4, fwd_algo="explicit_gemn")
    with pytest.raises(vx.GeometryMismatchError, match="out_voxels="):
        cloud() + cloud(rows=random_cube(40))
    flat = vxt.Voxels.from_coords(np.zeros((1, 3), np.int32), torch.zeros(1, 3))
    with pytest.raises(vx.InputError, match="3-D kernel on 2-D voxels"):
        vxt.SubMConv3d(3, 4)(flat)


def test_without_torch():
    script = (
        "import sys\nsys.modules['torch'] = None\nimport voxax\n"
        "try:\n    import voxax.torch\n"
        "except voxax.MissingExtraError as error:\n    print(error)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert 'pip install "voxax[torch]"' in result.stdout
