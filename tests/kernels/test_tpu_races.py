"""Check which guard catches which fault of a kernel that copies its windows.

The guards: ``interpret=True``, and the interpreter that simulates memories and copies
(``interpreted.simulated``), by a wrong result, by NaN, by what it raises and by the races it finds.
Each fault is planted in a kernel like the library's, with the copies written out. The table is in
``docs/tpu_kernels.md``. The library's kernels then go through the same guards without a fault.
"""

import contextlib
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from test_tpu_windows import TOLERANCE, both, gradients, parameters_of

import voxax as vx
from interpreted import RACE, simulated
from oracle import relative_error
from samples import make_voxels, slow_unless
from voxax.kernels.implicit_gemm.windows import VIEWS

ROWS, LANES, WINDOW = 48, 128, 8
STARTS = (8, 40, 0, 24)

GUARDS = {
    # Copies happen at once; what is outside is clamped.
    "interpret=True": None,
    # Copies happen at the latest moment, and at the earliest.
    "on_wait": {"dma_execution_mode": "on_wait"},
    "eager": {"dma_execution_mode": "eager"},
}
CAUGHT = {
    "none": ((), (), ()),
    "no wait": ((), ("NaN",), ("race",)),
    "late wait": ((), ("race", "NaN"), ("race",)),
    "out of range": ((), ("raises",), ("raises",)),
    "stale slot": (("wrong",), ("race", "NaN"), ("race", "wrong")),
    "one slot": (("wrong",), ("wrong",), ("wrong",)),
    "one slot, copied after the wait": (("wrong",), ("race",), ("race", "wrong")),
    "sums not cleared": (("NaN",), ("NaN",), ("NaN",)),
}
"""What each guard of ``GUARDS`` shows of a fault."""
# Newer JAX raises where it finds a race, and nothing else is seen; JAX 0.10 goes on.
STOPPED = "race, which stops the program"


def sums_of_windows(x, starts, fault, interpret=False):
    """``y[i] = sum of x[starts[i] : starts[i] + WINDOW]``, from two buffers in turn."""
    one_slot = fault.startswith("one slot")

    def kernel(starts_ref, x_ref, out_ref, buffers, total, arrived):
        step, last = pl.program_id(0), pl.num_programs(0) - 1

        def copy(number):
            slot = 0 if one_slot else number % 2
            begin = starts_ref[number]
            if fault == "out of range":  # where the window ends with the rows
                begin += jnp.where(begin == ROWS - WINDOW, jnp.int32(WINDOW), jnp.int32(0))
            return pltpu.make_async_copy(
                x_ref.at[pl.ds(begin, WINDOW)], buffers.at[slot], arrived.at[slot]
            )

        @pl.when(step == 0)
        def _():
            copy(step).start()

        def bring_next():
            @pl.when(step < last)
            def _():
                copy(step + 1).start()

        after = fault == "one slot, copied after the wait"
        if not after:
            bring_next()
        if fault not in ("no wait", "late wait"):
            copy(step).wait()
        if after:
            bring_next()
        if fault != "sums not cleared":
            total[...] = jnp.zeros_like(total)
        slot = 0 if one_slot else (step + int(fault == "stale slot")) % 2
        total[...] += jnp.broadcast_to(jnp.sum(buffers[slot], axis=0, keepdims=True), total.shape)
        out_ref[...] = total[...]
        if fault == "late wait":
            copy(step).wait()

    return pl.pallas_call(
        kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(len(STARTS),),
            in_specs=[pl.BlockSpec(memory_space=pltpu.HBM)],
            out_specs=pl.BlockSpec((8, LANES), lambda step, _: (step, 0)),
            scratch_shapes=[
                pltpu.VMEM((2, WINDOW, LANES), jnp.float32),
                pltpu.VMEM((8, LANES), jnp.float32),
                pltpu.SemaphoreType.DMA((2,)),
            ],
        ),
        out_shape=jax.ShapeDtypeStruct((8 * len(STARTS), LANES), jnp.float32),
        interpret=interpret,
    )(starts, x)


def signs(run, capsys):
    """Return what a guard reports: any of ``raises``, ``race``, ``NaN``, ``wrong``."""
    x = np.random.default_rng(0).normal(size=(ROWS, LANES)).astype(np.float32)
    expected = np.stack([x[begin : begin + WINDOW].sum(0) for begin in STARTS])
    capsys.readouterr()
    try:
        found = np.asarray(run(jnp.asarray(x), jnp.asarray(STARTS, jnp.int32)))[::8]
    except jax.errors.JaxRuntimeError as error:
        if RACE in str(error):
            return (STOPPED,)
        return ("raises",) if "Out-of-bounds read" in str(error) else (str(error),)
    seen = ["race"] if RACE in capsys.readouterr().out else []
    if np.isnan(found).any():
        seen.append("NaN")
    elif relative_error(found, expected) > 1e-6:
        seen.append("wrong")
    return tuple(seen)


