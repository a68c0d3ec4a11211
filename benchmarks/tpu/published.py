"""Published measurements on TPUs, beside what voxax.predict says of the same programs.

    python benchmarks/tpu/published.py

The programs are written anew after their descriptions: the same operands, blocks and order of
copies. Nothing runs here; the measurements are those of the sources. Needs libtpu. Results go to
results/tpu_published.md and .json.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

sys.path.insert(0, str(Path(__file__).parents[2]))  # `benchmarks`, also as a script

from benchmarks import report

from voxax.errors import VoxaxError
from voxax.predict import CompiledProgram, count_all

JAX = "https://docs.jax.dev/en/latest/pallas/tpu/"
COUNTER = "https://github.com/ayaka14732/pallas-tpu-tutorial/tree/main/"
V4_CLOCK = 1.05e9
"""Cycles per second of that counter, see chapter03/06_gtc there."""
_TILES, _WIDTH = 32_768, 128


@dataclasses.dataclass(frozen=True)
class Case:
    """One measurement.

    Attributes:
      what: was measured, and on what.
      chip: generation.
      make: name of the function here that returns the program.
      arguments: of that function.
      measured: seconds.
      band: least and greatest ``measured / predicted`` that a test accepts.
      how: it was measured.
      source: where it was published.
      less: arguments of a program whose time is taken from both, for measurements on the host.
      kernel: compare the Pallas kernel's schedule alone: what lies before and after was not timed.
      alone: the other core of the chip was idle, and the memory's whole bandwidth was this one's.
      note: why the band is as it is, where it is not the usual one.
      place: module or file of ``make``, as ``voxax.predict`` takes it.
      passes: of loops in Pallas kernels whose length the data decided.
    """

    what: str
    chip: str
    make: str
    arguments: dict[str, Any]
    measured: float
    band: tuple[float, float]
    how: str
    source: str
    less: dict[str, Any] | None = None
    kernel: bool = False
    alone: bool = False
    note: str = ""
    place: str = str(Path(__file__).resolve())
    passes: float | None = None


# Schedules that bind, on the host's clock or the chip's: the issue of instructions is exact, the
# host's clock and the memory's refresh are not.
_USUAL = 0.9, 1.15
# A memory moves less than its peak: v4's 0.79 to 0.86 of it, by the chip's counter.
_MEMORY = 0.92, 1.35
_HOST = "host clock, mean of 100, less that of 1024 x 1024"
_CYCLES = "counter of cycles on the chip"
_PROFILE = "XProf, device"


def _product(what: str, size: int, blocks: list[int] | None, ms: tuple[float, float], **more: Any):
    return Case(
        f"{what}, {size} x {size} bfloat16",
        "v5e",
        "product",
        {"size": size, "blocks": blocks},
        (ms[0] - ms[1]) / 1e3,
        more.pop("band", _USUAL),
        _HOST,
        f"{JAX}matmul.html",
        less={"size": 1024, "blocks": blocks},
        **more,
    )


def _moves(what: str, pattern: str, rows: int, cycles: int, band: tuple[float, float]):
    return Case(
        f"{what}, tiles of {rows * _WIDTH * 4 // 1024} KiB",
        "v4",
        "moves",
        {"pattern": pattern, "rows": rows},
        cycles * (_TILES // rows) / V4_CLOCK,
        band,
        _CYCLES,
        f"{COUNTER}chapter02/02_dma_pipeline",
        kernel=True,
        alone=True,
    )


def _transform(what: str, style: str, rows: int, cycles: int):
    case = _moves(what, style, rows, cycles, _MEMORY)
    return dataclasses.replace(case, make="transform", arguments={"style": style, "rows": rows})


def _dot(rows: tuple[int, int], cycles: tuple[int, int]):
    return Case(
        f"bfloat16 product [{rows[0]}, 128] x [128, 128] in vector memory",
        "v4",
        "dot",
        {"rows": rows[0]},
        (cycles[0] - cycles[1]) / V4_CLOCK,
        (0.95, 1.05),
        f"{_CYCLES}, less that of {rows[1]} rows",
        "https://ayaka14732.github.io/pallas-tpu-tutorial/chapter01/11_matmul_mxu/",
        less={"rows": rows[1]},
        kernel=True,
    )


_LARGE, _SMALL = [512, 1024, 1024], [128, 128, 128]
_STEP = "the latency of copies on v5e was taken from the larger of these"
CASES = (
    _product("XLA's product", 4096, None, (0.8272900, 0.1194301)),
    _product("XLA's product", 8192, None, (6.0471479, 0.1194301)),
    _product("Pallas, blocks of 512 x 1024 x 1024", 4096, _LARGE, (0.8890878, 0.1270866)),
    _product("Pallas, blocks of 512 x 1024 x 1024", 8192, _LARGE, (6.0994338, 0.1270866)),
    _product("Pallas, blocks of 128", 4096, _SMALL, (11.7715153, 0.2976660), note=_STEP),
    _product("Pallas, blocks of 128", 8192, _SMALL, (91.8357707, 0.2976660), note=_STEP),
    Case(
        "Pallas, block-sparse x dense, 16384 x 16384, a tenth of the blocks of 512",
        "v5e",
        "block_sparse",
        {"blocks": 102},
        8.136e-3 - 0.12e-3,
        (0.85, 1.2),
        "host clock, mean of 100, less 0.12 ms of the host",
        f"{JAX}sparse.html",
        note="the number of blocks is random there, 102 in the mean",
    ),
    Case(
        "XLA's dense product of these, 16384 x 16384",
        "v5e",
        "product",
        {"size": 16384, "blocks": None},
        46.953e-3 - 0.12e-3,
        _USUAL,
        "host clock, mean of 100, less 0.12 ms of the host",
        f"{JAX}sparse.html",
    ),
    _dot((128, 16), (211, 176)),
    _dot((1024, 128), (435, 211)),
    _moves("copies to vector memory", "read", 512, 818, _MEMORY),
    _moves("copies to vector memory", "read", 2048, 1681, _MEMORY),
    _moves("copies from vector memory", "write", 512, 675, _MEMORY),
    _moves("copies from vector memory", "write", 2048, 1484, _MEMORY),
    _moves("copies there, then back", "read, write", 512, 1527, _MEMORY),
    _moves("copies there, then back", "read, write", 2048, 3191, _MEMORY),
    _moves("copies there and back at once", "both", 512, 1130, _MEMORY),
    _moves("copies there and back at once", "both", 2048, 2836, _MEMORY),
    _transform("2 x + 1, one after the other", "serial", 512, 102_958 // 64),
    _transform("2 x + 1, two buffers", "buffered", 512, 67_929 // 64),
    _transform("2 x + 1, two buffers", "buffered", 1024, 53_147 // 32),
    _transform("2 x + 1, two buffers", "buffered", 2048, 43_872 // 16),
    Case(
        "Pallas, 2048 x 2048 bfloat16 on two cores, one half here",
        "v4",
        "half_product",
        {},
        81.05e-6,
        _USUAL,
        _PROFILE,
        f"{COUNTER}chapter02/09_large_matmul",
        kernel=True,
    ),
    Case(
        "XLA's 2 x + 1 of 16 MiB on two cores, one half here",
        "v4",
        "affine",
        {"rows": _TILES // 2},
        34.5e-6,
        _MEMORY,
        _PROFILE,
        f"{COUNTER}chapter03/02_fair_timing",
    ),
    *(
        Case(
            "XLA's gather of 4,194,304 rows of 512 bytes from 4,096",
            chip,
            "gather",
            {},
            18.1e-3,
            (0.85, 1.2),
            "host clock",
            f"{JAX}sparsecore.html",
            note="the page does not name its chip: by its two SparseCores one of these",
        )
        for chip in ("v6e", "7x")
    ),
)


def _blocks_product(blocks: list[int], x: jax.Array, y: jax.Array) -> jax.Array:
    rows, inner, columns = blocks
    steps = x.shape[1] // inner

    def run(x: Any, y: Any, out: Any, total: Any) -> None:
        @pl.when(pl.program_id(2) == 0)
        def _() -> None:
            total[...] = jnp.zeros_like(total)

        total[...] += jnp.dot(x[...], y[...], preferred_element_type=jnp.float32)

        @pl.when(pl.program_id(2) == steps - 1)
        def _() -> None:
            out[...] = total[...].astype(out.dtype)

    return pl.pallas_call(
        run,
        grid=(x.shape[0] // rows, y.shape[1] // columns, steps),
        in_specs=[
            pl.BlockSpec((rows, inner), lambda i, j, k: (i, k)),
            pl.BlockSpec((inner, columns), lambda i, j, k: (k, j)),
        ],
        out_specs=pl.BlockSpec((rows, columns), lambda i, j, k: (i, j)),
        out_shape=jax.ShapeDtypeStruct((x.shape[0], y.shape[1]), x.dtype),
        scratch_shapes=[pltpu.VMEM((rows, columns), jnp.dtype("float32"))],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary")
        ),
    )(x, y)


def product(size: int, blocks: list[int] | None) -> tuple[Any, ...]:
    """``x @ y`` of square matrices, by XLA or in blocks of rows, inner and columns."""
    shape = jax.ShapeDtypeStruct((size, size), "bfloat16")
    return jnp.dot if blocks is None else functools.partial(_blocks_product, blocks), shape, shape


def block_sparse(blocks: int, size: int = 16384, side: int = 512) -> tuple[Any, ...]:
    """Dense = sparse @ dense: the blocks of the first operand that are not zero, in a list."""

    def run(rows: Any, _: Any, x: Any, y: Any, zeros: Any, out: Any, total: Any) -> None:
        del zeros
        at = pl.program_id(1)
        before, behind = rows[jnp.maximum(at - 1, 0)], rows[jnp.minimum(at + 1, blocks)]

        @pl.when((at == 0) | (rows[at] != before))
        def _() -> None:
            total[...] = jnp.zeros_like(total)

        total[...] += jnp.dot(x[0], y[...], preferred_element_type=jnp.float32)

        @pl.when((at == blocks - 1) | (rows[at] != behind))
        def _() -> None:
            out[...] = total[...].astype(out.dtype)

    def call(rows: Any, columns: Any, x: Any, y: Any, zeros: Any) -> Any:
        place = pl.BlockSpec((side, side), lambda j, at, rows, _: (rows[at], j))
        return pl.pallas_call(
            run,
            grid_spec=pltpu.PrefetchScalarGridSpec(
                num_scalar_prefetch=2,
                grid=(size // side, blocks),
                in_specs=[
                    pl.BlockSpec((1, side, side), lambda j, at, *_: (at, 0, 0)),
                    pl.BlockSpec((side, side), lambda j, at, _, columns: (columns[at], j)),
                    place,
                ],
                out_specs=place,
                scratch_shapes=[pltpu.VMEM((side, side), jnp.dtype("float32"))],
            ),
            out_shape=jax.ShapeDtypeStruct((size, size), "bfloat16"),
            input_output_aliases={4: 0},
        )(rows, columns, x, y, zeros)

    index = jax.ShapeDtypeStruct((blocks,), "int32")
    dense = jax.ShapeDtypeStruct((size, size), "bfloat16")
    return call, index, index, jax.ShapeDtypeStruct((blocks, side, side), "bfloat16"), dense, dense


def dot(rows: int) -> tuple[Any, ...]:
    """A product in vector memory, of one block."""

    def run(x: Any, y: Any, out: Any) -> None:
        out[...] = jnp.dot(x[...], y[...], preferred_element_type=jnp.float32)

    def call(x: Any, y: Any) -> Any:
        # What is around it keeps its operands and its result out of HBM.
        shape = jax.ShapeDtypeStruct((rows, 128), "float32")
        return pl.pallas_call(run, out_shape=shape)(2 * x, 2 * y) + 1

    return call, *(jax.ShapeDtypeStruct((n, 128), "bfloat16") for n in (rows, 128))


def _tiles(body: Callable[..., None], rows: int, buffers: int) -> tuple[Any, ...]:
    """A kernel that goes over tiles of an array in HBM, with copies of its own."""

    def run(x: Any, out: Any, held: Any, made: Any, arrived: Any, left: Any) -> None:
        def copies(source: Any, target: Any, at: Any, flag: Any) -> Any:
            return pltpu.make_async_copy(source, target, flag.at[at % buffers])

        def place(array: Any, at: Any) -> Any:
            return array.at[pl.ds(pl.multiple_of(at * rows, rows), rows)]

        def load(at: Any) -> Any:
            return copies(place(x, at), held.at[at % buffers], at, arrived)

        def store(at: Any) -> Any:
            return copies(made.at[at % buffers], place(out, at), at, left)

        body(_TILES // rows, load, store, held, made)

    shape = jax.ShapeDtypeStruct((_TILES, _WIDTH), "float32")
    buffer = pltpu.VMEM((buffers, rows, _WIDTH), jnp.dtype("float32"))
    flags = pltpu.SemaphoreType.DMA((buffers,))

    def call(x: Any) -> Any:
        memory = pl.BlockSpec(memory_space=pltpu.HBM)
        return pl.pallas_call(
            run,
            in_specs=[memory],
            out_specs=memory,
            out_shape=pltpu.HBM(shape.shape, shape.dtype),
            scratch_shapes=[buffer, buffer, flags, flags],
            compiler_params=pltpu.CompilerParams(
                disable_bounds_checks=True, disable_semaphore_checks=True
            ),
        )(pltpu.with_memory_space_constraint(x, pltpu.HBM))

    return call, shape


def moves(pattern: str, rows: int) -> tuple[Any, ...]:
    """Copies alone, each waited for before those of the next tile begin."""

    def body(tiles: int, load: Any, store: Any, *_: Any) -> None:
        groups = {
            "read": [[load]], "write": [[store]],
            "read, write": [[load], [store]], "both": [[load, store]],
        }[pattern]  # fmt: skip

        @pl.loop(0, tiles)
        def _(at: Any) -> None:
            for group in groups:
                for copy in group:
                    copy(at).start()
                for copy in group:
                    copy(at).wait()

    return _tiles(body, rows, 1)


def transform(style: str, rows: int) -> tuple[Any, ...]:
    """``2 x + 1`` tile by tile: copies one after the other, or with two buffers of each."""

    def serial(tiles: int, load: Any, store: Any, held: Any, made: Any) -> None:
        @pl.loop(0, tiles)
        def _(at: Any) -> None:
            load(at).start()
            load(at).wait()
            made[0] = held[0] * 2.0 + 1.0
            store(at).start()
            store(at).wait()

    def buffered(tiles: int, load: Any, store: Any, held: Any, made: Any) -> None:
        load(0).start()

        @pl.loop(0, tiles)
        def _(at: Any) -> None:
            load(at).wait()

            @pl.when(at + 1 < tiles)
            def _() -> None:
                load(at + 1).start()

            @pl.when(at >= 2)
            def _() -> None:
                store(at - 2).wait()

            made[at % 2] = held[at % 2] * 2.0 + 1.0
            store(at).start()

        store(tiles - 2).wait()
        store(tiles - 1).wait()

    return _tiles(*((serial, rows, 1) if style == "serial" else (buffered, rows, 2)))


def half_product(rows: int = 1024, size: int = 2048, block: int = 256) -> tuple[Any, ...]:
    """Half of the rows of a product: they stay, the second operand comes in blocks of columns."""

    def run(x: Any, y: Any, out: Any) -> None:
        @pl.loop(0, rows, step=block)
        def _(at: Any) -> None:
            some = pl.ds(pl.multiple_of(at, block), block)
            out[some] = jnp.dot(x[some], y[...], preferred_element_type=jnp.float32)

    def call(x: Any, y: Any) -> Any:
        one = pl.Buffered(1)
        return pl.pallas_call(
            run,
            grid=(size // block,),
            in_specs=[
                pl.BlockSpec((rows, size), lambda j: (0, 0), pipeline_mode=one),
                pl.BlockSpec((size, block), lambda j: (0, j)),
            ],
            out_specs=pl.BlockSpec((rows, block), lambda j: (0, j)),
            out_shape=jax.ShapeDtypeStruct((rows, size), "float32"),
            compiler_params=pltpu.CompilerParams(vmem_limit_bytes=15 * 2**20),
        )(*(pltpu.with_memory_space_constraint(a, pltpu.HBM) for a in (x, y)))

    return call, *(jax.ShapeDtypeStruct((n, size), "bfloat16") for n in (rows, size))


def affine(rows: int) -> tuple[Any, ...]:
    """``2 x + 1`` by XLA."""
    return lambda x: x * 2.0 + 1.0, jax.ShapeDtypeStruct((rows, _WIDTH), "float32")


def gather(rows: int = 128 * 2 * 16 * 1024, held: int = 4096) -> tuple[Any, ...]:
    """Rows of 128 32-bit integers by their numbers, by XLA."""
    index = jax.ShapeDtypeStruct((rows,), "int32")
    return functools.partial(jnp.take, axis=0), jax.ShapeDtypeStruct((held, 128), "int32"), index


def predicted(cases: Sequence[Case]) -> list[float]:
    """Return seconds of each, by ``voxax.predict``."""
    asked = []
    for case in cases:
        target = f"{case.place}:{case.make}"
        asked.append((case.chip, target, case.arguments))
        if case.less is not None:
            asked.append((case.chip, target, case.less))
    programs = iter(count_all(asked))
    found = []
    for case in cases:
        whole = _seconds(next(programs), case)
        found.append(whole - (0 if case.less is None else _seconds(next(programs), case)))
    return found


def _seconds(program: CompiledProgram, case: Case) -> float:
    if case.alone:
        chip = dataclasses.replace(program.chip, bandwidth=2 * program.chip.bandwidth)
        program = dataclasses.replace(program, chip=chip)
    if not case.kernel:
        return program.seconds({k.name: case.passes for k in program.kernels if k.is_pallas})
    cost = program.kernel().cost(program.chip)
    if not cost.complete:
        raise VoxaxError(f"{case.what}: the kernel has loops whose passes are not known")
    return cost.seconds - program.chip.launch


def lines_of(rows: list[dict[str, Any]]) -> list[str]:
    """A line for each case."""
    lines = []
    for r in rows:
        what = f"[{r['what']}]({r['source']})" + (f" ({r['note']})" if r["note"] else "")
        times = [f"{1e6 * r[name]:,.4g}" for name in ("measured", "predicted")]
        ratio, (least, most) = f"{r['measured'] / r['predicted']:.2f}", r["band"]
        lines.append([what, r["chip"], *times, ratio, f"{least} to {most}", r["how"]])
    head = ["program", "chip", "measured, us", "predicted, us", "measured / predicted", "accepted"]
    return [
        "# Published measurements on TPUs, and what voxax.predict says",
        "",
        "See benchmarks/tpu/published.py.",
        "",
        *report.table([*head, "how"], lines, (0, 1, 5, 6)),
    ]


def main() -> None:
    given = report.options(__doc__).parse_args()
    of_file = {"place", "passes"}
    rows = [
        {k: v for k, v in dataclasses.asdict(case).items() if k not in of_file}
        | {"predicted": seconds}
        for case, seconds in zip(CASES, predicted(CASES), strict=True)
    ]
    report.write(given.out, "tpu_published", rows, lines_of(rows))


if __name__ == "__main__":
    main()
