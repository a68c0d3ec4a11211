"""Predict sorting coordinates on TPUs, by tiles and by XLA's own sort.

    python benchmarks/tpu/sort.py

Rows of four columns in lexicographic order with where they were, as strided maps need them: by
voxax.coords.tile_sort, and by jax.lax.sort. Seconds that the compiler takes on this machine, of a
program of nothing else, at most so many; and microseconds by its schedules (voxax.predict).
Nothing runs. Needs libtpu. Results go to results/tpu_sort.md and .json; a run goes on where another
was stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # `benchmarks`, also as a script

from benchmarks import report
from benchmarks.tpu.counted import CHIPS, Kept, Row, options

from voxax.errors import VoxaxError
from voxax.predict import TOPOLOGIES, outcomes

ROWS = (4_096, 41_936, 262_144)
WIDTH = 4
WAYS = ("tiles", "XLA")


def program(rows: int, way: str) -> Any:
    """Return the program to compile."""
    import jax
    import jax.numpy as jnp

    from voxax.coords.tile_sort import sort_columns

    def run(coords: jax.Array) -> Any:
        columns = [coords[:, axis] for axis in range(WIDTH)]
        columns.append(jnp.arange(rows, dtype=jnp.int32))
        if way == "XLA":
            return jax.lax.sort(columns, num_keys=WIDTH, is_stable=True)
        return sort_columns(columns, WIDTH + 1)

    return run, jax.ShapeDtypeStruct((rows, WIDTH), "int32")


def one(chip: str, rows: int, way: str) -> dict[str, Any]:
    from voxax.predict import compile_for

    begin = time.perf_counter()
    compile_for(TOPOLOGIES[chip], *program(rows, way))
    spent = time.perf_counter() - begin
    (found,) = outcomes([(chip, "benchmarks.tpu.sort:program", {"rows": rows, "way": way})])
    if isinstance(found, VoxaxError):
        return {"error": str(found)[:600]}
    return {"compile": spent, "seconds": found.seconds(at_least=way == "XLA")}


def measure(chip: str, rows: int, way: str, limit: float) -> dict[str, Any]:
    """In a process of its own, which is ended with the compiler when it takes too long."""
    place = {"chip": chip, "rows": rows, "way": way}
    command = [sys.executable, __file__, "--one", chip, str(rows), way]
    environment = os.environ | {"TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
    child = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        out, _ = child.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
        return place | {"limit": limit}
    return place | json.loads(out.splitlines()[-1])


def lines_of(rows: list[Row]) -> list[str]:
    found = {(r["rows"], r["chip"], r["way"]): r for r in rows}
    lines = []
    for number, chip in dict.fromkeys((r["rows"], r["chip"]) for r in rows):
        ways = [found.get((number, chip, way), {}) for way in WAYS]
        compiled = [
            f"{r['compile']:.1f}"
            if "compile" in r
            else f"> {r['limit']:.0f}"
            if "limit" in r
            else ""
            for r in ways
        ]
        times = [f"{1e6 * r['seconds']:,.0f}" if "seconds" in r else "" for r in ways]
        lines.append([f"{number:,}", chip, *compiled, *times])
    head = ["rows", "chip", "compiled by tiles, s", "by XLA, s", "sorted by tiles, us"]
    table = report.table([*head, "by XLA, us"], lines, (1,))
    return ["# Sorting on TPUs, predicted", "", *table]


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--limit", type=float, default=150, help="seconds for one program")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        chip, number, way = given.one
        print(json.dumps(one(chip, int(number), way)))
        return
    order = {"rows": ROWS, "chip": CHIPS, "way": WAYS}
    kept = Kept(given.out, "tpu_sort", tuple(order), order, lines_of)
    done = set() if given.anew else kept.done(tuple(order))
    for number, chip, way in itertools.product(ROWS, given.chips, WAYS):
        if (number, chip, way) not in done:
            kept.add([measure(chip, number, way, given.limit)])
    kept.show()


if __name__ == "__main__":
    main()
