"""Tables that are no relation: refused where they can be read, and defined where they cannot."""

import dataclasses
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import voxax as vx
from voxax.geometry import kernel_maps
from voxax.nn.functional import mean_pool, spatially_sparse_conv, spatially_sparse_depthwise_conv

CAPACITY, TAPS = 96, 27
OUTSIDE = (CAPACITY, CAPACITY + 7, 2**31 - 1, -2, -(2**31))
DTYPES = ("float32", "float64", "bfloat16", "float16")


def voxels_of(rng, dtype="float32"):
    coords = np.unique(rng.integers(0, 6, (200, 4)) * [0, 1, 1, 1], axis=0)[:80].astype(np.int32)
    features = jnp.asarray(rng.normal(size=(len(coords), 4)), dtype)
    return vx.Voxels.from_coords(coords, features, capacity=CAPACITY)


def with_table(kmap, table, check=True):
    return vx.KernelMap(
        kmap.in_geometry,
        kmap.out_geometry,
        kmap.spec,
        {"neighbors": table},
        restricted=True,
        check=check,
    )


@pytest.mark.parametrize("host", [True, False])
@pytest.mark.parametrize("entry", OUTSIDE)
def test_entries_that_are_no_rows_are_refused(rng, entry, host):
    kmap = vx.kernel_map(voxels_of(rng), kernel_size=3)
    table = np.array(kmap.neighbors)
    table[3, 5] = entry
    table = table if host else jnp.asarray(table)
    with pytest.raises(vx.InputError, match=rf"neighbors\[3, 5\] = {entry}, and there are 96 rows"):
        with_table(kmap, table)
    with pytest.raises(vx.InputError, match=r"neighbors\[3, 5\]"):
        dataclasses.replace(kmap, views={"neighbors": table})


def test_outputs_that_share_an_input_are_refused(rng):
    kmap = vx.kernel_map(voxels_of(rng), kernel_size=3)
    table = np.array(kmap.neighbors)
    assert with_table(kmap, table).out_capacity == CAPACITY
    rows = np.flatnonzero(table[:, 13] >= 0)[:2]
    table[rows[1], 13] = table[rows[0], 13]
    with pytest.raises(vx.InputError, match=f"under tap 13, rows {rows[0]} and {rows[1]} both"):
        with_table(kmap, table)
    back = {"neighbors": np.array(kmap.neighbors), "transposed_neighbors": table}
    with pytest.raises(vx.InputError, match="transposed_neighbors: under tap 13"):
        vx.KernelMap(kmap.in_geometry, kmap.out_geometry, kmap.spec, back)


@pytest.mark.parametrize("table", [np.zeros((3, 27), np.int32), np.zeros((96, 27), np.int64)])
def test_tables_of_another_shape_or_dtype_are_refused(rng, table):
    kmap = vx.kernel_map(voxels_of(rng), kernel_size=3)
    with pytest.raises(vx.InputError, match=r"expected int32\[96, 27\]"):
        with_table(kmap, table)


def test_a_traced_table_has_the_shape_and_dtype_of_others(rng):
    kmap = vx.kernel_map(voxels_of(rng), kernel_size=3)
    for table in (np.zeros((3, 27), np.int32), np.zeros((96, 27), np.int16)):
        with pytest.raises(vx.InputError, match=r"expected int32\[96, 27\]"):
            jax.eval_shape(lambda table: with_table(kmap, table), table)


def test_a_map_is_checked_once(rng, monkeypatch):
    """Maps that voxax builds, transposes, restricts or unflattens are read by nobody."""

    def read(*arguments):
        raise AssertionError("the table was copied to the host")

    kmap = vx.kernel_map(voxels_of(rng), kernel_size=3)
    monkeypatch.setattr(kernel_maps, "_check_table", read)
    voxels = voxels_of(rng)
    maps = vx.kernel_map(voxels, kernel_size=3), vx.kernel_map(voxels, kernel_size=2, stride=2)
    for one in maps:
        jax.tree.map(lambda x: x, one.transpose().restrict(jnp.ones((1, one.num_offsets), bool)))
    kmap.of_taps([0, 1])
    with pytest.raises(AssertionError, match="copied"):
        with_table(kmap, kmap.neighbors)


