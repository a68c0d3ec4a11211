"""Bound what a gather of rows by SparseCores could save beside the TensorCore's products.

    python benchmarks/tpu/sparse_core.py

The 3x3x3 layer of SemanticKITTI at 5 cm (94,444 rows, 3.0 neighbors each), bfloat16, forward. The
rows of all neighbors are gathered, tap by tap, in four pieces: so the product of one piece can run
while the next is gathered. Each piece meets one weight, and the sums over a row's neighbors are
left out: what is compiled is less than the layer. Nothing counts SparseCores. So the table has the
cycles a row of two gathers at the rate that JAX measured, and of the bytes of HBM, sums included.
Nothing runs. Needs libtpu.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import tpu_sc as plsc

sys.path.insert(0, str(Path(__file__).parents[2]))  # `benchmarks`, also as a script

from benchmarks import report
from benchmarks.tpu.counted import options

from voxax.errors import VoxaxError
from voxax.predict import CompiledProgram, outcomes

CHIPS, CHANNELS, ROWS, NEIGHBORS = ("v5p", "v6e", "7x"), (64, 128, 256), 94_444, 3.0
PIECES, COPY = 4, 128
# 4,194,304 rows of 512 bytes, docs.jax.dev/en/latest/pallas/tpu/sparsecore.html, on a 7x.
SECONDS_OF_ROW = 4.05e-3 / 4_194_304


def gather(x: jax.Array, index: jax.Array) -> jax.Array:
    """``x[index]`` by all vector subcores of all SparseCores, ``COPY`` rows in a copy.

    Args:
      x: ``int32[N, words]``, two channels of bfloat16 in a word.
      index: ``int32[M]``.
    """

    def kernel(x_ref: Any, index_ref: Any, out_ref: Any) -> None:
        def step(wanted: Any, rows: Any) -> None:
            pltpu.sync_copy(x_ref.at[wanted.at[0]], rows)

        pltpu.emit_pipeline(
            step,
            grid=(len(index) // COPY,),
            in_specs=[pl.BlockSpec((1, COPY), lambda i: (0, i))],
            out_specs=[pl.BlockSpec((COPY, x.shape[1]), lambda i: (i, 0))],
            core_axis_name=("core", "subcore"),
            dimension_semantics=(pltpu.PARALLEL,),
        )(index_ref, out_ref)

    run: Any = pl.kernel(
        kernel,
        out_type=jax.ShapeDtypeStruct((len(index), x.shape[1]), x.dtype),
        mesh=plsc.VectorSubcoreMesh(core_axis_name="core", subcore_axis_name="subcore"),
        # Rows of fewer than 128 words have no TensorCore's tiles.
        compiler_params=pltpu.CompilerParams(use_tc_tiling_on_sc=False, needs_layout_passes=False),
    )
    return run(x, index[None])


def layer(channels: int) -> tuple[Any, ...]:
    """Return the program to compile."""
    pairs = int(ROWS * NEIGHBORS / PIECES)
    pairs += -pairs % (32 * COPY)

    def whole(x: jax.Array, index: jax.Array, w: jax.Array) -> list[jax.Array]:
        found = []
        for piece in range(PIECES):
            words = gather(x, index[piece])
            low, high = (
                jax.lax.bitcast_convert_type(half, jnp.float32).astype(jnp.bfloat16)
                for half in (words << 16, words & jnp.int32(-(1 << 16)))
            )
            rows = jnp.concatenate([low, high], axis=1)
            found.append(jnp.dot(rows, w[piece], preferred_element_type=jnp.float32))
        return found

    shape = jax.ShapeDtypeStruct
    return (
        whole,
        shape((ROWS + -ROWS % COPY, channels // 2), "int32"),
        shape((PIECES, pairs), "int32"),
        shape((PIECES, channels, channels), "bfloat16"),
    )


def main() -> None:
    given = options(__doc__, CHIPS, anew=False).parse_args()
    cases = [(chip, channels) for chip in given.chips for channels in CHANNELS]
    known = {
        (row["chip"], row["channels"]): row.get("cycles")
        for row in report.known(report.RESULTS, "tpu_layers")
        if (row["scan"], row["method"], row["product"]) == ("semantickitti", "windows", "forward")
    }
    target = "benchmarks.tpu.sparse_core:layer"
    programs = outcomes([(chip, target, {"channels": c}) for chip, c in cases])
    lines = []
    for (name, channels), program in zip(cases, programs, strict=True):
        if isinstance(program, VoxaxError):
            lines.append([name, channels, str(program)[:300]])
            continue
        chip = program.chip
        kernels = [cost for cost in program.costs() if "-start" not in cost.kernel.name]
        products = sum(cost.seconds for cost in kernels) * chip.clock / ROWS
        # The products of a row's neighbors are gathered once more, to be summed.
        rate = 2 * NEIGHBORS * SECONDS_OF_ROW * chip.clock
        # Of a neighbor: its row read, written, and read; its product in float32 written, and read.
        moved = channels * (NEIGHBORS * (3 * 2 + 2 * 4) + 2)
        moved *= chip.clock / chip.device_bandwidth
        cells = [
            f"{known[name, channels]:.1f}",
            f"{products:.1f}",
            f"{hidden(program)} of {PIECES}",
        ]
        lines.append([name, channels, *cells, f"{rate:.1f}", f"{moved:.1f}"])
    head = ["chip", "channels", "windows", "products alone", "beside products", "two gathers"]
    print("Cycles a row.", *report.table([*head, "bytes"], lines), sep="\n")


def hidden(program: CompiledProgram) -> int:
    """Gathers between whose start and end the program runs a product."""
    names = [kernel.name for kernel in program.kernels]
    kinds = [kernel.kind for kernel in program.kernels]
    ends = [
        (at, names.index(name.replace("call-start", "call-done")))
        for at, (name, kind) in enumerate(zip(names, kinds, strict=True))
        if kind == "call-start"
    ]
    return sum("fusion" in kinds[start:end] for start, end in ends)


if __name__ == "__main__":
    main()
