"""Cycles of dynamic convolution on TPUs: each strategy, product and generation.

    python benchmarks/tpu/dynamic.py

256 x 256 positions, 64 channels, bfloat16, sizes uniform in 3 to 7, each position on its own: so
every block has a position of the largest size. Cycles a position by the compiler's schedules,
whole programs with what XLA does before and after a kernel, on one core of a device; of two cores
each takes half of the positions. Nothing runs. Needs libtpu. Results go to
results/tpu_dynamic.md and .json; what is there is counted again with --anew only.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

sys.path.insert(0, str(Path(__file__).parents[2]))  # `benchmarks`, also as a script

from benchmarks.tpu.program import facts

from voxax.algorithms import Layer, Problem, lookup
from voxax.algorithms.dynamic.grid import box_conv
from voxax.algorithms.kernel import Kernel, Parameters
from voxax.errors import VoxaxError
from voxax.predict import TOPOLOGIES, outcomes
from voxax.products.convolve import sized_spec

RESULTS = Path(__file__).parents[1] / "results"
EXTENT, CHANNELS, SIZES = 256, 64, (3, 4, 5, 6, 7)
PRODUCTS = ("forward", "dgrad", "wgrad")
STRATEGIES = {
    "tiled (blocks)": PRODUCTS,
    "masked": ("forward",),
    "convolution of the largest size, not masked": PRODUCTS,
    "convolution of each size, then a choice": ("forward",),
    "convolutions of each shell, masked": ("forward",),
    "selected, a scene of size 3": ("forward",),
    "selected, a scene of size 5": ("forward",),
}


def problem_of(product: str, dtype: str, size: int) -> Problem:
    """A product over the grid; ``uniform``: the kernel's code for blocks of the largest size."""
    spec = sized_spec((size, size), (1, 1), (1, 1))
    rows = EXTENT**2
    layer = Layer(
        in_capacity=rows,
        out_capacity=rows,
        num_offsets=spec.num_offsets,
        symmetric=False,
        kind="dynamic",
        groups=1,
        precision="highest",
        spec=spec,
        grid=(1, EXTENT, EXTENT),
        uniform="all",
    )
    return Problem(product, layer, CHANNELS, CHANNELS, dtype, "tpu")  # pyright: ignore


def program(
    chip: str, strategy: str, product: str, dtype: str = "bfloat16", form: int = 0
) -> tuple[Any, ...]:
    """Return a program for ``voxax.predict``, over arrays with all their axes."""
    size = int(strategy[-1]) if strategy[-1].isdigit() else max(SIZES)
    x = jax.ShapeDtypeStruct((1, EXTENT, EXTENT, CHANNELS), dtype)
    w = jax.ShapeDtypeStruct((size, size, CHANNELS, CHANNELS), dtype)
    sizes = jax.ShapeDtypeStruct((1, EXTENT, EXTENT), "int32")
    a, b = {"forward": (x, w), "dgrad": (x, w), "wgrad": (x, x)}[product]

    def convolution(x: jax.Array, w: jax.Array) -> jax.Array:
        wide = {"preferred_element_type": jnp.float32}
        return box_conv(x, w, (1, 1), (1, 1), **wide).astype(x.dtype)

    if strategy.startswith("convolution of each"):

        def run(x: jax.Array, w: jax.Array, sizes: jax.Array) -> jax.Array:
            y = jnp.zeros_like(x)
            for number in SIZES:
                low = (size - 1) // 2 - (number - 1) // 2
                own = w[low : low + number, low : low + number]
                y = jnp.where((sizes >= number)[..., None], convolution(x, own), y)
            return y

        return run, a, b, sizes
    if strategy.startswith("convolutions of each shell"):
        return _by_shells, a, b, sizes
    if strategy.startswith(("convolution", "selected")):
        # With respect to either operand a convolution is linear.
        runs = {
            "forward": convolution,
            "dgrad": lambda dy, w: jax.linear_transpose(lambda x: convolution(x, w), x)(dy)[0],
            "wgrad": lambda x, dy: jax.linear_transpose(lambda w: convolution(x, w), w)(dy)[0],
        }
        return runs[product], a, b

    problem = problem_of(product, dtype, size)
    name, platform = ("masked", "any") if strategy == "masked" else ("tiled", "tpu")
    kernel = next(k for k in lookup(name, "dynamic") if k.platform == platform)
    parameters = kernel.space(problem, facts(TOPOLOGIES[chip]))[form]
    run, a, b = _applied(kernel, problem, parameters, a, b)
    return run, a, b, sizes


