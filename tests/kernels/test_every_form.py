"""Every form of every algorithm on bare tables, against sums in float64.

Rows of the operands that no pair touches hold NaN: a table says what exists, nothing else does.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.workloads import random_cube
from jax.test_util import check_grads

import problems
import voxax as vx
from conformance.forms import FORMS, explicit
from oracle import relative_error
from samples import make_voxels, make_weight, slow_unless
from voxax.geometry import PAIR_ROOM
from voxax.geometry.host import invert_table, pair_lists
from voxax.kernels.explicit_gemm import xla
from voxax.kernels.registry import kernels
from voxax.products import convolve

KINDS = ("dense", "grouped", "depthwise")
TOLERANCE = {"float32": 1e-5, "float64": 1e-12, "bfloat16": 1e-2, "float16": 2e-3, "int8": 1e-12}

pytestmark = pytest.mark.usefixtures("forms")


def views_of(table, inputs):
    """Everything that a form may read of a table without a spec."""
    transposed = invert_table(table, inputs)
    pairs, starts = pair_lists(table)
    tables = {"neighbors": table, "transposed_neighbors": transposed}
    return {
        **{
            name: view.on_host(tables[view.table], None)
            for kernel in kernels()
            for name, view in kernel.views.items()
        },
        **tables,
        "pairs": pairs,
        "pair_starts": starts,
    }


def operands(rng, table, inputs, kind, dtype):
    """``(x, dy, w)`` in ``dtype``; NaN in rows without pairs."""
    taps = table.shape[1]
    c_in, c_out, shape = {
        "dense": (3, 4, (taps, 3, 4)),
        "grouped": (4, 6, (taps, 2, 2, 3)),
        "depthwise": (5, 5, (taps, 5)),
    }[kind]

    def draw(*shape):
        if dtype == "int8":
            return rng.integers(-128, 128, shape)
        return rng.normal(size=shape)

    def untouched(values, used):
        return values if dtype == "int8" else np.where(used[:, None], values, np.nan)

    used = np.isin(np.arange(inputs), table)
    x = untouched(draw(inputs, c_in), used)
    dy = untouched(draw(len(table), c_out), (table >= 0).any(1))
    return tuple(jnp.asarray(value, dtype) for value in (x, dy, draw(*shape)))


def by_loop(table, x, dy, w, kind):
    """``(y, dx, dw)`` in float64, pair by pair."""
    x, dy, w = (np.asarray(value).astype(np.float64) for value in (x, dy, w))
    y, dx, dw = np.zeros(dy.shape), np.zeros(x.shape), np.zeros(w.shape)
    for out, tap in zip(*np.nonzero(table >= 0), strict=True):
        source = table[out, tap]
        if kind == "depthwise":
            y[out] += x[source] * w[tap]
            dx[source] += dy[out] * w[tap]
            dw[tap] += x[source] * dy[out]
            continue
        for group, part in enumerate(w[tap] if kind == "grouped" else w[tap][None]):
            i, o = (slice(group * n, (group + 1) * n) for n in part.shape)
            y[out, o] += x[source, i] @ part
            dx[source, i] += part @ dy[out, o]
            inner = (tap, group) if kind == "grouped" else (tap,)
            dw[inner] += np.outer(x[source, i], dy[out, o])
    return y, dx, dw


def products(form, kind, shape, dtype):
    """``(x, dy, w, views) -> (y, dx, dw)`` by the algorithm itself, jitted."""
    inputs, outputs, taps = shape

    def run(x, dy, w, views):
        def one(product, a, b):
            problem = problems.make_problem(
                product, kind, inputs, outputs, taps, x.shape[1], dy.shape[1],
                2 if kind == "grouped" else 1, dtype, "highest", False, "cpu",
            )  # fmt: skip
            parameters = form.heuristic(problem, None)
            names = form.reads(parameters, product, False)
            return form.apply(problem, parameters, a, b, {name: views[name] for name in names})

        return one("forward", x, w), one("dgrad", dy, w), one("wgrad", x, dy)

    return jax.jit(run)


def check(form, kind, shape, dtype="float32", presences=(0.4, 0.0, 1.0, 0.05)):
    """Against the loops, for tables with these parts of their pairs present."""
    rng = np.random.default_rng(0)
    run = products(form, kind, shape, dtype)
    inputs, outputs, taps = shape
    for present in presences:
        table = problems.random_table(rng, inputs, outputs, taps, present, ascending=True)
        views = views_of(table, inputs)
        given = operands(rng, table, inputs, kind, dtype)
        for one, other in zip(run(*given, views), by_loop(table, *given, kind), strict=True):
            assert one.dtype == jnp.dtype("int32" if dtype == "int8" else dtype)
            assert relative_error(one, other) < TOLERANCE[dtype]
        if present == 0:
            assert not any(np.asarray(result).any() for result in run(*given, views))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", FORMS)
def test_the_three_products_are_sums_over_pairs(form, kind):
    """Other rows than outputs; no pair at all, every pair, very few."""
    check(FORMS[form], kind, (13, 10, 5))


@pytest.mark.parametrize(
    ("form", "dtype"),
    [
        slow_unless(dtype == "int8", form, dtype)
        for form in FORMS
        for dtype in ("int8", "bfloat16", "float16", "float64")
    ],
)
def test_every_dtype(form, dtype):
    """8-bit integers are summed exactly, in 32 bits."""
    with jax.enable_x64(dtype == "float64"):
        for kind in KINDS if dtype == "float64" else KINDS[:1]:
            check(FORMS[form], kind, (13, 10, 5), dtype)


@pytest.mark.parametrize(
    ("form", "shape", "kind"),
    [
        slow_unless(shape in ((1, 1, 1), (4, 0, 3)) and kind == "dense", form, shape, kind)
        for form in FORMS
        for shape in ((1, 1, 1), (1, 1, 27), (0, 4, 3), (4, 0, 3), (0, 0, 3), (1, 9, 2))
        for kind in KINDS
    ],
)
def test_capacities_of_one_and_of_none(form, shape, kind):
    check(FORMS[form], kind, shape, presences=(1.0, 0.0))


@pytest.mark.parametrize("block", [1, 7, 10, 11, PAIR_ROOM])
def test_pair_lists_in_blocks_of_any_size(block):
    """Check lists that are exactly full, one longer, and as long as the space that is left."""
    form = explicit("any", xla.pair_list_parameters(block))
    check(form, "dense", (13, 10, 5), presences=(1.0, 0.4))


@pytest.mark.parametrize(
    "form", [slow_unless(form in ("pair_lists_4", "tiles_256", "native_4"), form) for form in FORMS]
)
def test_half_precision_accumulates_in_float32(form):
    """Counting to 1000 in steps of one, over taps and over rows: bfloat16 would stop at 256."""
    dtype = "bfloat16"
    for rows, taps in ((1, 1000), (1000, 1)):
        table = np.tile(np.arange(rows, dtype=np.int32)[:, None], (1, taps))
        views = views_of(table, rows)
        x, w = jnp.ones((rows, 1), dtype), jnp.ones((taps, 1, 1), dtype)
        y, dx, dw = products(FORMS[form], "dense", (rows, rows, taps), dtype)(x, x, w, views)
        assert {float(v) for v in np.unique(y)} == {float(v) for v in np.unique(dx)} == {taps}
        assert {float(v) for v in np.unique(dw)} == {rows}


def small_layer(stride=2, kernel=2, rows=12, capacity=16, dtype="float32"):
    """``(features, weight, map)``; no map here is its own transpose."""
    voxels = make_voxels(random_cube(rows), 4, capacity=capacity)
    weight = make_weight(kernel, 3, 4, 4)
    kmap = vx.kernel_map(voxels, kernel, stride)
    return voxels.features.astype(dtype), weight.astype(dtype), kmap


def pins(form):
    return {"fwd_algo": form, "dgrad_algo": form, "wgrad_algo": form}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "stride", "kernel"),
    [(form, stride, kernel) for form in FORMS for stride, kernel in ((2, 2), (1, 3))],
)
def test_first_and_second_derivatives(form, stride, kernel):
    """Forward and reverse mode, against finite differences."""
    with jax.enable_x64(True):
        x, w, kmap = small_layer(stride, kernel, dtype="float64")
        conv = jax.jit(lambda x, w: convolve(x, w, kmap, **pins(form)))
        check_grads(conv, (x, w), order=2, modes=("fwd", "rev"))


@pytest.mark.parametrize("form", FORMS)
def test_scan_and_vmap_over_weights_in_one_program(form):
    x, w, kmap = small_layer()
    table = np.asarray(kmap.neighbors)
    weights = jnp.stack([w, 2 * w[::-1], -w]).reshape(3, 1, *w.shape)

    @jax.jit
    def gradients(x, weights):
        def loss(x, w):
            return jnp.sum(convolve(x, w, kmap, **pins(form)) ** 2) / 2

        def body(carry, ws):
            return carry, jax.vmap(jax.value_and_grad(loss, (0, 1)), (None, 0))(x, ws)

        return jax.lax.scan(body, 0, weights)[1]

    values, (dx, dw) = gradients(x, weights)
    for i in range(3):
        y, _, _ = by_loop(table, x, np.zeros((len(table), 4)), weights[i, 0], "dense")
        _, dx_i, dw_i = by_loop(table, x, y, weights[i, 0], "dense")
        assert relative_error(values[i, 0], np.sum(y**2) / 2) < 1e-5
        assert relative_error(dx[i, 0], dx_i) < 1e-5
        assert relative_error(dw[i, 0], dw_i) < 1e-5
