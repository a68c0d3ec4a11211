"""Does a whole training step of MinkUNet18 compile for TPUs, and fit into their memory?

    python benchmarks/tpu/minkunet_step.py

Kernel maps, forward, loss, gradients and AdamW in one program, bfloat16 with float32 parameters,
every convolution pinned to ``implicit_gemm``. Levels have the capacities that the recorded sweep
fits (vx.Plan). The compiler's account of memory: what the step reads, writes and needs in between,
with nothing donated; and the least time by its schedules, each tile visited once. The lower bound:
of each product its features, weights and results once through HBM, or its pairs at the peak rate;
pairs are those of recorded scenes. A process for each program. Nothing runs. Needs libtpu. Results
go to results/tpu_minkunet_step.md and .json after each program; a run goes on where another was
stopped and takes again what was made of other kernels, --anew begins again.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # `benchmarks`, also as a script

from benchmarks import report
from benchmarks.tpu.counted import CHIPS, Kept, Row, options
from benchmarks.tpu.program import digest

CAPACITIES = (16_384, 65_536, 262_144)
CHANNELS, CLASSES, LEVELS = 4, 20, 4


@functools.cache
def planned(capacity: int, kind: str = "lidar") -> Any:
    """Voxels of so many rows, whose levels have capacities fitted to a record; without maps."""
    import jax.numpy as jnp
    import numpy as np

    import voxax as vx
    from voxax.nn.functional import spatially_sparse_conv
    from voxax.tuning.occupancy import recorded

    def levels(voxels: Any) -> Any:
        """Return the maps of a MinkUNet, and nothing else."""
        for _ in range(LEVELS):
            voxels = spatially_sparse_conv(voxels, jnp.ones((8, 1, 1)), 2, 2)
        return voxels

    def some(number: int, capacity: int) -> Any:
        rows = recorded(kind)[:number]
        coords = np.column_stack([np.zeros(len(rows), np.int32), rows])
        features = np.ones((len(rows), 1), np.float32)
        return vx.Voxels.from_coords(coords, features, batch_size=1, capacity=capacity)

    whole = len(recorded(kind))
    sweep = some(whole, whole)
    plan = vx.Plan.record(levels, sweep).fitted([sweep])
    # Only shapes matter: few rows never make a level grow.
    return plan.attach(some(LEVELS, capacity), maps=False)


def step(
    capacity: int, algorithm: str | None = "implicit_gemm", blocks: int = 2, width: float = 1.0
) -> tuple[Any, ...]:
    """Return the program to compile; ``blocks`` residual blocks a stage, 2 in MinkUNet18."""
    import jax.numpy as jnp

    from voxax.models import MinkUNet

    def make() -> Any:
        return MinkUNet(CHANNELS, CLASSES, blocks=(blocks,) * 8, width=width, dtype=jnp.bfloat16)

    return training_step(make, given(planned(capacity), CHANNELS), algorithm)


def given(voxels: Any, channels: int) -> Any:
    """Return the shapes of such voxels with so many channels in bfloat16."""
    import dataclasses

    import jax
    import jax.numpy as jnp

    features = jnp.zeros((voxels.capacity, channels), jnp.bfloat16)
    return jax.eval_shape(lambda: dataclasses.replace(voxels, features=features))


def training_step(make: Any, voxels: Any, algorithm: str | None) -> tuple[Any, ...]:
    """Return a step of AdamW for a network that ``make`` makes, and the shapes of its arguments."""
    import jax
    import optax
    from flax import nnx

    import voxax as vx
    from voxax.models.training import masked_cross_entropy

    model = nnx.eval_shape(make)
    graph, params, rest = nnx.split(model, nnx.Param, ...)
    optimizer = optax.adamw(1e-3)

    def train(params: Any, rest: Any, state: Any, voxels: Any, labels: jax.Array) -> Any:
        def loss_of(params: Any) -> tuple[jax.Array, Any]:
            module = nnx.merge(graph, params, rest, copy=True)
            out = module(voxels)
            new = nnx.split(module, nnx.Param, ...)[2]
            return masked_cross_entropy(out.features, labels), (new, out.num_dropped)

        with vx.algorithms(forward=algorithm, backward=algorithm):
            (loss, (new, dropped)), grads = jax.value_and_grad(loss_of, has_aux=True)(params)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), new, state, loss, dropped

    labels = jax.ShapeDtypeStruct((voxels.capacity,), "int32")
    state = jax.eval_shape(optimizer.init, params)
    arguments = (params, rest, state, voxels, labels)
    return train, *jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), arguments)


def lower_bound(chip: str, capacity: int) -> float:
    """Least seconds of the step's convolutions: each one's features, weights and results once
    through HBM, or the products of its neighbors at the peak rate.
    """
    from voxax.explanation.inspect import find_products
    from voxax.explanation.lower_bound import PairCounter, lower_bound_of
    from voxax.predict.chip import chip_named

    facts, counter, seconds = chip_named(chip), PairCounter(), 0.0
    function, *arguments = step(capacity)
    for call in find_products(function, tuple(arguments), "tpu"):
        problem = call.problem
        values = sum(map(math.prod, (*problem.operand_shapes, problem.result_shape)))
        operations = lower_bound_of(problem, counter.estimate(problem), None).operations
        moved = 2 * values / facts.device_bandwidth
        seconds += max(operations / (facts.peak * facts.cores), moved)
    return seconds


def measure(chip: str, capacity: int) -> Row:
    sizes = [rows for _, rows in planned(capacity).geometry.level_capacities]
    row = {"chip": chip, "capacity": capacity, "levels": sizes, "code": digest("step")}
    row["lower_bound"] = lower_bound(chip, capacity)
    return row | compiled(chip, "benchmarks.tpu.minkunet_step:step", capacity=capacity)


def compiled(chip: str, target: str, **arguments: Any) -> dict[str, Any]:
    """Compile a program in a process of its own, and return what its schedules say."""
    from voxax.cli.bench import passes_of
    from voxax.coords import tile_sort
    from voxax.errors import VoxaxError
    from voxax.predict import outcomes

    (found,) = outcomes([(chip, target, arguments)])
    if isinstance(found, VoxaxError):
        return {"error": str(found)[:1000]}
    passes = {kernel.name: passes_of(kernel) for kernel in found.kernels}
    pallas = [c for c in found.costs(passes) if c.kernel.is_pallas]
    windows = [c for c in pallas if tile_sort.NAME not in c.kernel.name]
    kinds: dict[str, float] = {}
    for cost in found.costs(passes):
        kind = _kind(cost.kernel.name)
        kinds[kind] = kinds.get(kind, 0.0) + cost.seconds
    return {
        "memory": found.chip.hbm * found.chip.cores,
        "temporary": found.temporary,
        "arguments": found.arguments,
        "results": found.results,
        "window_kernels": len(windows),
        "seconds": found.seconds(passes, at_least=True),
        "open": len(found.open(passes)),
        "kernel_seconds": sum(cost.seconds for cost in windows),
        "kinds": dict(sorted(kinds.items(), key=lambda item: -item[1])),
    }


def _kind(name: str) -> str:
    """The name of a kernel without its number."""
    return name.rstrip(".0123456789")


def kinds_of(rows: list[Row], most: int = 6) -> list[str]:
    """A line for each program: the kinds of kernels that take most of its time."""
    lines = []
    for r in rows:
        if kinds := r.get("kinds"):
            parts = [f"{kind} {1e3 * seconds:.1f}" for kind, seconds in list(kinds.items())[:most]]
            rest = sum(list(kinds.values())[most:])
            words = ", ".join([*parts, f"others {1e3 * rest:.1f}"])
            lines.append([f"{r['capacity']:,}", r["chip"], words])
    return report.table(["capacity", "chip", "ms by kind of kernel"], lines, (1, 2))


def memory_of(row: Row) -> list[str]:
    """Cells of a program's memory: temporary, the rest, and both of the whole."""
    kept = row["arguments"] + row["results"]
    share = (row["temporary"] + kept) / row["memory"]
    return [f"{row['temporary'] / 1e6:,.0f}", f"{kept / 1e6:,.0f}", f"{share:.1%}"]


