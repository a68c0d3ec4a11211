"""The native kernels: every instruction set of this machine against sums in float64."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import problems
from problems import needs_native, random_table
from voxax import _native
from voxax.coords import find_neighbors
from voxax.kernels.depthwise import cpu as depthwise
from voxax.kernels.depthwise.cpu import gradients
from voxax.kernels.implicit_gemm import cpu
from voxax.kernels.rows import table_read

TOLERANCE = {"float32": 1e-6, "float64": 1e-14, "bfloat16": 4e-3}
# Many tiles of few rows, besides the usual ones.
SMALL = {
    wgrad: (("body", "native"), ("gemm_block_size" if wgrad else "fwd_block_size", 16))
    for wgrad in (False, True)
}
SIMD = ("portable", "avx2", "avx512")


@pytest.fixture(params=SIMD)
def simd(request):
    if not _native.use_simd(request.param):
        pytest.skip(f"this CPU or this build has no {request.param}")
    jax.clear_caches()
    yield request.param
    _native.use_simd(None)


def body_of(problem):
    return depthwise if problem.layer.kind == "depthwise" else cpu


def space_of(problem):
    return body_of(problem).space(problem, None)


def make_problem(product, table, inputs, c_in, c_out, groups=1, dtype="float32", kind=None):
    return problems.make_problem(
        product,
        kind or ("dense" if groups == 1 else "grouped"),
        inputs,
        len(table),
        table.shape[1],
        c_in,
        c_out,
        groups,
        dtype,
        "highest",
        False,
        "cpu",
    )


def inverted(table, inputs):
    result = np.full((inputs, table.shape[1]), -1, np.int32)
    out, tap = np.nonzero((table >= 0) & (table < inputs))
    result[table[out, tap], tap] = out
    return result


def draw(rng, problem):
    """``x, dy, w`` in the problem's dtype, and the same in float64."""
    shapes = (
        (problem.layer.in_capacity, problem.in_channels),
        (problem.layer.out_capacity, problem.out_channels),
        problem.weight_shape,
    )
    given = [jnp.asarray(rng.normal(size=shape), problem.dtype) for shape in shapes]
    return given, [np.asarray(value, np.float64) for value in given]


