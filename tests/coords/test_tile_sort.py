"""The TPU's sort in Pallas, interpreted on the CPU: as NumPy sorts; and where programs hold it."""

import functools
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from voxax import coords as device
from voxax.coords import ordering, tile_sort

LIMITS = np.iinfo(np.int32)
sort = functools.partial(tile_sort.sort_columns, interpret=True)


def columns_of(rng, number, width):
    """Columns of few different values, among them the limits, and the rows' numbers."""
    values = np.asarray([LIMITS.min, -3, 0, 5, LIMITS.max], np.int32)
    return [*rng.choice(values, (width, number)), np.arange(number, dtype=np.int32)]


def check(columns, found):
    order = np.lexsort(columns[::-1])
    for column, ordered in zip(columns, found, strict=True):
        np.testing.assert_array_equal(ordered, column[order])


@pytest.mark.parametrize("number", [1, 2, 1000, 1024, 1025, 5000])
def test_rows_of_one_block(number, rng):
    columns = columns_of(rng, number, 3)
    check(columns, sort(columns, 4))


@pytest.mark.parametrize("number", [2049, 4096, 9000])
def test_rows_of_several_blocks(number, rng, monkeypatch):
    monkeypatch.setattr(tile_sort, "_BLOCK_NUMBERS", 3 * 2048)
    columns = columns_of(rng, number, 2)
    check(columns, sort(columns, 3))


def test_many_columns_are_sorted_in_smaller_blocks(rng, monkeypatch):
    monkeypatch.setattr(tile_sort, "_BLOCK_NUMBERS", 1)  # a block is one tile at least
    columns = columns_of(rng, 3000, 8)
    check(columns, sort(columns, 9))


def test_columns_that_are_not_compared_go_along(rng):
    keys = rng.permutation(1500).astype(np.int32)
    values = rng.integers(-9, 9, (2, 1500)).astype(np.int32)
    found = sort([keys, *values], 1)
    np.testing.assert_array_equal(found[0], np.arange(1500))
    np.testing.assert_array_equal(found[1:], values[:, np.argsort(keys)])


def test_in_64_bits_under_vmap_and_in_shards(rng):
    scenes = np.stack([columns_of(rng, 1100, 2) for _ in range(2)])
    mesh = jax.make_mesh((1,), ("part",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("part")
    sharded = jax.shard_map(
        jax.vmap(lambda columns: jnp.stack(sort(list(columns), 3))),
        mesh=mesh,
        in_specs=spec,
        out_specs=spec,
        check_vma=False,  # the interpreter does not say what its loops carry varies
    )
    with jax.enable_x64(True):
        found = jax.jit(sharded)(jnp.asarray(scenes))
    assert found.dtype == jnp.int32
    for columns, ordered in zip(scenes, found, strict=True):
        check(list(columns), ordered)


ROWS = jax.ShapeDtypeStruct((3000, 4), jnp.int32)


def program_of(function, platform):
    return jax.jit(function).trace(ROWS).lower(lowering_platforms=(platform,)).as_text()


def kernels_of(program):
    return program.count("@tpu_custom_call"), program.count("stablehlo.sort")


@pytest.mark.parametrize("unique", [False, True], ids=["sort_rows", "unique_rows"])
def test_it_is_part_of_programs_for_tpus_alone(unique):
    function = functools.partial(device.unique_rows, capacity=100) if unique else device.sort_rows
    kernels = {platform: kernels_of(program_of(function, platform)) for platform in ("tpu", "cuda")}
    assert kernels == {"tpu": (1 + unique, 0), "cuda": (0, 1)}
    program = jax.export.export(jax.jit(function), platforms=["tpu"])(ROWS).mlir_module()
    assert kernels_of(program) == (1 + unique, 0)


def test_shards_sort_by_tiles_and_what_xla_spreads_does_not():
    """XLA does not partition kernels in Pallas; in shards there is nothing to do, as of today."""
    mesh = jax.sharding.AbstractMesh((2,), ("part",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("part")
    shards = jax.shard_map(device.sort_rows, mesh=mesh, in_specs=spec, out_specs=(spec, spec))
    assert kernels_of(program_of(shards, "tpu")) == (1, 0)
    partitioned = jax.jit(device.sort_rows, in_shardings=jax.sharding.NamedSharding(mesh, spec))
    assert kernels_of(program_of(partitioned, "tpu")) == (0, 1)
    exported = [
        jax.export.export(jax.jit(function), platforms=["tpu"])(ROWS).mlir_module()
        for function in (shards, partitioned)
    ]
    assert list(map(kernels_of, exported)) == [(1, 0), (0, 1)]


def test_rows_that_are_no_int32_are_left_to_xla():
    rows = jax.ShapeDtypeStruct((100, 3), jnp.int16)
    program = jax.jit(device.sort_rows).trace(rows).lower(lowering_platforms=("tpu",)).as_text()
    assert kernels_of(program) == (0, 1)


@pytest.mark.parametrize("number", [0, 1, 700])
def test_without_a_tpu_it_is_the_same(number, rng):
    columns = columns_of(rng, number, 2)
    check(columns, jax.jit(functools.partial(ordering.sort_distinct, num_keys=3))(*columns))


def test_programs_for_cpus_do_not_import_pallas():
    code = (
        "import sys, jax, jax.numpy as jnp, voxax.coords as c\n"
        "c.unique_rows(jnp.ones((5, 4), jnp.int32), 3)\n"
        "assert 'voxax.coords.tile_sort' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
