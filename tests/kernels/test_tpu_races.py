"""The window kernels in the interpreter that simulates memories and copies: neither races nor NaN.

That it finds both where there are some, ``test_tpu_items.py`` shows.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_tpu_windows import TOLERANCE, both, gradients, parameters_of

import voxax as vx
from interpreted import RACE, simulated
from oracle import relative_error
from samples import make_voxels, slow_unless
from voxax.kernels.implicit_gemm.windows import VIEWS

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
