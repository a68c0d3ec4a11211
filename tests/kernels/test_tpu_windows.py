"""The TPU's kernels in interpret mode, where tiles, windows, blocks and stripes are many.

Small maps are in ``test_every_form.py`` and ``test_dense.py``, under the form ``windows_128``.
"""

import dataclasses
import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.workloads import random_cube

import problems
import voxax as vx
from oracle import relative_error
from samples import make_voxels, slow_unless
from voxax import _compat
from voxax.hardware import HardwareInfo
from voxax.kernels import names
from voxax.kernels.explicit_gemm import xla
from voxax.kernels.implicit_gemm import tpu
from voxax.kernels.implicit_gemm.windows import VIEWS
from voxax.tuning.space import space_of

CHIP = HardwareInfo(platform="tpu", device_kind="some", vmem_bytes=2**27, smem_bytes=2**20, cores=1)
TOLERANCE = {"float32": 1e-6, "bfloat16": 1e-2}
GRADIENTS = "dgrad", "wgrad"
problem_of = functools.partial(problems.of_map, platform="tpu")


def slabs(edge=12):
    """Full sheets, far apart: a tile of a strided map has long runs of rows between its lines."""
    axis = np.arange(edge)
    grid = np.stack(np.meshgrid(5 * axis[:4] - 9, axis - 5, axis, indexing="ij"), -1)
    return np.concatenate([np.zeros((4 * edge**2, 1), int), grid.reshape(-1, 3)], 1)


def with_an_empty_scene():
    """Scenes 0 and 2 of three."""
    rows = random_cube(200)
    rows[:, 0] = 2 * (rows[:, 0] > 0)
    return np.unique(rows, axis=0)


CLOUDS = {"slabs": slabs, "scenes": with_an_empty_scene}


def parameters_of(window, in_block, out_block, stripes, tiles=1):
    resident = int(stripes == 1)
    blocks = tpu.Blocks(window, in_block, out_block, stripes, resident, tiles)
    return tuple(sorted((*tpu.parameters(blocks), ("interpret", 1))))


def both(kmap, product, c_in, c_out, dtype, parameters, precision="highest"):
    """The kernel's result and im2col's, in float32."""
    problem = problem_of(product, kmap, (c_in, c_out), dtype, precision=precision)
    a, b = problems.operands_of(problem, kmap)
    results = []
    for kernel, chosen in ((tpu.WINDOWED, parameters), (xla.EXPLICIT_GEMM, xla.IM2COL)):
        views = problems.views_of(kmap, kernel, problem, chosen)
        run = jax.jit(lambda a, b, v, k=kernel, c=chosen: k.apply(problem, c, a, b, v))
        results.append(run(a, b, views))
    assert results[0].dtype == results[1].dtype == dtype
    return [np.asarray(result, np.float32) for result in results]


def gradients(kmap, c_in, c_out, dtype, parameters, precision="highest"):
    """dx and dw of the kernel that computes them at once, each with im2col's, in float32."""
    problem, wgrad = (
        problem_of(product, kmap, (c_in, c_out), dtype, precision=precision)
        for product in GRADIENTS
    )
    (dy, w), (x, _) = (problems.operands_of(p, kmap) for p in (problem, wgrad))
    views = problems.views_of(kmap, tpu.WINDOWED, problem, parameters)
    run = jax.jit(lambda *operands: tpu.WINDOWED.fused.apply(problem, parameters, *operands))
    found = run(dy, x, w, views)
    wanted = []
    for product, operands_of in zip(GRADIENTS, ((dy, w), (x, dy)), strict=True):
        alone = dataclasses.replace(problem, product=product)
        views = problems.views_of(kmap, xla.EXPLICIT_GEMM, alone, xla.IM2COL)
        wanted.append(xla.EXPLICIT_GEMM.apply(alone, xla.IM2COL, *operands_of, views))
    assert [v.dtype for v in found] == [v.dtype for v in wanted] == [dtype, dtype]
    assert [v.shape for v in found] == [v.shape for v in wanted]
    return [[np.asarray(v, np.float32) for v in pair] for pair in zip(found, wanted, strict=True)]