def chip_of(row: Row) -> str:
    """The cell of the generation; it says where a program is of other code."""
    return row["chip"] + ("" if row.get("code") == digest("step") else ", of older kernels")


def table_of(rows: list[Row]) -> list[str]:
    lines = []
    for r in rows:
        levels = " ".join(f"{n:,}" for n in r["levels"])
        cells = [f"{r['capacity']:,}", levels, chip_of(r)]
        if "error" in r:
            cells += ["does not compile", *[""] * 6]
        else:
            windows = f"{r['kernel_seconds'] / r['seconds']:.0%}"
            cells += [*memory_of(r), r["window_kernels"], f"{1e3 * r['seconds']:.1f}", windows]
            cells.append(_bound(r))
        lines.append(cells)
    head = ["capacity", "levels", "chip", "temporary, MB", "arguments and results, MB"]
    head += ["of the memory", "window kernels", "ms at least", "of it in window kernels"]
    return report.table([*head, "lower bound of the products, ms"], lines, (1, 2))


def _bound(row: Row) -> str:
    bound = row.get("lower_bound")
    return f"{1e3 * bound:.2f}, {row['seconds'] / bound:.0f}x" if bound else ""


def lines_of(rows: list[Row]) -> list[str]:
    title = "# A training step of MinkUNet18 on TPUs, predicted"
    return [title, "", *table_of(rows), "", *kinds_of(rows)]


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--capacities", nargs="*", type=int, default=list(CAPACITIES))
    chosen = parser.parse_args()
    # Choices of this program, not of what somebody has measured elsewhere.
    os.environ["VOXAX_AUTOTUNE"] = "off"
    order = {"capacity": None, "chip": CHIPS}
    kept = Kept(chosen.out, "tpu_minkunet_step", tuple(order), order, lines_of)
    done = set() if chosen.anew else kept.done(tuple(order), lambda row: digest("step"))
    for capacity, chip in itertools.product(chosen.capacities, chosen.chips):
        if (capacity, chip) not in done:
            new = measure(chip, capacity)
            kept.add([new])
            print(new.get("error", table_of([new])[2]), flush=True)
    kept.show()


if __name__ == "__main__":
    main()