@pytest.mark.parametrize("fault", CAUGHT)
def test_which_guard_catches_a_fault(fault, capsys):
    shown = []
    for changes in GUARDS.values():
        run = functools.partial(sums_of_windows, fault=fault, interpret=changes is None)
        with contextlib.nullcontext() if changes is None else simulated(**changes):
            shown.append(signs(run, capsys))
    expected = [
        (STOPPED,) if found == (STOPPED,) and "race" in signs_of else signs_of
        for found, signs_of in zip(shown, CAUGHT[fault], strict=True)
    ]
    assert shown == expected


def test_every_fault_is_caught():
    for fault, shown in CAUGHT.items():
        assert any(shown) is (fault != "none"), fault


RELATIONS = {
    "submanifold": {"kernel_size": 3},
    "strided": {"kernel_size": 2, "stride": 2},
    "dilated": {"kernel_size": 3, "dilation": 2},
}


def tiny(relation):
    """Two tiles, the second one partly empty; two axes, since each tap takes its time.

    Whole tiles: the interpreter raises where a block of a result exceeds it.
    """
    cells = np.indices((2, 9, 13)).reshape(3, -1).T
    rows = cells[np.random.default_rng(0).random(len(cells)) < 0.75] - [0, 4, 7]
    return vx.kernel_map(make_voxels(rows, capacity=256), **RELATIONS[relation])


def simulate(relation, product, dtype, window=128, stripes=1, **changes):
    """Pairs of the kernel's result and im2col's. Rows are copied, even by one stripe."""
    blocks = dict(parameters_of(window, 16, 16, stripes)) | {"resident": 0}
    del blocks["interpret"]
    chosen = tuple(sorted(blocks.items()))
    with simulated(**changes):
        if product == "gradients":
            return gradients(tiny(relation), 3, 5, dtype, chosen)
        return [both(tiny(relation), product, 3, 5, dtype, chosen)]


@pytest.mark.parametrize(
    ("relation", "product", "dtype", "changes"),
    [
        slow_unless(fast, relation, product, dtype, changes)
        for fast, relation, product, dtype, changes in (
            (True, "submanifold", "forward", "float32", {}),
            (False, "strided", "dgrad", "bfloat16", {}),
            (False, "dilated", "wgrad", "float32", {"dma_execution_mode": "eager"}),
            # Two cores, each with a stripe of its own.
            (False, "submanifold", "forward", "bfloat16", {"num_cores_or_threads": 2}),
            (False, "strided", "wgrad", "bfloat16", {"num_cores_or_threads": 2}),
            (False, "submanifold", "gradients", "bfloat16", {}),
            (False, "submanifold", "gradients", "bfloat16", {"dma_execution_mode": "eager"}),
            (False, "strided", "gradients", "float32", {"num_cores_or_threads": 2}),
        )
    ],
)
def test_the_kernels_neither_race_nor_read_what_nobody_wrote(
    relation, product, dtype, changes, capsys
):
    stripes = changes.get("num_cores_or_threads", 1)
    pairs = simulate(relation, product, dtype, stripes=stripes, **changes)
    assert RACE not in capsys.readouterr().out
    for actual, expected in pairs:
        assert np.isfinite(actual).all()
        assert relative_error(actual, expected) < TOLERANCE[dtype]


def test_windows_beyond_the_rows_are_noticed(monkeypatch):
    kmap = tiny("submanifold")
    starts, lengths = kmap.view("windows", VIEWS["windows"])
    beyond = jnp.stack([jnp.where(lengths > 0, starts + 512, starts), lengths])
    view = vx.KernelMap.view

    def moved(kmap, name, builder=None):
        return beyond if name == "windows" else view(kmap, name, builder)

    monkeypatch.setattr(vx.KernelMap, "view", moved)
    # The pipeline would raise; a kernel that confines its copies selects nothing instead.
    try:
        ((actual, expected),) = simulate("submanifold", "forward", "bfloat16")
    except jax.errors.JaxRuntimeError as error:
        assert "Out-of-bounds" in str(error)  # noqa: PT017
    else:
        assert relative_error(actual, expected) > 0.1
