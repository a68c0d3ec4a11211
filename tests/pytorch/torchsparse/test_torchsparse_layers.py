"""Layers against dense operators and dictionaries, in float64: rows, numbers, gradients."""

import itertools

import pytest

torch = pytest.importorskip("torch")

from sparse_scenes import SHAPE, dense, grid, read, rows_at, same, scene, taps  # noqa: E402
from torch.nn import functional  # noqa: E402

import voxax.torch.torchsparse as ts  # noqa: E402
import voxax.torch.torchsparse.nn as spnn  # noqa: E402
import voxax.torch.torchsparse.nn.functional as F  # noqa: E402
from voxax.torch.torchsparse.tensor import set_allow_negative_coordinates  # noqa: E402

pytestmark = pytest.mark.torch

HASHMAP = {"kmap_mode": "hashmap"}
MINKOWSKI = {**HASHMAP, "downsample_mode": "minkowski"}


@pytest.fixture
def negative():
    set_allow_negative_coordinates(True)
    yield
    set_allow_negative_coordinates(False)


def layer(*args, **kwargs):
    torch.manual_seed(0)
    return spnn.Conv3d(3, 4, *args, **kwargs).double()


def ordered(rows):
    return torch.unique(rows, dim=0)


@pytest.mark.parametrize("size", [(3, 3, 3), (5, 3, 1), (1, 3, 1)])
@pytest.mark.parametrize("config", [None, HASHMAP])
def test_stride_1_keeps_the_voxels(size, config):
    x, conv = scene(), layer(size, bias=True, config=config)
    out = conv(x)
    assert out.coords is x.coords
    assert out.spatial_range == x.spatial_range
    pads = tuple(n // 2 for n in size)
    wide = functional.conv3d(dense(x), grid(conv.kernel, size), conv.bias, padding=pads)
    same(out.feats, rows_at(wide, x.coords), x.feats, conv.kernel, conv.bias)


@pytest.mark.parametrize("size", [(2, 2, 2), (4, 2, 3)])
def test_even_kernels_of_stride_1_have_no_center(size):
    x = scene(spatial_range=None)
    for config, low in ((None, (0, 0, 0)), (HASHMAP, None)):
        conv = layer(size, config=config)
        expected = read(x.coords, x.feats, x.coords, conv.kernel, taps(size, low))
        same(conv(x).feats, expected, x.feats, conv.kernel)


def test_one_tap_is_a_matrix():
    x, conv = scene(), layer(1, bias=True)
    assert conv.kernel.shape == (3, 4)
    same(conv(x).feats, x.feats @ conv.kernel + conv.bias, x.feats, conv.kernel, conv.bias)
    assert layer(1, stride=2).kernel.shape == (1, 3, 4)


STRIDED = [
    ((2, 2, 2), 2, 0),
    ((3, 3, 3), 2, 1),
    ((3, 3, 3), 2, 0),
    ((3, 1, 1), (2, 1, 1), 0),
    ((1, 1, 1), 2, 0),
    ((3, 2, 3), (2, 2, 1), (1, 0, 1)),
    ((3, 3, 3), 3, 1),
]


@pytest.mark.parametrize(("size", "stride", "padding"), STRIDED)
@pytest.mark.parametrize("ranged", [True, False])
def test_strided_layers_reach_what_a_dense_one_does(size, stride, padding, ranged):
    x, conv = scene(spatial_range=(2, *SHAPE) if ranged else None), layer(size, stride, padding)
    out = conv(x)
    x.spatial_range = (2, *(n + 1 for n in x.coords.max(0).values[1:].tolist()))
    pads = conv.padding
    wide = functional.conv3d(dense(x), grid(conv.kernel, size), stride=stride, padding=pads)
    ones = torch.ones(1, 1, *size, dtype=torch.float64)
    here = (dense(x)[:, :1] != 0).double()
    reached = functional.conv3d(here, ones, stride=stride, padding=pads)[:, 0]
    assert torch.equal(out.coords.long(), torch.nonzero(reached))
    assert out.coords.dtype == torch.int32
    assert out.stride == conv.stride
    if ranged:
        assert out.spatial_range == (2, *wide.shape[2:])
        torch.testing.assert_close(dense(out), wide, rtol=1e-10, atol=1e-10)
    same(out.feats, rows_at(wide, out.coords), x.feats, conv.kernel)


@pytest.mark.parametrize(("size", "stride", "padding"), STRIDED)
def test_transposed_layers_go_back(size, stride, padding):
    x, down = scene(), layer(size, stride, padding)
    coarse = down(x)
    up = spnn.Conv3d(4, 2, size, stride, transposed=True, bias=True).double()
    out = up(coarse)
    assert torch.equal(out.coords, x.coords)
    assert (out.stride, out.spatial_range) == ((1, 1, 1), x.spatial_range)
    weight = grid(up.kernel, size).transpose(0, 1)
    steps = down.stride
    beyond = [
        n - ((n + 2 * p - k) // s * s - 2 * p + k)
        for n, k, s, p in zip(SHAPE, size, steps, down.padding, strict=True)
    ]
    wide = functional.conv_transpose3d(
        dense(coarse), weight, up.bias, stride=steps, padding=down.padding, output_padding=beyond
    )
    inputs = x.feats, down.kernel, up.kernel, up.bias
    same(out.feats, rows_at(wide, x.coords), *inputs)


def test_a_transposed_layer_of_stride_1_mirrors_the_kernel():
    x = scene()
    y = layer(3)(x)
    up = spnn.Conv3d(4, 2, 3, transposed=True).double()
    expected = read(x.coords, y.feats, x.coords, up.kernel.flip(0), taps((3, 3, 3)))
    same(up(y).feats, expected, x.feats, up.kernel)


@pytest.mark.parametrize("low", [0, -4])
@pytest.mark.parametrize(
    ("size", "stride", "config"),
    [((2, 2, 2), 2, HASHMAP), ((3, 3, 3), 2, MINKOWSKI), ((4, 3, 2), (2, 1, 2), MINKOWSKI)],
)
def test_cells_of_the_inputs(size, stride, config, low):
    x, conv = scene(low=low, spatial_range=None), layer(size, stride, config=config)
    out = conv(x)
    steps = torch.tensor([1, *conv.stride])
    assert torch.equal(out.coords, ordered(torch.div(x.coords, steps, rounding_mode="floor").int()))
    expected = read(x.coords, x.feats, out.coords, conv.kernel, taps(size), conv.stride)
    same(out.feats, expected, x.feats, conv.kernel)


def test_hashmap_mode_reads_around_the_outputs_that_a_padding_reaches():
    x = scene()
    conv, other = layer(3, 2, 1, config=HASHMAP), layer(3, 2, 1)
    out = conv(x)
    assert torch.equal(out.coords, other(scene()).coords)
    expected = read(x.coords, x.feats, out.coords, conv.kernel, taps((3, 3, 3)), (2, 2, 2))
    same(out.feats, expected, x.feats, conv.kernel)


def test_negative_coordinates(negative):
    x, conv = scene(low=-4, spatial_range=None), layer(3, 2, 1)
    out = conv(x)
    low = x.coords.min(0).values[1:].double()
    high = x.coords.max(0).values[1:]
    low = ((low - 2 + 2) / 2).trunc().int()
    assert torch.equal(out.coords[:, 1:].min(0).values, low)
    cells = itertools.product(
        range(2), *map(range, low.tolist(), ((high + 2 - 2) // 2 + 1).tolist())
    )
    cells = torch.tensor(list(cells), dtype=torch.int32)
    offsets = taps((3, 3, 3))
    there = read(
        x.coords, torch.ones(len(x.coords), 1), cells, torch.ones(27, 1, 1), offsets, [2] * 3
    )
    assert torch.equal(out.coords, cells[there[:, 0] > 0])
    same(
        out.feats,
        read(x.coords, x.feats, out.coords, conv.kernel, offsets, (2, 2, 2)),
        x.feats,
        conv.kernel,
    )
    same(layer(3)(x).feats, read(x.coords, x.feats, x.coords, layer(3).kernel, offsets), x.feats)


@pytest.mark.parametrize("size", [2, 3])
def test_generative_layers_look_up_from_the_outputs(size):
    x = scene(rows=20, spatial_range=(2, 30, 30, 30))
    conv = layer(size, 2, transposed=True, generative=True, config=HASHMAP)
    x.stride = (2, 2, 2)
    out = conv(x)
    offsets = taps((size,) * 3)
    spread = x.coords * torch.tensor([1, 2, 2, 2], dtype=torch.int32)
    moved = torch.cat([spread + torch.tensor([0, *tap], dtype=torch.int32) for tap in offsets])
    assert torch.equal(out.coords, ordered(moved.clamp(min=0)))
    expected = read(spread, x.feats, out.coords, conv.kernel, offsets)
    same(out.feats, expected, x.feats, conv.kernel)
    assert out.stride == (1, 1, 1)
    assert out.spatial_range == (2, *[(30 - size) // 2 + 1] * 3)
    assert out._caches.kmaps == {}


def test_outputs_beyond_the_range_move_to_its_border():
    coords = torch.tensor([[0, 1, 1, 1]], dtype=torch.int32)
    found = F.spupsample_generative(coords, 2, 2, 0, (1, 3, 3, 3))
    assert found.tolist() == [[0, 2, 2, 2]]


def test_maps_are_built_once():
    x = scene()
    first, second = layer(3), spnn.Conv3d(4, 4, 3).double()
    y = first(x)
    known = y._caches.kmaps[(1, 1, 1), (3, 3, 3), (1, 1, 1), (1, 1, 1)]
    second(y)
    assert list(y._caches.kmaps.values()) == [known]
    coarse = spnn.Conv3d(4, 4, 2, 2).double()(y)
    assert coarse._caches is x._caches
    assert coarse._caches.cmaps[(2, 2, 2)][0] is coarse.coords
    up = spnn.Conv3d(4, 4, 2, 2, transposed=True).double()(coarse)
    second(up)
    assert len(y._caches.kmaps) == 2


def test_other_voxels_get_other_maps():
    ts.tensor_cache.set_tensor_cache_mode(ts.tensor_cache.TensorCacheMode.GLOBAL_TENSOR_CACHE)
    try:
        conv = layer(3)
        one, other = scene(), scene(seed=5)
        assert one._caches is other._caches
        expected = [conv(x).feats for x in (one, other)]
        x = scene()
        x.coords, x.feats = other.coords, other.feats
        assert torch.equal(conv(x).feats, expected[1])
        one.coords[:] = other.coords
        one.feats = other.feats
        assert torch.equal(conv(one).feats, expected[1])
    finally:
        ts.tensor_cache.set_tensor_cache_mode(ts.tensor_cache.TensorCacheMode(0))
        ts.tensor_cache.clear_global_tensor_cache()


def test_half_precision_is_summed_in_float32():
    x, conv = scene(), layer(3, bias=True)
    expected = conv(x).feats.float()
    for dtype in (torch.float16, torch.bfloat16):
        y = ts.SparseTensor(x.feats.to(dtype), x.coords)
        out = conv.float()(y).feats
        assert out.dtype is dtype
        torch.testing.assert_close(out.float(), expected, rtol=0.05, atol=0.05)


def test_empty_tensors_and_scenes_pass():
    x = ts.SparseTensor(torch.zeros(0, 3).double(), torch.zeros(0, 4).int())
    coarse = layer(2, 2)(x)
    up = spnn.Conv3d(4, 3, 2, 2, transposed=True).double()(coarse)
    assert (coarse.feats.shape, up.feats.shape) == ((0, 4), (0, 3))
    assert layer(3)(x).feats.shape == (0, 4)


def test_norms_and_activations_see_the_features():
    x = scene(channels=4)
    pairs = [
        (spnn.BatchNorm(4), torch.nn.BatchNorm1d(4)),
        (spnn.InstanceNorm(4), torch.nn.InstanceNorm1d(len(x.feats))),
        (spnn.ReLU(), torch.nn.ReLU()),
        (spnn.LeakyReLU(0.3), torch.nn.LeakyReLU(0.3)),
        (spnn.SiLU(), torch.nn.SiLU()),
    ]
    for ours, theirs in pairs:
        if isinstance(ours, spnn.InstanceNorm):
            with pytest.warns(UserWarning, match="num_features"):
                out = ours.double()(x)
        else:
            out = ours.double()(x)
        assert out.coords is x.coords
        assert out._caches is x._caches
        same(out.feats, theirs.double()(x.feats), x.feats)
    functions = [(F.relu, functional.relu), (F.silu, functional.silu)]
    for ours, theirs in functions:
        same(ours(x, inplace=False).feats, theirs(x.feats), x.feats)
    same(F.leaky_relu(x, inplace=False).feats, functional.leaky_relu(x.feats, 0.1), x.feats)


def test_group_norm_and_global_pools_take_scenes_apart():
    x, norm = scene(channels=4), spnn.GroupNorm(2, 4).double()
    torch.nn.init.normal_(norm.weight)
    out = norm(x).feats
    means, peaks = spnn.GlobalAvgPool()(x), spnn.GlobalMaxPool()(x)
    for index in range(2):
        rows = x.coords[:, 0] == index
        alone = functional.group_norm(x.feats[rows].T[None], 2, norm.weight, norm.bias)[0].T
        same(out[rows], alone, x.feats, norm.weight)
        same(means[index], x.feats[rows].mean(0), x.feats)
        same(peaks[index], x.feats[rows].max(0).values, x.feats)


def test_crop_leaves_the_batch_index_alone():
    x = scene()
    out = spnn.SparseCrop((1, 0, 2), (4, 6, 5))(x)
    at = x.coords[:, 1:]
    inside = ((at >= torch.tensor([1, 0, 2])) & (at < torch.tensor([4, 6, 5]))).all(1)
    assert torch.equal(out.coords, x.coords[inside])
    assert torch.equal(out.feats, x.feats[inside])


def test_sums_and_channels_of_one_voxel_set():
    x, y = scene(), scene(seed=0)
    same((x + y).feats, x.feats + y.feats, x.feats, y.feats)
    assert (x + y)._caches is x._caches
    same(ts.cat([x, y]).feats, torch.cat([x.feats, y.feats], 1), x.feats, y.feats)
    z = scene(rows=30, seed=3)
    total = ts.generative_add(z, x)
    cells, places = torch.unique(torch.cat([x.coords, z.coords]), dim=0, return_inverse=True)
    assert torch.equal(total.coords, cells)
    feats = torch.cat([x.feats, z.feats])
    expected = torch.zeros(len(cells), 3).double().index_add(0, places, feats)
    same(total.feats, expected, x.feats, z.feats)


def test_dense_grids():
    x = scene()
    wide = torch.zeros(2, *SHAPE, 3).double()
    wide[x.coords.long().unbind(1)] = x.feats.detach()
    assert torch.equal(x.dense(), wide)
    x.dense().square().sum().backward()
    torch.testing.assert_close(x.feats.grad, 2 * x.feats.detach())
