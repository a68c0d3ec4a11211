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

import argparse
import functools
import json
import math
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # `benchmarks`, also as a script

from benchmarks.tpu.program import digest

RESULTS = Path(__file__).parents[1] / "results"
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


def measure(chip: str, capacity: int) -> dict[str, Any]:
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


def kinds_of(rows: list[dict[str, Any]], most: int = 6) -> str:
    """A line for each program: the kinds of kernels that take most of its time."""
    lines = ["| capacity | chip | ms by kind of kernel |", "|---:|---|---|"]
    for r in rows:
        if kinds := r.get("kinds"):
            parts = [f"{kind} {1e3 * seconds:.1f}" for kind, seconds in list(kinds.items())[:most]]
            rest = sum(list(kinds.values())[most:])
            parts.append(f"others {1e3 * rest:.1f}")
            lines.append(f"| {r['capacity']:,} | {r['chip']} | {', '.join(parts)} |")
    return "\n".join(lines)


def table_of(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| capacity | levels | chip | temporary, MB | arguments and results, MB | of the memory "
        "| window kernels | ms at least | of it in window kernels "
        "| lower bound of the products, ms |",
        "|---:|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for r in rows:
        levels = " ".join(f"{n:,}" for n in r["levels"])
        older = "" if r.get("code") == digest("step") else ", of older kernels"
        head = f"| {r['capacity']:,} | {levels} | {r['chip']}{older} "
        if "error" in r:
            lines.append(f"{head}| does not compile | | | | | | |")
            continue
        kept = r["arguments"] + r["results"]
        lines.append(
            f"{head}| {r['temporary'] / 1e6:,.0f} | {kept / 1e6:,.0f} "
            f"| {(r['temporary'] + kept) / r['memory']:.1%} | {r['window_kernels']} "
            f"| {1e3 * r['seconds']:.1f} | {r['kernel_seconds'] / r['seconds']:.0%} "
            f"| {_bound(r)} |"
        )
    return "\n".join(lines)


def _bound(row: dict[str, Any]) -> str:
    bound = row.get("lower_bound")
    return f"{1e3 * bound:.2f}, {row['seconds'] / bound:.0f}x" if bound else ""


def whole(rows: list[dict[str, Any]]) -> str:
    """Both tables."""
    return f"{table_of(rows)}\n\n{kinds_of(rows)}"


def known(kept: Path) -> list[dict[str, Any]]:
    """Return the rows of a file of results."""
    return json.loads(kept.read_text()) if kept.exists() else []


def keep(kept: Path, new: dict[str, Any], by: tuple[str, ...], title: str, table: Any) -> None:
    """Put a row in the place of that with the same ``by`` in a file, and write its table."""
    from voxax.predict import TOPOLOGIES

    def key(row: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(row[name] for name in by)

    # Another run may have written meanwhile.
    rows = [r for r in known(kept) if (key(r), r["chip"]) != (key(new), new["chip"])]
    rows.append(new)
    rows.sort(key=lambda r: (key(r), list(TOPOLOGIES).index(r["chip"])))
    kept.write_text(json.dumps(rows, indent=1) + "\n")
    kept.with_suffix(".md").write_text(f"# {title}, predicted\n\n{table(rows)}\n")
    print(new.get("error", table([new]).splitlines()[2]), flush=True)


def main() -> None:
    from voxax.predict import TOPOLOGIES

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--chips", nargs="*", default=list(TOPOLOGIES), choices=list(TOPOLOGIES))
    parser.add_argument("--capacities", nargs="*", type=int, default=list(CAPACITIES))
    parser.add_argument("--anew", action="store_true", help="compile again what is known")
    arguments = parser.parse_args()
    # Choices of this program, not of what somebody has measured elsewhere.
    os.environ["VOXAX_AUTOTUNE"] = "off"
    kept = RESULTS / "tpu_minkunet_step.json"
    before = [] if arguments.anew else known(kept)
    done = {(r["chip"], r["capacity"]) for r in before if r.get("code") == digest("step")}
    for capacity in arguments.capacities:
        for chip in arguments.chips:
            if (chip, capacity) not in done:
                new = measure(chip, capacity)
                keep(kept, new, ("capacity",), "A training step of MinkUNet18 on TPUs", whole)
    print(whole(known(kept)))


if __name__ == "__main__":
    main()