@pytest.mark.parametrize("product", ["forward", "dgrad", "wgrad", "gradients"])
@pytest.mark.parametrize(
    ("cloud", "options", "dtype", "blocks", "channels"),
    [
        slow_unless(fast, cloud, options, dtype, blocks, channels)
        for fast, cloud, options, dtype, blocks, channels in (
            # One window of each column does, as on most scans. Three blocks of channels.
            (True, "scenes", {"kernel_size": (1, 3, 3)}, "bfloat16", (256, 16, 16, 1), (35, 5)),
            (False, "scenes", {"kernel_size": 3}, "bfloat16", (256, 16, 16, 1, 2), (3, 5)),
            # Two stripes, windows too short for any tile: each is visited several times.
            (True, "slabs", {"kernel_size": 2, "stride": 2}, "float32", (128, 16, 16, 2), (4, 2)),
            # The same without copies, and two tiles in a step, the last one alone.
            (
                True,
                "slabs",
                {"kernel_size": 2, "stride": 2},
                "bfloat16",
                (128, 16, 16, 1, 2),
                (4, 2),
            ),
            (False, "slabs", {"kernel_size": 3}, "float32", (128, 64, 128, 2, 2), (64, 65)),
            (False, "scenes", {"kernel_size": 3}, "float32", (256, 48, 16, 1, 4), (33, 1)),
            # Blocks of channels on both sides, the last ones partly padding.
            (False, "scenes", {"kernel_size": 3}, "float32", (128, 128, 128, 1), (130, 260)),
            (False, "slabs", {"kernel_size": 5, "stride": 3}, "bfloat16", (128, 16, 16, 3), (1, 1)),
            (
                False,
                "slabs",
                {"kernel_size": 3, "dilation": 20},
                "float32",
                (128, 16, 16, 1),
                (2, 2),
            ),
        )
    ],
)
def test_products_are_those_of_explicit_gemm(cloud, options, dtype, blocks, channels, product):
    rows = CLOUDS[cloud]()
    kmap = vx.kernel_map(make_voxels(rows, capacity=640), **options)
    if product == "gradients":
        window, _, out_block, *rest = blocks  # all channels of dy at once
        of_dy = -(-channels[1] // 16) * 16
        blocks = window, of_dy, min(out_block, 128), *rest
        pairs = gradients(kmap, *channels, dtype, parameters_of(*blocks))
    else:
        pairs = [both(kmap, product, *channels, dtype, parameters_of(*blocks))]
    # Both round sums of this many terms, in other orders: the difference grows with the root.
    terms = kmap.num_offsets * max(channels)
    for actual, expected in pairs:
        assert np.isfinite(actual).all()
        assert relative_error(actual, expected) < TOLERANCE[dtype] * max(1, (terms / 1000) ** 0.5)


def test_the_short_windows_are_exceeded():
    """Check that runs in the case above are longer than the windows."""
    kmap = vx.kernel_map(make_voxels(slabs(), capacity=640), 2, 2)
    assert np.asarray(kmap.view("windows", VIEWS["windows"]))[1].max() > 2 * 128


def shuffled_map(rng):
    """Return a map whose tiles need nearly every window, with too few visits for all."""
    axis = np.arange(16)
    grid = np.stack(np.meshgrid(axis[:1], axis, axis, axis, indexing="ij"), -1).reshape(-1, 4)
    kmap = vx.kernel_map(make_voxels(grid.astype(np.int32)), 1)
    rows = kmap.in_capacity
    assert rows == kmap.out_capacity
    table = jnp.asarray(rng.permutation(rows)[:, None], jnp.int32)
    return kmap, dataclasses.replace(kmap, views={"neighbors": table})


@pytest.mark.parametrize("product", ["forward", "dgrad"])
def test_no_value_of_another_row_reaches_a_result(product):
    """Not even NaN in a row of the same window."""
    rows = np.stack([np.zeros(60, int), 3 * np.arange(60)], 1)
    kmap = vx.kernel_map(make_voxels(rows, capacity=64), 3)
    rows = kmap.in_capacity
    x = jnp.ones((rows, 2), "bfloat16").at[30].set(jnp.nan)
    problem = problem_of(product, kmap, (2, 2), "bfloat16")
    views = problems.views_of(kmap, tpu.WINDOWED, problem, ())
    found = tpu.apply(
        problem, parameters_of(256, 16, 16, 1), x, jnp.ones((3, 2, 2), x.dtype), views
    )
    np.testing.assert_array_equal(np.isnan(found).any(1), np.arange(rows) == 30)


@pytest.mark.parametrize("product", ["forward", "wgrad"])
def test_maps_in_no_order_are_right_or_nan(product, rng):
    kmap, shuffled = shuffled_map(rng)
    problem = problem_of(product, kmap, (4, 4), "float32")
    problem = problems.changed(problem, symmetric=False, spec=None)
    a, b = map(jnp.nan_to_num, problems.operands_of(problem, kmap))
    views = problems.views_of(shuffled, tpu.WINDOWED, problem, ())
    chosen = parameters_of(128, 16, 16, 2)
    found = np.asarray(tpu.apply(problem, chosen, a, b, views))
    x = np.asarray(a)[np.asarray(shuffled.view("neighbors"))[:, 0]]
    wanted = x @ np.asarray(b)[0] if product == "forward" else (x.T @ np.asarray(b))[None]
    lost = np.isnan(found)
    assert lost.any()
    np.testing.assert_allclose(found[~lost], wanted[~lost], rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_of_integers_in_no_order_some_are_right_the_others_the_least(rng):
    """In four blocks of channels, whose sum is not twice the least, which would be zero."""
    kmap, shuffled = shuffled_map(rng)
    problem = problem_of("forward", kmap, (200, 4), "int8")
    problem = problems.changed(problem, symmetric=False, spec=None)
    x = jnp.asarray(rng.integers(-128, 128, (kmap.in_capacity, 200)), "int8")
    w = jnp.asarray(rng.integers(-128, 128, (1, 200, 4)), "int8")
    views = problems.views_of(shuffled, tpu.WINDOWED, problem, ())
    found = np.asarray(tpu.apply(problem, parameters_of(128, 64, 16, 2), x, w, views))
    rows = np.asarray(x, np.int32)[np.asarray(shuffled.view("neighbors"))[:, 0]]
    wanted = rows @ np.asarray(w, np.int32)[0]
    lost = (found == np.iinfo(np.int32).min).all(axis=1)
    assert 0 < lost.sum() < len(lost)
    np.testing.assert_array_equal(found[~lost], wanted[~lost])


def test_selection_rounds_nothing():
    """float32 through a product with one: all 24 bits, for large and small numbers."""
    kmap = vx.kernel_map(make_voxels(random_cube(100), capacity=128), 1)
    problem = problem_of("forward", kmap, (4, 4), "float32")
    x = np.random.default_rng(0).normal(size=(128, 4)) * 10.0 ** np.arange(-20, 20, 10)[None]
    x = jnp.where(kmap.in_geometry.valid[:, None], jnp.asarray(x, "float32"), jnp.float32(0))
    views = problems.views_of(kmap, tpu.WINDOWED, problem, ())
    w = jnp.eye(4, dtype="float32")[None]
    y = tpu.apply(problem, parameters_of(256, 16, 16, 1), x, w, views)
    np.testing.assert_array_equal(y, x)


@pytest.mark.parametrize("product", ["forward", "wgrad"])
@pytest.mark.parametrize("x64", [False, slow_unless(False, True)])
def test_integers_of_8_bits_are_summed_exactly(product, x64):
    """Sums above 2^24, where float32 has no odd numbers: 27 taps of 64 channels, all at the end."""
    cube = np.stack(np.meshgrid(*(np.arange(n) for n in (1, 6, 6, 6)), indexing="ij"), -1)
    kmap = vx.kernel_map(make_voxels(cube.reshape(-1, 4), capacity=256), 3)
    problem = problem_of(product, kmap, (64, 3), "int8")
    x = jnp.full((kmap.in_capacity, 64), -127, "int8")
    w = jnp.full((27, 64, 3), -127, "int8").at[:, 0, 0].set(1)
    other = w if product == "forward" else jnp.full((kmap.out_capacity, 3), 127, "int8")
    views = problems.views_of(kmap, tpu.WINDOWED, problem, ())
    with jax.enable_x64(x64):
        found = tpu.apply(problem, parameters_of(256, 64, 64, 1), x, other, views)
    table = np.asarray(kmap.view("neighbors"))
    taps = (table >= 0).astype(np.int64)
    assert found.dtype == jnp.int32
    if product == "forward":
        expected = np.einsum("mk,kco->mo", taps, -127 * np.asarray(w, np.int64))
        assert expected.max() > 2**24
    else:
        expected = np.broadcast_to((taps.sum(0) * -(127**2))[:, None, None], found.shape)
    np.testing.assert_array_equal(found, expected)


def test_stripes_have_as_many_visits():
    """Check that stripes are cut by visits: half of the tiles may have most of them."""
    windows = np.zeros((2, 40, 1), np.int32)
    windows[1] = np.where(np.arange(40) < 20, 128, 128 * 9)[:, None]
    blocks = tpu.Blocks(128, 128, 128, 4, tiles=1)
    spec = vx.KernelSpec.make(3, 1, 1)
    problem = SimpleNamespace(layer=SimpleNamespace(spec=spec))
    found = tpu.visits_of(problem, blocks, ((0,),), jnp.asarray(windows), 180 * 128)
    bounds = found.scalars.bounds
    visits = np.diff(bounds)
    assert bounds[0] == 0
    assert visits.sum() == 20 * 10
    # Half of a tile's nine visits too many or too few on either side.
    assert np.abs(visits - 50).max() <= 2 * 4
    assert np.asarray(found.fits & found.visited).all()
    tiles = np.asarray(found.scalars.groups)
    inner = np.asarray(bounds)[1:-1]
    assert (tiles[inner - 1] != tiles[inner]).all()


def test_lower_precision_is_one_pass():
    kmap = vx.kernel_map(make_voxels(random_cube(100), capacity=128), 1)
    one_pass = parameters_of(256, 16, 16, 1)
    actual, expected = both(kmap, "forward", 4, 4, "float32", one_pass, precision="default")
    assert 1e-4 < relative_error(actual, expected) < 1e-2


def is_windowed(parameters):
    return ("body", "windows") in parameters


def test_on_tpus_alone_and_first_there():
    kmap = vx.kernel_map(make_voxels(random_cube(100), capacity=128), 3)
    problem = problem_of("forward", kmap, (64, 64), "bfloat16")
    found = problems.space_of(problem, CHIP)
    assert is_windowed(found[0])
    assert not is_windowed(found[-1])
    sizes = [(dict(p)["window_rows"], dict(p)["tiles"]) for p in found if is_windowed(p)]
    assert sizes == [(256, 4), (512, 4), (256, 8)]
    assert all("interpret" not in dict(p) for p in found)
    assert space_of(problem, names(), CHIP).candidates[0].kernel is tpu.WINDOWED
    nothing_known = HardwareInfo(platform="tpu", device_kind="unknown")
    first = space_of(problem, names(), nothing_known).candidates[0]
    assert first.kernel.name == "explicit_gemm"
    cpu = problems.changed(problem, platform="cpu")
    there = HardwareInfo(platform="cpu", device_kind="cpu")
    assert not any(is_windowed(p) for p in problems.space_of(cpu, there))
    assert "on TPUs, not on cpu" in tpu.supports(cpu, there)


def test_refusals_say_why():
    kmap = vx.kernel_map(make_voxels(random_cube(100), capacity=128), 3)
    problem = problem_of("forward", kmap, (64, 64), "bfloat16")

    def reason(hardware=CHIP, **changes):
        return tpu.supports(problems.changed(problem, **changes), hardware)

    assert reason() is None
    assert "grouped" in reason(kind="grouped")
    assert reason(dtype="int8") is None
    for dtype, why in {
        "float16": "exponents", "float64": "adds in float32", "int16": "int8 alone",
        "uint8": "int8 alone", "int32": "int8 alone",
    }.items():  # fmt: skip
        assert f"got {dtype}" in reason(dtype=dtype)
        assert why in reason(dtype=dtype)
    assert "taps at most, got 999" in reason(num_offsets=999)
    assert "bytes of vector memory" in reason(dataclasses.replace(CHIP, vmem_bytes=2**19))
    assert "bytes of scalar memory" in reason(in_capacity=2**24, out_capacity=2**24)
    assert "the chip has 0" in reason(dataclasses.replace(CHIP, vmem_bytes=None))


def test_channels_are_split_where_memory_is_small():
    kmap = vx.kernel_map(make_voxels(random_cube(100), capacity=128), 3)
    problem = problem_of("dgrad", kmap, (512, 300), "float32")
    small = dataclasses.replace(CHIP, vmem_bytes=2**24)
    whole, split = ([dict(p) for p in tpu.space(problem, chip)] for chip in (CHIP, small))
    assert [(p["in_block"], p["out_block"]) for p in whole] == 3 * [(384, 512)]
    assert split
    for chosen in split:
        blocks = chosen["in_block"], chosen["out_block"]
        assert all(block % 64 == 0 for block in blocks)
        assert blocks < (384, 512)


def test_gradients_take_the_blocks_of_dgrad_where_they_fit():
    kmap = vx.kernel_map(make_voxels(random_cube(100), capacity=128), 3)
    problem = problem_of("dgrad", kmap, (300, 200), "bfloat16")
    heuristic = tpu.WINDOWED.fused.heuristic
    for chosen in tpu.space(problem, CHIP):
        assert heuristic(problem, CHIP, chosen) == chosen
    small = dataclasses.replace(CHIP, vmem_bytes=2**24)
    for chosen in tpu.space(problem, small):  # sums of 27 * 200 * 300 numbers do not fit
        assert heuristic(problem, small, chosen) is None


def test_where_xla_spreads_a_program_the_kernels_are_left_out():
    """A `jit` over two devices, and a `shard_map` over one of two axes of the mesh."""
    mesh = jax.sharding.AbstractMesh((2, 2), ("a", "b"))
    contexts = (
        (SimpleNamespace(num_devices=1), False),
        (SimpleNamespace(num_devices=2), True),
        (SimpleNamespace(mesh=mesh, manual_axes=frozenset("ab")), False),
        (SimpleNamespace(mesh=mesh, manual_axes=frozenset("a")), True),
    )
    for context, partitioned in contexts:
        assert _compat._is_partitioned(context) is partitioned
