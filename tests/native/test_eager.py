"""Bodies in NumPy for eager calls: where they run, and whose memory results are in."""

import concurrent.futures
import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import voxax as vx
from problems import needs_native
from voxax._native.eager import on_host
from voxax._native.host import empty_array
from voxax._native.on_cpu import natively_on_cpu


@on_host
def doubled(x):
    return np.multiply(x, 2, out=empty_array(x.shape, x.dtype))


@on_host
def unchanged(x):
    return x


def test_a_result_has_the_device_of_its_operands():
    x = np.arange(3.0, dtype=np.float32)
    made = doubled(x)
    assert not made.committed
    np.testing.assert_array_equal(made, [0, 2, 4])
    device = jax.devices()[0]
    assert doubled(jax.device_put(x, device)).committed
    with jax.default_device(device):
        assert doubled(jax.device_put(x)).devices() == {device}
    assert doubled(jnp.ones(3, jnp.bfloat16)).dtype == jnp.bfloat16


def test_what_the_program_must_take():
    """Tracers, 64 bits where JAX has none, arrays of several devices, and JAX's own checks."""
    x = jnp.ones(3)
    assert doubled(np.ones(3)) is None
    assert doubled([1.0]) is None
    for name in ("debug_nans", "debug_infs"):
        with getattr(jax, name)(True):
            assert doubled(x) is None
    mesh = jax.make_mesh((1,), ("part",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    assert doubled(jax.device_put(x, spec)) is None
    assert jax.eval_shape(lambda x: x if doubled(x) is None else x * 0, x) is not None


@pytest.mark.slow
def test_several_devices():
    """Operands on the second CPU compute there, those on two are an error of JAX."""
    script = """
import jax, numpy as np
from voxax.geometry.row_operations import add_rows
first, second = jax.devices()
x = np.ones((4, 2), np.float32)
a, b = (jax.device_put(x, device) for device in (first, second))
assert add_rows(b, b).devices() == {second} and add_rows(b, b).committed
assert add_rows(b, jax.device_put(x)).devices() == {second}
with jax.default_device(second):
    assert add_rows(jax.device_put(x), jax.device_put(x)).devices() == {second}
mesh = jax.make_mesh((2,), ("part",), axis_types=(jax.sharding.AxisType.Auto,))
split = jax.device_put(x, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("part")))
np.testing.assert_array_equal(add_rows(split, split), 2 * x)
assert len(add_rows(split, split).devices()) == 2
try:
    add_rows(a, b)
except ValueError as error:
    assert "incompatible devices" in str(error)
else:
    raise AssertionError("computed")
"""
    settings = ["import os; os.environ['XLA_FLAGS'] = '--xla_force_host_platform_device_count=2'"]
    ran = subprocess.run(
        [sys.executable, "-c", "\n".join([*settings, script])],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]


def test_results_are_nobody_elses_memory():
    mine = empty_array((4, 3), np.float32)
    mine[...] = 1
    kept, twice = unchanged(mine), doubled(mine)
    mine[...] = 7
    np.testing.assert_array_equal(kept, np.ones((4, 3)))
    np.testing.assert_array_equal(twice, np.full((4, 3), 2))
    x = jnp.ones(3)
    assert unchanged(x) is x


@pytest.mark.parametrize("rows", [1, 5000])
def test_a_result_may_be_donated(rows):
    """Nobody writes to memory that NumPy still reads."""
    add = jax.jit(lambda x: x + 1, donate_argnums=0)
    x = jnp.ones((rows, 16))
    made = doubled(x)
    view = np.asarray(made)
    np.testing.assert_array_equal(add(made), np.full((rows, 16), 3))
    np.testing.assert_array_equal(view, np.full((rows, 16), 2))
    del view
    made = doubled(x)
    np.testing.assert_array_equal(add(made), np.full((rows, 16), 3))
    np.testing.assert_array_equal(doubled(x), np.full((rows, 16), 2))


def test_a_deleted_operand_is_an_error():
    x = jnp.ones(3)
    x.delete()
    with pytest.raises(RuntimeError, match="deleted"):
        doubled(x)


def test_an_operand_that_is_still_computed_is_waited_for():
    x = jnp.ones((600, 600))
    for _ in range(20):
        x = x @ x / 600
    np.testing.assert_array_equal(doubled(x), np.full((600, 600), 2))


@pytest.mark.parametrize("guard", ["log", "disallow", "disallow_explicit"])
def test_transfer_guards_let_results_through(guard):
    x = jnp.ones(3)
    with jax.transfer_guard(guard):
        made = doubled(x)
    np.testing.assert_array_equal(made, [2, 2, 2])


def test_transfer_guards_let_voxels_through():
    coords = np.array([[0, 1, 2, 3], [0, 4, 5, 6]])
    with jax.transfer_guard_host_to_device("disallow"):
        voxels = vx.Voxels.from_coords(coords, np.ones((2, 1), np.float32))
    assert int(voxels.count) == 2


def test_threads_do_not_meet():
    x = [jnp.full((2000, 8), float(i)) for i in range(8)]
    barrier = threading.Barrier(4)

    def work(i):
        if i < 4:
            barrier.wait()
        return [doubled(x[i]) for _ in range(20)]

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for i, found in enumerate(pool.map(work, range(8))):
            for made in found:
                np.testing.assert_array_equal(made, np.full((2000, 8), 2.0 * i))


@needs_native
def test_which_body_runs():
    """Eager calls, also under the transformations of JAX; not inside jit or vmap."""
    ran = []

    def eager(x, *, by):
        ran.append(by)
        return (x * by,)

    scaled = natively_on_cpu(
        "scaled_eagerly", lambda x, by: (x * by,), lambda x, by: (x * by,), eager=eager
    )
    x = jnp.arange(3, dtype=jnp.int32)
    np.testing.assert_array_equal(scaled(x, by=2)[0], [0, 2, 4])
    with jax.disable_jit():
        np.testing.assert_array_equal(scaled(x, by=3)[0], [0, 3, 6])
    jax.grad(lambda y: y * scaled(x, by=4)[0].sum().astype(y.dtype))(1.0)
    assert ran == [2, 3, 4]
    np.testing.assert_array_equal(jax.jit(lambda x: scaled(x, by=5)[0])(x), [0, 5, 10])
    np.testing.assert_array_equal(jax.jit(lambda: scaled(x, by=5)[0])(), [0, 5, 10])
    np.testing.assert_array_equal(jax.vmap(lambda x: scaled(x, by=5)[0])(x[None]), [[0, 5, 10]])
    assert ran == [2, 3, 4]
