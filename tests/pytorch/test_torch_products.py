"""The operators of voxax.torch: registration, and every gradient against JAX."""

import importlib

import jax
import numpy as np
import pytest
from benchmarks.workloads import random_cube

import voxax as vx
from voxax.kernels.registry import views
from voxax.nn.functional import depthwise_conv, spatially_sparse_conv

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
vxt = pytest.importorskip("voxax.torch")
functional = vxt.functional
operators = importlib.import_module("voxax.torch.operators")
text_of = importlib.import_module("voxax.torch.static_text")

pytestmark = pytest.mark.torch

CAPACITY = 384
SHAPES = {"dense": (27, 8, 6), "grouped": (27, 2, 4, 3), "depthwise": (27, 8)}


def cloud(channels=8, dtype=torch.float32, seed=0, rows=None):
    rows = random_cube(300) if rows is None else rows
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(len(rows), channels, generator=generator).to(dtype)
    return vxt.Voxels.from_coords(rows, features, 2, capacity=CAPACITY)


def operands(kind, dtype=torch.float32, grad=False):
    voxels = cloud(dtype=dtype)
    generator = torch.Generator().manual_seed(1)
    weight = (torch.randn(SHAPES[kind], generator=generator) / 5).to(dtype)
    layer = vxt.SubMConv3d(8, 6)
    kernel_map, _ = voxels.geometry.relate(layer.spec)
    name = str(dtype).removeprefix("torch.")
    options = text_of.request_text(kind, None)
    text = text_of.layer_text(layer.spec, True, (1, 1, 1), options, kind, SHAPES[kind], name)
    views = [kernel_map.view(view) for view in text_of.view_names(text)]
    x, w = voxels.features.requires_grad_(grad), weight.requires_grad_(grad)
    c_out = 8 if kind == "depthwise" else 6
    dy = torch.randn(CAPACITY, c_out, generator=generator).to(dtype).requires_grad_(grad)
    return x, w, dy, views, text


# PyTorch silences this warning of its own only where warnings are not errors.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize("kind", SHAPES)
def test_opcheck_of_products(kind):
    x, w, dy, views, text = operands(kind, grad=True)
    torch.library.opcheck(operators.forward, (x, w, views, text))
    torch.library.opcheck(operators.dgrad, (dy, w, views, text, CAPACITY))
    torch.library.opcheck(operators.wgrad, (x, dy, views, text))


def test_opcheck_of_maps():
    voxels = cloud()
    spec = vxt.SparseConv3d(8, 8, 2, 2).spec
    torch.library.opcheck(operators.output_coords, (voxels.coords, spec, CAPACITY))
    coarse = operators.output_coords(voxels.coords, spec, CAPACITY)
    torch.library.opcheck(operators.neighbors, (voxels.coords, coarse, spec, False))
    table = operators.neighbors(voxels.coords, coarse, spec, False)
    for name in ("transposed_neighbors", "pairs", "pair_starts", *views()):
        torch.library.opcheck(operators.map_view, (table, name, spec, False, CAPACITY))
    torch.library.opcheck(operators.window_extremes, (voxels.features, table, True))


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_gradients_equal_those_of_jax(kind, dtype):
    x, w, dy, views, text = operands(kind, dtype, grad=True)
    y = operators.forward(x, w, views, text)
    dx, dw = torch.autograd.grad(y, (x, w), dy)
    assert y.dtype == dx.dtype == dw.dtype == dtype
    with jax.enable_x64(dtype is torch.float64):
        jax_voxels = cloud(dtype=dtype).to_jax()

        def forward(x, w):
            conv = depthwise_conv if kind == "depthwise" else spatially_sparse_conv
            options = {"groups": 2} if kind == "grouped" else {}
            return conv(jax_voxels.replace_features(x), w, **options).features

        expected, back = jax.vjp(forward, vxt.to_jax(x), vxt.to_jax(w))
        expected_dx, expected_dw = back(vxt.to_jax(dy))
        for ours, theirs in ((y, expected), (dx, expected_dx), (dw, expected_dw)):
            actual, wanted = (np.asarray(v).astype(np.float64) for v in (vxt.to_jax(ours), theirs))
            np.testing.assert_allclose(actual, wanted, rtol=1e-6, atol=1e-6 * np.abs(wanted).max())


@pytest.mark.parametrize("kind", SHAPES)
def test_first_and_second_derivatives_by_differences(kind):
    torch.manual_seed(0)
    rows = random_cube(12)
    voxels = vxt.Voxels.from_coords(rows, torch.randn(len(rows), 4), 2, capacity=14)
    shape = {"dense": (8, 4, 2), "grouped": (8, 2, 2, 1), "depthwise": (8, 4)}[kind]
    kernel_map, _ = voxels.geometry.relate(vxt.SparseConv3d(4, 2, 2, 2).spec)
    x = voxels.features.double().requires_grad_()
    w = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    assert functional.weight_kind(w) == kind

    def run(x, w):
        return functional.convolve(x, w, kernel_map, (1, 1, 1), text_of.request_text(kind, None))

    assert torch.autograd.gradcheck(run, (x, w))
    assert torch.autograd.gradgradcheck(run, (x, w))


def test_memory_of_features_is_shared_both_ways():
    tensor = torch.randn(1000, 64)
    array = vxt.to_jax(tensor)
    assert array.unsafe_buffer_pointer() == tensor.data_ptr()
    out = jax.jit(lambda x: x + 1)(array)
    assert vxt.to_torch(out).data_ptr() == out.unsafe_buffer_pointer()
    voxels = cloud()
    back = vxt.Voxels.from_jax(voxels.to_jax())
    assert back.features.data_ptr() == voxels.features.data_ptr()
    # Maps are remembered for coordinates, so these are the voxels' own.
    assert back.coords.data_ptr() != voxels.coords.data_ptr()
    torch.testing.assert_close(back.coords, voxels.coords)