def expected(problem, table, x, dy, w):
    depth = problem.layer.kind == "depthwise"
    g = max(problem.in_channels, 1) if depth else problem.layer.groups
    w = w.reshape(problem.layer.num_offsets, g, problem.in_channels // g, problem.out_channels // g)
    xs = x.reshape(len(x), g, problem.in_channels // g)
    gs = dy.reshape(len(dy), g, problem.out_channels // g)
    y, dx, dw = np.zeros_like(gs), np.zeros_like(xs), np.zeros_like(w)
    for tap in range(problem.layer.num_offsets):
        out = np.flatnonzero(table[:, tap] >= 0)
        rows = table[out, tap]
        y[out] += np.einsum("rgi,gio->rgo", xs[rows], w[tap])
        np.add.at(dx, rows, np.einsum("rgo,gio->rgi", gs[out], w[tap]))
        dw[tap] = np.einsum("rgi,rgo->gio", xs[rows], gs[out])
    return {
        "forward": y.reshape(dy.shape),
        "dgrad": dx.reshape(x.shape),
        "wgrad": dw.reshape(problem.weight_shape),
    }[problem.product]


def run(problem, parameters, table, x, dy, w):
    views = {
        "neighbors": jnp.asarray(table),
        "transposed_neighbors": jnp.asarray(inverted(table, problem.layer.in_capacity)),
    }
    a, b = {"forward": (x, w), "dgrad": (dy, w), "wgrad": (x, dy)}[problem.product]
    apply = jax.jit(lambda a, b, views: body_of(problem).apply(problem, parameters, a, b, views))
    return apply(a, b, {name: views[name] for name in table_read((), problem.product, False)})


def check(rng, problem, table):
    given, wide = draw(rng, problem)
    for chosen in (*space_of(problem), SMALL[problem.product == "wgrad"]):
        found = np.asarray(run(problem, chosen, table, *given), np.float64)
        wanted = expected(problem, table, *wide)
        scale = np.sqrt(np.mean(wanted**2)) + 1e-30 if wanted.size else 1.0
        assert np.abs(found - wanted).max(initial=0) < 20 * TOLERANCE[problem.dtype] * scale


@needs_native
@pytest.mark.parametrize("product", ["forward", "dgrad", "wgrad"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_every_number_of_channels(simd, product, dtype, rng):
    with jax.enable_x64(dtype == "float64"):
        for c_in, c_out in ((1, 1), (3, 5), (16, 16), (17, 33), (64, 48), (130, 70), (40, 144)):
            table = random_table(rng, 90, 70, 4, 0.4)
            check(rng, make_problem(product, table, 90, c_in, c_out, dtype=dtype), table)


@needs_native
@pytest.mark.parametrize("product", ["forward", "dgrad", "wgrad"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_depthwise(simd, product, dtype, rng):
    with jax.enable_x64(dtype == "float64"):
        for channels, rows in ((1, 40), (3, 900), (32, 70), (65, 70), (200, 300), (300, 70)):
            table = random_table(rng, 90, rows, 5, 0.4)
            problem = make_problem(
                product, table, 90, channels, channels, dtype=dtype, kind="depthwise"
            )
            check(rng, problem, table)


def run_gradients(problem, table, x, dy, w):
    views = {"transposed_neighbors": jnp.asarray(inverted(table, problem.layer.in_capacity))}
    return jax.jit(lambda *operands: gradients(problem, (), *operands, views))(dy, x, w)


def check_gradients(rng, problem, table):
    """Against sums in float64; what dgrad alone computes to the last bit."""
    given, wide = draw(rng, problem)
    dx, dw = run_gradients(problem, table, *given)
    alone = run(problem, space_of(problem)[0], table, *given)
    np.testing.assert_array_equal(np.asarray(dx), np.asarray(alone))
    wanted = expected(problems.changed(problem, product="wgrad"), table, *wide)
    scale = np.sqrt(np.mean(wanted**2)) + 1e-30 if wanted.size else 1.0
    error = np.abs(np.asarray(dw, np.float64) - wanted).max(initial=0)
    assert error < 20 * TOLERANCE[problem.dtype] * scale


@needs_native
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_depthwise_gradients_at_once(simd, dtype, rng):
    """Any number of channels, of rows and of taps, and none of each."""
    with jax.enable_x64(dtype == "float64"):
        for channels, inputs, outputs, taps in (
            *((1, 90, 40, 5), (3, 900, 600, 27), (32, 70, 90, 5), (65, 70, 90, 2)),
            *((200, 300, 90, 5), (300, 70, 90, 33), (0, 9, 9, 3), (5, 0, 9, 3), (5, 9, 0, 3)),
        ):
            table = random_table(rng, inputs, outputs, taps, 0.4)
            options = {"dtype": dtype, "kind": "depthwise"}
            problem = make_problem("dgrad", table, inputs, channels, channels, **options)
            check_gradients(rng, problem, table)


@needs_native
def test_depthwise_gradients_that_no_cache_holds(simd, rng):
    table = random_table(rng, 48_000, 48_000, 2, 0.5)
    check_gradients(rng, make_problem("dgrad", table, 48_000, 256, 256, kind="depthwise"), table)


@needs_native
@pytest.mark.parametrize("channels", [256, 257])
def test_a_result_that_no_cache_holds(simd, channels, rng):
    """Check results of whole vectors, written past the caches: 48 MB exceed most caches."""
    rows = 48_000
    table = random_table(rng, rows, rows, 2, 0.5)
    problem = make_problem("forward", table, rows, channels, channels, kind="depthwise")
    check(rng, problem, table)


@needs_native
@pytest.mark.parametrize("product", ["forward", "dgrad", "wgrad"])
def test_groups(simd, product, rng):
    for groups, c_in, c_out in ((2, 6, 10), (4, 64, 128), (3, 3, 3)):
        table = random_table(rng, 60, 80, 3, 0.5)
        check(rng, make_problem(product, table, 60, c_in, c_out, groups), table)


@needs_native
@pytest.mark.parametrize("product", ["forward", "dgrad", "wgrad"])
@pytest.mark.parametrize("kind", ["dense", "depthwise"])
@pytest.mark.parametrize("taps", [33, 125])
def test_many_taps(simd, product, kind, taps, rng):
    """Taps are read 32 at a time; with 600 rows wgrad has units of work that read them all."""
    table = random_table(rng, 90, 600, taps, 0.1)
    c_out = 9 if kind == "depthwise" else 20
    check(rng, make_problem(product, table, 90, 9, c_out, kind=kind), table)


@needs_native
@pytest.mark.parametrize("product", ["forward", "dgrad", "wgrad"])
@pytest.mark.parametrize(
    ("inputs", "outputs", "taps", "present"),
    [(0, 5, 3, 0.5), (5, 0, 3, 0.5), (1, 1, 1, 1.0), (30, 30, 27, 0.0), (700, 700, 2, 1.0)],
)
def test_sizes(product, inputs, outputs, taps, present, rng):
    table = random_table(rng, inputs, outputs, taps, present)
    for c_in, c_out in ((5, 7), (0, 7), (5, 0)):
        check(rng, make_problem(product, table, inputs, c_in, c_out), table)


@needs_native
def test_taps_are_shared_out_where_weights_are_large(rng):
    """1.8 million weights: two stripes of rows, and so few columns that taps are split as well."""
    table = random_table(rng, 2500, 2500, 27, 0.02)
    check(rng, make_problem("wgrad", table, 2500, 520, 130), table)


@needs_native
@pytest.mark.parametrize("product", ["forward", "wgrad"])
def test_many_tiles_and_stripes(product, rng):
    table = random_table(rng, 6000, 6000, 5, 0.3)
    check(rng, make_problem(product, table, 6000, 20, 20), table)


@needs_native
def test_all_rows_to_one(rng):
    """Not a kernel map, yet a table: every output reads the same input."""
    table = np.full((500, 3), 2, np.int32)
    for product in ("forward", "wgrad"):
        check(rng, make_problem(product, table, 4, 8, 8), table)


@needs_native
@pytest.mark.parametrize("product", ["forward", "wgrad"])
@pytest.mark.parametrize("kind", ["dense", "depthwise"])
@pytest.mark.parametrize("row", [7, 2**31 - 1, -2, -(2**31)])
def test_rows_out_of_range_are_an_error(product, kind, row, rng):
    table = random_table(rng, 7, 300, 3, 0.5)
    table[211, 1] = row
    problem = make_problem(product, table, 7, 4, 4, kind=kind)
    given, _ = draw(rng, problem)
    with pytest.raises(jax.errors.JaxRuntimeError, match=f"names input row {row} of 7"):
        jax.block_until_ready(run(problem, space_of(problem)[0], table, *given))


@needs_native
def test_rows_without_pairs_are_not_read(rng):
    table = np.full((40, 2), -1, np.int32)
    table[:20, 0] = np.arange(20)
    x = np.full((40, 6), np.nan, np.float32)
    x[:20] = rng.normal(size=(20, 6))
    dy = np.full((40, 6), np.nan, np.float32)
    dy[:20] = rng.normal(size=(20, 6))
    w = jnp.ones((2, 6, 6), jnp.float32)
    for product in ("forward", "dgrad", "wgrad"):
        problem = make_problem(product, table, 40, 6, 6)
        chosen = space_of(problem)[0]
        assert np.isfinite(run(problem, chosen, table, jnp.asarray(x), jnp.asarray(dy), w)).all()


@needs_native
@pytest.mark.parametrize("ndim", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("sorted_centers", [True, False])
def test_neighbors(ndim, sorted_centers, rng):
    rows = np.unique(
        np.concatenate(
            [rng.integers(0, 2, (600, 1)), rng.integers(-9, 9, (600, ndim))], axis=1
        ).astype(np.int32),
        axis=0,
    )
    rows[-1, 1:] = 2**30 - 1
    rows = rows[np.lexsort(rows.T[::-1])]
    padded = np.concatenate([rows, np.full((7, 1 + ndim), 2**31 - 1, np.int32)])
    centers = padded if sorted_centers else rng.permutation(padded)
    valid = centers[:, 0] < 2**31 - 1
    offsets = np.array(
        [[*(v - 1 for v in np.unravel_index(i, (3,) * ndim))] for i in range(3**ndim)]
    )
    offsets = np.concatenate([offsets, [[0] * (ndim - 1) + [40]], [[0] * (ndim - 1) + [-17]]])
    known = {tuple(row): i for i, row in enumerate(rows.tolist())}
    wanted = [
        [known.get((c[0], *(np.array(c[1:]) + o)), -1) if ok else -1 for o in offsets]
        for c, ok in zip(centers.tolist(), valid, strict=True)
    ]
    found = find_neighbors(jnp.asarray(padded), jnp.asarray(centers), jnp.asarray(valid), offsets)
    np.testing.assert_array_equal(found, wanted)


BITS = """
import os, sys
if sys.argv[1] == "one":
    os.sched_setaffinity(0, {next(iter(os.sched_getaffinity(0)))})
import hashlib, jax, numpy as np, jax.numpy as jnp
sys.path[:0] = [sys.argv[2], os.path.dirname(sys.argv[2])]
import test_native as t
digest = hashlib.sha256()
for product in ("forward", "dgrad", "wgrad"):
    rng = np.random.default_rng(0)
    table = t.random_table(rng, 9000, 9000, 9, 0.3)
    for channels, kind in ((40, "dense"), (24, "depthwise")):
        problem = t.make_problem(product, table, 9000, 24, channels, kind=kind)
        given, _ = t.draw(rng, problem)
        for parameters in t.space_of(problem):
            digest.update(np.asarray(t.run(problem, parameters, table, *given)).tobytes())
    for result in t.run_gradients(problem, table, *given):
        digest.update(np.asarray(result).tobytes())
print(digest.hexdigest())
"""


@needs_native
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no CPU affinity here")
def test_the_same_bits_for_any_number_of_threads():
    here = os.path.dirname(__file__)
    bits = {
        subprocess.run(
            [sys.executable, "-c", BITS, number, here],
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        ).stdout
        for number in ("one", "all")
    }
    assert len(bits) == 1


def test_switched_off_it_says_so_and_everything_runs():
    script = (
        "import jax, numpy as np, voxax as vx\n"
        "from voxax import _native\n"
        "from voxax.nn.functional import spatially_sparse_conv\n"
        "assert 'VOXAX_NATIVE' in _native.unavailable() and _native.simd() is None\n"
        "v = vx.voxelize(np.random.rand(50, 3).astype('f'), np.ones((50, 2), 'f'), 0.2)\n"
        "y = spatially_sparse_conv(v, np.ones((27, 2, 3), 'f'), 3, fwd_algo='implicit_gemm')\n"
        "print(np.isfinite(y.features).all())\n"
        "layer = lambda w: spatially_sparse_conv(v, w).features\n"
        "print(vx.explain(layer, np.ones((27, 2, 3), 'f')))\n"
        "print(vx.hardware.describe().native_kernels)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "VOXAX_NATIVE": "off"},
    )
    assert result.stdout.startswith("True\n"), result.stderr
    reason = "the native kernels are switched off by VOXAX_NATIVE"
    assert result.stdout.endswith(f"on XLA alone: {reason}\nnone: {reason}\n")