def _by_shells(x: jax.Array, w: jax.Array, sizes: jax.Array) -> jax.Array:
    """The exact result with every tap once: a convolution for each side that a size adds."""
    center, total = (w.shape[0] - 1) // 2, jnp.zeros(x.shape, jnp.float32)
    before = None
    for size in SIZES:
        low, high = -((size - 1) // 2), size // 2
        sides = [((low, high), (low, high))]
        if before is not None:
            new = low if low < before[0] else high
            sides = [((new, new), (low, high)), (before, (new, new))]
        for box in sides:
            taken = tuple(slice(center + a, center + b + 1) for a, b in box)
            padding = [(-a, b) for a, b in box]
            part = box_conv(
                x, w[taken], (1, 1), (1, 1), padding, preferred_element_type=jnp.float32
            )
            total = total + jnp.where((sizes >= size)[..., None], part, 0)
        before = low, high
    return total.astype(x.dtype)


def _applied(
    kernel: Kernel, problem: Problem, parameters: Parameters, a: Any, b: Any
) -> tuple[Any, Any, Any]:
    """The product over arrays with all their axes, as a network has them."""

    def run(a: jax.Array, b: jax.Array, sizes: jax.Array) -> jax.Array:
        operands = [v.reshape(s) for v, s in zip((a, b), problem.operand_shapes, strict=True)]
        found = kernel.apply(
            problem, parameters, operands[0], operands[1], {"sizes": sizes.reshape(-1)}
        )
        if problem.product == "wgrad":
            return found
        return found.reshape(1, EXTENT, EXTENT, -1)

    return run, a, b


def measure(
    chip: str, only: str, products: list[str], anew: bool, rows: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return the rows of a generation that are asked for and not known."""
    known = {(r["strategy"], r["product"]) for r in rows if r["chip"] == chip and not anew}
    asked_for = [(s, p) for s, of in STRATEGIES.items() for p in of if only in s and p in products]
    cases = [case for case in asked_for if case not in known]
    target = "benchmarks.tpu.dynamic:program"
    asked = [(chip, target, {"strategy": s, "product": p}) for s, p in cases]
    found = []
    for (strategy, product), outcome in zip(cases, outcomes(asked), strict=True):
        row: dict[str, Any] = {"chip": chip, "strategy": strategy, "product": product}
        if isinstance(outcome, VoxaxError):
            found.append(row | {"error": str(outcome)[-600:]})
            continue
        costs = outcome.costs()
        own = sum(cost.cycles for cost in costs if cost.kernel.is_pallas)
        row |= {"cycles": sum(cost.cycles for cost in costs) / EXTENT**2, "own": own / EXTENT**2}
        found.append(row | {"complete": all(cost.complete for cost in costs)})
    return found


def table_of(rows: list[dict[str, Any]]) -> str:
    """The table of docs/dynamic.md."""
    known = {(row["strategy"], row["product"], row["chip"]): row for row in rows}
    lines = [
        "| strategy | product | " + " | ".join(TOPOLOGIES) + " |",
        "|---|---|" + "---:|" * len(TOPOLOGIES),
    ]
    for strategy, products in STRATEGIES.items():
        for product in products:
            cells = []
            for chip in TOPOLOGIES:
                row = known.get((strategy, product, chip))
                if row is None:
                    cells.append("")
                elif "error" in row:
                    cells.append("does not compile")
                else:
                    own = f" ({row['own']:.1f})" if row["own"] else ""
                    cells.append(f"{row['cycles']:.1f}{own}")
            lines.append(f"| {strategy} | {product} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--chips", nargs="*", default=list(TOPOLOGIES), choices=list(TOPOLOGIES))
    parser.add_argument("--only", default="", help="strategies whose name has this")
    parser.add_argument("--products", nargs="*", default=list(PRODUCTS), choices=PRODUCTS)
    parser.add_argument("--anew", action="store_true", help="count again what is known")
    arguments = parser.parse_args()
    RESULTS.mkdir(exist_ok=True)
    kept = RESULTS / "tpu_dynamic.json"
    rows = json.loads(kept.read_text()) if kept.exists() else []
    for chip in arguments.chips:
        found = measure(chip, arguments.only, arguments.products, arguments.anew, rows)
        again = {(row["chip"], row["strategy"], row["product"]) for row in found}
        rows = [r for r in rows if (r["chip"], r["strategy"], r["product"]) not in again] + found
        kept.write_text(json.dumps(rows, indent=1) + "\n")
    text = "# Cycles of dynamic convolution for each position\n\nSee benchmarks/tpu/dynamic.py."
    (RESULTS / "tpu_dynamic.md").write_text(f"{text}\n\n{table_of(rows)}\n")
    print(table_of(rows))


if __name__ == "__main__":
    main()
