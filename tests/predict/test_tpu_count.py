"""The counter against what is known: plain products and copies on the real TPU compiler."""

import jax
import jax.numpy as jnp
import pytest

from voxax import _compat
from voxax.errors import InputError, MissingExtraError, VoxaxError
from voxax.predict import chip_named, count, count_all

needs_libtpu = pytest.mark.skipif(not _compat.has_libtpu(), reason="libtpu is not installed")


@pytest.mark.tpu_compile
@needs_libtpu
def test_a_plain_product_takes_what_the_matrix_units_take():
    """Within 5 % of the roofline."""
    program = count("v5e", "voxax.predict.cycles:matrix_product")
    chip = program.chip
    lower_bound = 2 * 4096**3 / chip.peak
    (cost,) = [c for c in program.costs() if c.cycles > 1000]
    assert lower_bound <= program.seconds() <= 1.05 * lower_bound
    assert cost.bound == "MXU"
    assert cost.bytes == 2 * 2 * 4096**2  # the third matrix is copied to VMEM beforehand
    assert program.copied == 2 * 4096**2
    # The inferred clock: each unit is busy for its part of the product.
    assert cost.busy["MXU"] / chip.clock == pytest.approx(lower_bound, rel=0.005)


def layers(number=3, rows=4096):
    """As many layers of the same shape."""

    def call(x, weights):
        for weight in weights:
            x = jax.nn.relu(jnp.dot(x, weight)) - jnp.roll(x, 1, axis=0)
        return x

    weight = jax.ShapeDtypeStruct((512, 512), "bfloat16")
    return call, jax.ShapeDtypeStruct((rows, 512), "bfloat16"), [weight] * number


@pytest.mark.tpu_compile
@needs_libtpu
def test_equal_kernels_count_each_time():
    """libtpu compiles one of them."""
    target = f"{__file__}:layers"
    one, three = count_all([("v5e", target, {"number": number}) for number in (1, 3)])
    assert not three.open()
    assert len(three.kernels) == len({kernel.name for kernel in three.kernels})
    cycles = [sum(cost.cycles for cost in program.costs()) for program in (one, three)]
    assert cycles[1] == pytest.approx(3 * cycles[0], rel=0.1)


def two_vectors_by_loop(rows=512):
    """A Pallas kernel that copies its operand from vector memory to vector memory."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    def copy(x, out, scratch, arrived):
        for turn in range(2):
            moved = pltpu.make_async_copy(x, scratch.at[turn], arrived)
            moved.start()
            moved.wait()
        out[...] = scratch[0] + scratch[1]

    shape = jax.ShapeDtypeStruct((rows, 128), "float32")
    return pl.pallas_call(
        copy,
        out_shape=shape,
        in_specs=[pl.BlockSpec(memory_space=pltpu.VMEM)],
        scratch_shapes=[pltpu.VMEM((2, rows, 128), jnp.dtype("float32")), pltpu.SemaphoreType.DMA],
    ), shape


@pytest.mark.tpu_compile
@needs_libtpu
def test_copies_within_vector_memory_are_loops_whose_passes_are_read():
    target, sizes = f"{__file__}:two_vectors_by_loop", (512, 1024)
    programs = count_all([("v5e", target, {"rows": rows}) for rows in sizes])
    for program, rows in zip(programs, sizes, strict=True):
        kernel = program.kernel()
        assert kernel.listing is not None
        assert not kernel.listing.unknown
        # One store at most in a cycle, eight rows each, two copies and the sum.
        assert kernel.listing.whole.total().cycles >= 3 * rows / 8


@pytest.mark.tpu_compile
@needs_libtpu
def test_what_does_not_compile_says_why():
    with pytest.raises(VoxaxError, match="TypeError"):
        count("v5e", "voxax.predict.cycles:matrix_product", no_such=1)


def test_chips_from_the_table():
    for name, clock in {"v4": 1.05, "v5e": 1.50, "v5p": 1.75, "v6e": 1.75, "7x": 2.2}.items():
        chip = chip_named(name)
        # Published clocks, where there are any: v4 1.05, v5p 1.75 GHz.
        assert chip.clock == pytest.approx(clock * 1e9, rel=0.01)
        assert chip.hbm > chip.vmem > 0
    with pytest.raises(InputError, match="v4, v5e"):
        chip_named("v3")


def test_without_libtpu(monkeypatch):
    monkeypatch.setattr(_compat, "has_libtpu", lambda: False)
    with pytest.raises(MissingExtraError, match=r"voxax\[tpu\]"):
        count("v5e", "voxax.predict.cycles:matrix_product")