def test_rows_that_begin_off_alignment_and_strided_ones():
    base = torch.randn(CAPACITY * 8 + 1)
    off = base[1:].view(CAPACITY, 8)
    assert off.data_ptr() % 64 != 0
    np.testing.assert_array_equal(vxt.to_jax(off), off.numpy())
    _, w, _, views, text = operands("dense")
    expected = operators.forward(off.clone(), w, views, text)
    torch.testing.assert_close(operators.forward(off, w, views, text), expected, rtol=0, atol=0)
    columns = off.t().contiguous().t()
    torch.testing.assert_close(operators.forward(columns, w, views, text), expected, rtol=0, atol=0)


def test_float64_is_not_rounded_silently():
    with pytest.raises(vx.InputError, match=r"float64.*jax_enable_x64"):
        vxt.to_jax(torch.zeros(3, dtype=torch.float64))


def test_writing_into_operands_and_results():
    """The optimizer writes into weights as soon as the step is over; results can be written to."""
    x, w, _, views, text = operands("dense")
    first = operators.forward(x, w, views, text)
    kept = first.clone()
    w.mul_(0.0)
    torch.testing.assert_close(first, kept, rtol=0, atol=0)
    first.zero_()
    assert not operators.forward(x, w, views, text).any()


class Net(torch.nn.Module):
    """Every kind of map, and a way back over the first."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.norm = vxt.SubMConv3d(3, 4), vxt.BatchNorm(4)
        self.down = vxt.SparseConv3d(4, 4, 2, stride=2)
        self.deep = vxt.SpatiallySparseDepthwiseConv(4)
        self.up = vxt.SparseConvTranspose3d(4, 4, 2, stride=2)
        self.head = vxt.Linear(8, 2)

    def forward(self, v):
        fine = self.norm(self.stem(v))
        return self.head(vxt.cat([fine, self.up(self.deep(self.down(fine)), fine)]))


def rows_of(seed):
    rows = np.random.default_rng(seed).integers(0, (2, 5, 5, 5), (60, 4))
    return np.unique(rows, axis=0)


def small(seed=0):
    rows = rows_of(seed)
    generator = torch.Generator().manual_seed(1)
    return vxt.Voxels.from_coords(
        rows, torch.randn(len(rows), 3, generator=generator), 2, capacity=64
    )


def squares(net, voxels):
    return net(voxels).features.square().sum()


@pytest.mark.parametrize("planned", [False, True])
def test_maps_that_inference_built_serve_training(planned):
    net, want = Net().eval(), small()
    squares(net, want).backward()
    expected = {name: p.grad.clone() for name, p in net.named_parameters()}
    net.zero_grad()
    voxels = small()
    with torch.inference_mode():
        voxels = vxt.plan(net, voxels) if planned else voxels
        net(voxels)
    squares(net, voxels).backward()
    for name, p in net.named_parameters():
        torch.testing.assert_close(p.grad, expected[name])


@pytest.mark.parametrize("transform", ["grad", "vjp", "grad of grad"])
def test_gradients_of_torch_func_are_those_of_autograd(transform):
    net, voxels = Net().eval(), small()
    parameters = {name: p.detach() for name, p in net.named_parameters()}

    def loss(parameters):
        return torch.func.functional_call(net, parameters, (voxels,)).features.square().sum()

    def directional(parameters):
        first = torch.func.grad(loss)(parameters)
        return sum(g.square().sum() for g in first.values())

    leaves = {name: p.clone().requires_grad_() for name, p in parameters.items()}
    if transform == "grad of grad":
        got = torch.func.grad(directional)(parameters)
        first = torch.autograd.grad(loss(leaves), list(leaves.values()), create_graph=True)
        total = sum(g.square().sum() for g in first)
    else:
        got = torch.func.grad(loss)(parameters)
        if transform == "vjp":
            got = torch.func.vjp(loss, parameters)[1](torch.ones(()))[0]
        total = loss(leaves)
    want = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    for name, value in zip(leaves, want, strict=True):
        value = torch.zeros_like(leaves[name]) if value is None else value
        torch.testing.assert_close(got[name], value, rtol=1e-4, atol=1e-4)


INTEGERS = [torch.uint8, torch.int32, torch.int64]
TAKES_FLOATS = {
    "SubMConv3d": lambda v: vxt.SubMConv3d(3, 2)(v),
    "BatchNorm": lambda v: vxt.BatchNorm(3)(v),
    "BatchNorm eval": lambda v: vxt.BatchNorm(3).eval()(v),
    "Linear": lambda v: vxt.Linear(3, 2)(v),
    "mean_pool": vxt.mean_pool,
    "sum_pool": vxt.sum_pool,
    "max_pool": vxt.max_pool,
    "global_pool": vxt.global_pool,
    "global_pool sum": lambda v: vxt.global_pool(v, "sum"),
    "global_pool max": lambda v: vxt.global_pool(v, "max"),
    "plus": lambda v: v + v,
    "from_coords": lambda v: vxt.Voxels.from_coords(rows_of(0), v.features[: len(rows_of(0))], 2),
}


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("name", TAKES_FLOATS)
def test_integer_features_are_refused(name, dtype):
    voxels = vxt.Voxels(small().geometry, torch.ones(64, 3, dtype=dtype))
    with pytest.raises(vx.InputError, match=f"features of {dtype}"):
        TAKES_FLOATS[name](voxels)