def products(kind, algorithm, dtype, entry):
    """Check that an entry of a traced map that is no row is none for result and gradients."""
    rng = np.random.default_rng(0)
    voxels = voxels_of(rng, dtype)
    kmap = vx.kernel_map(voxels, kernel_size=3)
    table, dense = np.array(kmap.neighbors), kind == "dense"
    for place in ((0, 0), (3, 5), (10, 13)):
        table[place] = entry
    weight = jnp.asarray(rng.normal(size=(TAPS, 4, 3) if dense else (TAPS, 4)), dtype)
    cotangent = jnp.asarray(rng.normal(size=(CAPACITY, 3 if dense else 4)), dtype)
    cotangent = cotangent * (np.arange(CAPACITY) < int(voxels.count))[:, None].astype(dtype)

    def call(table, features, weight):
        own = with_table(kmap, table)
        if kind == "mean":
            scaled = voxels.replace_features(features)
            return mean_pool(scaled, kernel_map=own).features * weight[:1]
        if not dense:
            return spatially_sparse_depthwise_conv(
                features, weight, own, fwd_algo=algorithm, bwd_algo=algorithm
            )
        return spatially_sparse_conv(
            voxels.replace_features(features),
            weight,
            kernel_map=own,
            fwd_algo=algorithm,
            bwd_algo=algorithm,
        ).features

    def all_of(table, features, weight, cotangent):
        out, back = jax.vjp(lambda *args: call(table, *args), features, weight)
        return out, *back(cotangent)

    found = jax.device_get(jax.jit(all_of)(table, voxels.features, weight, cotangent))
    x, w, c = (np.asarray(a, np.float64) for a in (voxels.features, weight, cotangent))
    out, dx, dw = np.zeros((CAPACITY, c.shape[1])), np.zeros_like(x), np.zeros_like(w)
    exists = (table >= 0) & (table < CAPACITY)
    for row, tap in np.argwhere(exists):
        source = table[row, tap]
        if kind == "mean":
            share = 1 / exists[row].sum()
            out[row] += x[source] * w[0] * share
            dx[source] += w[0] * c[row] * share
            dw[0] += x[source] * c[row] * share
        elif dense:
            out[row] += x[source] @ w[tap]
            dx[source] += w[tap] @ c[row]
            dw[tap] += np.outer(x[source], c[row])
        else:
            out[row] += x[source] * w[tap]
            dx[source] += w[tap] * c[row]
            dw[tap] += x[source] * c[row]
    tolerance = {"bfloat16": 2e-2, "float16": 4e-3}.get(dtype, 1e-5)
    count = int(voxels.count)
    for got, expected in zip(found, (out, dx, dw), strict=True):
        rows = slice(count) if len(got) == CAPACITY else slice(None)
        scale = np.abs(expected).max()
        np.testing.assert_allclose(
            np.asarray(got[rows], np.float64), expected[rows], atol=tolerance * scale
        )


FORMS = [
    *(("dense", name) for name in ("explicit_gemm", "implicit_gemm")),
    *(("depthwise", name) for name in ("explicit", "implicit")),
    ("mean", None),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("kind", "algorithm"), FORMS)
def test_traced_entries_that_are_no_rows(kind, algorithm, dtype):
    with jax.enable_x64(dtype == "float64"):
        for entry in OUTSIDE:
            products(kind, algorithm, dtype, entry)


WITHOUT_KERNELS = """
import test_invalid_maps as tests
for kind, algorithm in tests.FORMS:
    for entry in tests.OUTSIDE[::3]:
        tests.products(kind, algorithm, "float32", entry)
"""


def test_traced_entries_that_are_no_rows_without_native_kernels(monkeypatch, request):
    monkeypatch.setenv("VOXAX_NATIVE", "off")
    folder = request.path.parent
    subprocess.run([sys.executable, "-c", WITHOUT_KERNELS], cwd=folder, check=True, timeout=300)
