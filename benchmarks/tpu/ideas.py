"""Would the window kernel be faster if ...? Variants of it, counted as it is counted.

    python benchmarks/tpu/ideas.py --data FOLDER

The layer of budgets.py: 3x3x3, 64 channels, forward. A variant is the library's kernel with a part
of it exchanged while it is traced. Its cycles of one visit, by the compiler's schedule, times the
visits that a scan needs with it, are what a row costs: windows that are shorter, or shared by
more taps, need more visits. Scans at 5 cm, and the recorded sweep that comes with voxax. Nothing
runs. Needs libtpu. Results go to results/tpu_ideas.md and .json.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

sys.path.insert(0, str(Path(__file__).parents[2]))  # `benchmarks`, also as a script

from benchmarks.tpu import program
from benchmarks.tpu.budgets import lidar_neighbors
from benchmarks.tpu.scans import cells, neighbors, points

from voxax.algorithms.implicit_gemm import tpu, tpu_kernel, windows
from voxax.errors import VoxaxError
from voxax.predict import TOPOLOGIES, outcomes

RESULTS = Path(__file__).parents[1] / "results"
CHIPS, VOXEL, CHANNELS, TAPS = ("v5e", "v6e"), 0.05, 64, 27
SCANS = ("semantickitti", "nuscenes", "lone_star")


@dataclasses.dataclass(frozen=True)
class Idea:
    """A variant.

    Attributes:
      what: in words.
      tile, window: rows of each.
      shared: columns of taps that share a window.
      in_block: lanes of a row of 64 channels: 64 with another beside it, or 128.
      pieces: products that the weights are multiplied in; their sums are added up.
      side: taps whose ones stand side by side in one product.
      dtype: of the operands.
      native: 8-bit integers pass through the matrix unit as such, not as bfloat16.
    """

    what: str
    tile: int = windows.WINDOW_TILE
    window: int = 256
    shared: int = 1
    in_block: int = CHANNELS
    pieces: int = 1
    side: int = 1
    dtype: str = "bfloat16"
    native: bool = False

    @property
    def alignment(self) -> int:
        """Windows start at multiples of so many rows."""
        return 128 // self.in_block * (32 if self.native else windows.WINDOW_ALIGNMENT)


IDEAS = {
    "kernel": Idea("the kernel as it is"),
    "plane": Idea("one window for the three columns of a plane", shared=3),
    "plane 384": Idea("one window of 384 rows for the three columns of a plane", 128, 384, 3),
    "window 192": Idea("windows of 192 rows", window=192),
    "window 128": Idea("windows of 128 rows", window=128),
    "tile 256": Idea("tiles of 256 rows, windows of 384", 256, 384),
    "unpacked": Idea("rows of 64 channels alone in 128 lanes", in_block=128),
    "planes": Idea("a product of weights for each plane, sums kept", pieces=3),
    "columns": Idea("a product of weights for each column, sums kept", pieces=9),
    "pairs": Idea("the ones of two taps side by side", side=2),
    "triples": Idea("the ones of three taps side by side", side=3),
    "int8": Idea("the kernel on 8-bit integers, as bfloat16", dtype="int8"),
    "int8 native": Idea(
        "8-bit integers as such through the matrix unit", dtype="int8", native=True
    ),
}


def variant(chip: str, idea: str, rows: int) -> tuple[Any, ...]:
    """Return the program to compile for ``voxax.predict``."""
    chosen = IDEAS[idea]
    problem = program.make_problem("forward", chosen.dtype, CHANNELS, rows)
    stripes = program.facts(TOPOLOGIES[chip]).cores or 1
    blocks = tpu.Blocks(chosen.window, chosen.in_block, CHANNELS, stripes)
    with _exchanged(chosen):
        run, *shapes = program.operands(problem, tpu.parameters(blocks))

    def exchanged(*operands: Any) -> Any:
        with _exchanged(chosen):
            return run(*operands)

    return exchanged, *shapes


@contextlib.contextmanager
def _exchanged(idea: Idea) -> Iterator[None]:
    with contextlib.ExitStack() as inside:

        def exchange(module: Any, **parts: Any) -> None:
            inside.enter_context(mock.patch.multiple(module, **parts))

        for module in (program, tpu, tpu_kernel):
            exchange(module, WINDOW_TILE=idea.tile)
        for module in (program, tpu):
            exchange(module, columns_of=lambda *known: columns_of(idea, *known))
        if idea.pieces > 1:
            exchange(
                tpu_kernel,
                _pieces=lambda kernel, terms: [
                    (at * terms // idea.pieces, terms // idea.pieces) for at in range(idea.pieces)
                ],
            )
        if idea.side > 1:
            exchange(tpu_kernel, _pick_column=functools.partial(_picked_beside, idea.side))
        if idea.native:
            _make_native(exchange)
        yield


def columns_of(idea: Idea, spec: Any, taps: int) -> windows.Columns:
    """Taps by window."""
    columns = windows.columns_of(spec, taps)
    shared = [columns[at : at + idea.shared] for at in range(0, len(columns), idea.shared)]
    return tuple(tuple(tap for column in group for tap in column) for group in shared)


def _picked_beside(
    side: int, kernel: Any, column: int, start: Any, table: Any, x: Any, places: Any, picked: Any
) -> None:
    """``tpu_kernel._pick_column`` with wider products."""
    c_in, tile = picked.shape[1] // kernel.taps, picked.shape[2]
    x = jnp.transpose(x)
    x = jnp.concatenate([x[p * c_in : (p + 1) * c_in] for p in range(kernel.packed)], axis=1)
    taps = kernel.columns[column]
    for begin in range(0, len(taps), side):
        beside = taps[begin : begin + side]
        wanted = [table[pl.ds(tap, 1), :] - start for tap in beside]
        ones = [jnp.where(w == places, jnp.float32(1), jnp.float32(0)) for w in wanted]
        ones = [o.astype(jnp.bfloat16) for o in ones]
        rows = tpu_kernel._dot(x, jnp.concatenate(ones, axis=1), 1, 0).astype(jnp.bfloat16)
        for at, tap in enumerate(beside):
            picked[0, pl.ds(tap * c_in, c_in), :] = rows[:, at * tile : (at + 1) * tile]


class _Int8Memory:
    """``pltpu``, but that memory for bfloat16 holds 8-bit integers."""

    def __getattr__(self, name: str) -> Any:
        return getattr(pltpu, name)

    @staticmethod
    def VMEM(shape: Any, dtype: Any) -> Any:
        return pltpu.VMEM(shape, jnp.int8 if dtype == jnp.bfloat16 else dtype)


def _make_native(exchange: Any) -> None:
    gathered, weight_of = tpu._gathered, tpu._weight_of

    def dot(a: Any, b: Any, a_axis: int, b_axis: int) -> Any:
        contracted = (((a_axis,), (b_axis,)), ((), ()))
        return jax.lax.dot_general(a, b, contracted, preferred_element_type=jnp.int32)

    def pick_column(
        kernel: Any, column: int, start: Any, table: Any, x: Any, places: Any, picked: Any
    ) -> None:
        c_in = picked.shape[1] // kernel.taps
        # The vector unit transposes 32 bits.
        x = jnp.transpose(x.astype(jnp.int32))
        x = jnp.concatenate([x[p * c_in : (p + 1) * c_in] for p in range(kernel.packed)], axis=1)
        x = x.astype(jnp.int8)
        for tap in kernel.columns[column]:
            wanted = table[pl.ds(tap, 1), :] - start
            ones = jnp.where(wanted == places, jnp.int32(1), jnp.int32(0)).astype(jnp.int8)
            picked[0, pl.ds(tap * c_in, c_in), :] = dot(x, ones, 1, 0).astype(jnp.int8)

    exchange(
        tpu_kernel,
        WINDOW_ALIGNMENT=32,
        pltpu=_Int8Memory(),
        _dot=dot,
        _pick_column=pick_column,
        _pieces=lambda kernel, terms: [(0, terms)],
    )
    exchange(
        tpu,
        WINDOW_ALIGNMENT=32,
        _gathered=lambda *known: [x.astype(jnp.int8) for x in gathered(*known)],
        _weight_of=lambda *known: weight_of(*known).astype(jnp.int8),
    )


def visits(idea: Idea, table: np.ndarray) -> int:
    """Return the visits of all tiles: each as often as its longest window needs."""
    rows, taps = table.shape
    spec = program.make_problem("forward", "bfloat16").layer.spec
    tiles = -(-rows // idea.tile)
    padded = np.pad(table, ((0, tiles * idea.tile - rows), (0, 0)), constant_values=-1)
    padded = padded.reshape(tiles, idea.tile, taps)
    first = np.where(padded < 0, np.iinfo(np.int32).max, padded).min(1)
    last = padded.max(1)
    most = np.zeros(tiles, np.int64)
    for column in columns_of(idea, spec, taps):
        low, high = first[:, column].min(1), last[:, column].max(1)
        length = np.where(high < 0, 0, high + 1 - (low - low % idea.alignment))
        most = np.maximum(most, -(-length // idea.window))
    return int(most.sum())


def measure(chips: list[str], ideas: list[str], tables: dict[str, np.ndarray]) -> list[Any]:
    rows = len(tables["recorded"])
    cases = [(idea, chip) for idea in ideas for chip in chips]
    asked = [
        (chip, "benchmarks.tpu.ideas:variant", {"idea": idea, "rows": rows}) for idea, chip in cases
    ]
    found = []
    for (idea, chip), outcome in zip(cases, outcomes(asked), strict=True):
        row: dict[str, Any] = {"idea": idea, "what": IDEAS[idea].what, "chip": chip}
        if isinstance(outcome, VoxaxError):
            found.append(row | {"error": str(outcome)[:600]})
            continue
        kernel = outcome.kernel()
        one, two = (kernel.cost(outcome.chip, number) for number in (1, 2))
        cycles, total = two.cycles - one.cycles, two.cycles
        row |= {"visit": cycles, "issued": two.bundles - one.bundles}
        row["busy"] = {unit: number / total for unit, number in two.busy.items()}
        row["rows"] = {
            name: cycles * visits(IDEAS[idea], table) / len(table) for name, table in tables.items()
        }
        found.append(row)
    return found


def table_of(rows: list[dict[str, Any]]) -> str:
    names = ["recorded", *SCANS]
    names = [name for name in names if any(name in row.get("rows", {}) for row in rows)]
    lines = [
        "| idea | chip | cycles a visit | issued | busiest unit | "
        + " | ".join(f"cycles a row, {name}" for name in names)
        + " |",
        "|---|---|---:|---:|---|" + "---:|" * len(names),
    ]
    for row in rows:
        head = f"| {row['what']} | {row['chip']} "
        if "error" in row:
            lines.append(f"{head}| does not compile | | |" + " |" * len(names))
            continue
        unit, share = max(row["busy"].items(), key=lambda item: item[1])
        each = " | ".join(f"{row['rows'][name]:.1f}" for name in names)
        lines.append(
            f"{head}| {row['visit']:,.0f} | {row['issued']:,.0f} | {unit} {share:.0%} | {each} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="folder of the scans")
    parser.add_argument("--chips", nargs="*", default=list(CHIPS), choices=list(TOPOLOGIES))
    parser.add_argument("--ideas", nargs="*", default=list(IDEAS), choices=list(IDEAS))
    arguments = parser.parse_args()
    tables = {"recorded": lidar_neighbors()}
    for name in SCANS if arguments.data else ():
        tables[name] = neighbors(cells(points(arguments.data, name), VOXEL))
    rows = measure(arguments.chips, arguments.ideas, tables)
    RESULTS.mkdir(exist_ok=True)
    kept = RESULTS / "tpu_ideas.json"
    if kept.exists():  # rows of other runs stay
        new = {(row["idea"], row["chip"]) for row in rows}
        old = json.loads(kept.read_text())
        rows += [row for row in old if (row["idea"], row["chip"]) not in new]
    rows.sort(key=lambda row: (list(IDEAS).index(row["idea"]), list(TOPOLOGIES).index(row["chip"])))
    text = table_of(rows)
    kept.write_text(json.dumps(rows, indent=1) + "\n")
    (RESULTS / "tpu_ideas.md").write_text(
        f"# Variants of the window kernel\n\nSee benchmarks/tpu/ideas.py.\n\n{text}\n"
    )
    print(text)
    for row in rows:
        if "error" in row:
            print(f"{row['idea']}, {row['chip']}: {row['error']}")


if __name__ == "__main__":
    main()
