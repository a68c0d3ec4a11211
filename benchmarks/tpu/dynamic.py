"""Cycles of dynamic convolution on TPUs: each strategy, product and generation.

    python benchmarks/tpu/dynamic.py

256 x 256 positions, 64 channels, bfloat16, sizes uniform in 3 to 7, each position on its own: so
every block has a position of the largest size. Cycles a position by the compiler's schedules,
whole programs with what XLA does before and after a kernel, on one core of a device; of two cores
each takes half of the positions. Nothing runs. Needs libtpu. Results go to
results/tpu_dynamic.md and .json; what is there is counted again with --anew only, and --table
writes the table anew without counting.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

sys.path.insert(0, str(Path(__file__).parents[2]))  # `benchmarks`, also as a script

from benchmarks import report
from benchmarks.tpu.counted import CHIPS, Kept, Row, options
from benchmarks.tpu.program import facts

from voxax.errors import AlgorithmError, VoxaxError
from voxax.kernels import GridSizes, Layer, Problem, lookup
from voxax.kernels.dynamic.grid import box_conv
from voxax.kernels.kernel import Kernel, Parameters
from voxax.nn.dynamic.bank import by_convolutions
from voxax.predict import TOPOLOGIES, CompiledProgram, Cost, outcomes
from voxax.products.convolution import sized_spec

EXTENT, CHANNELS, SIZES = 256, 64, (3, 4, 5, 6, 7)
PRODUCTS = ("forward", "dgrad", "wgrad")
LANES = "`tiled` (planes in lanes)"
BLOCKS = "`tiled` (blocks)"
UNMASKED = "XLA, one convolution of the largest size, not masked"
SHELLS = "XLA, a convolution of each shell, masked"
CHOICE = "XLA, a convolution of each size, then a choice"
BANK = "XLA, convolutions of sizes 3, 5 and 7, then a choice"
SELECTED = "`selected` (`lax.switch`), a scene of size"
STRATEGIES = {
    LANES: PRODUCTS,
    BLOCKS: PRODUCTS,
    SHELLS: PRODUCTS,
    CHOICE: ("forward",),
    "`masked` (gather)": ("forward",),
    "`masked` (slices)": ("forward",),
    "`grouped`": ("forward",),
    BANK: ("forward",),
    **{f"{SELECTED} {size}": ("forward",) for size in (3, 5, 7)},
    # v4's compiler was not done with its wgrad, a kernel of 256 x 256, after a quarter of an hour.
    UNMASKED: ("forward", "dgrad"),
}
# The kernel, its platform, the place of the parameters in its space or which they are the first to
# have as their body, and how uniform sizes are.
KERNELS = {
    LANES: ("tiled", "tpu", "lanes", "all"),
    BLOCKS: ("tiled", "tpu", "blocks", "all"),
    "`masked` (gather)": ("masked", "any", 0, ""),
    "`masked` (slices)": ("masked", "any", 2, ""),
    "`grouped`": ("grouped", "any", 0, ""),
    SELECTED: ("selected", "any", 0, "scenes"),
}
EXACT = ("`masked` (gather)", "`masked` (slices)", "`grouped`")
TOO_LARGE = "no block fits the chip's vector memory"
OPEN_LOOP = "the number of passes of its loops is known at run time only"


def problem_of(product: str, dtype: str, uniform: str) -> Problem:
    """A product over the grid; ``uniform="all"``: blocks have code for the largest size alone."""
    spec = sized_spec((max(SIZES),) * 2, (1, 1), (1, 1))
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
        sizes=GridSizes((1, EXTENT, EXTENT), uniform=uniform),  # pyright: ignore
    )
    return Problem(product, layer, CHANNELS, CHANNELS, dtype, "tpu")  # pyright: ignore


def program(
    chip: str, strategy: str, product: str, dtype: str = "bfloat16", form: int | None = None
) -> tuple[Any, ...]:
    """Return a program for ``voxax.predict``, over arrays with all their axes.

    Args:
      chip: the generation.
      strategy: of ``STRATEGIES``; those of ``SELECTED`` are one program, without a size.
      product, dtype: of the product.
      form: which of the kernel's parameters; None: those of the table.
    """
    size = max(SIZES)
    x = jax.ShapeDtypeStruct((1, EXTENT, EXTENT, CHANNELS), dtype)
    w = jax.ShapeDtypeStruct((size, size, CHANNELS, CHANNELS), dtype)
    sizes = jax.ShapeDtypeStruct((1, EXTENT, EXTENT), "int32")
    a, b = {"forward": (x, w), "dgrad": (x, w), "wgrad": (x, x)}[product]
    if strategy in KERNELS:
        name, platform, place, uniform = KERNELS[strategy]
        problem = problem_of(product, dtype, uniform)
        kernel = next(k for k in lookup(name, "dynamic") if k.platform == platform)
        parameters = kernel.space(problem, facts(TOPOLOGIES[chip]))
        if isinstance(place, str):
            bodies = [dict(p)["body"] for p in parameters]
            if place not in bodies:
                raise AlgorithmError(f"{place}: {TOO_LARGE}")
            place = bodies.index(place)
        run = _applied(kernel, problem, parameters[place if form is None else form])
        return run, a, b, sizes

    forward = {UNMASKED: _not_masked, SHELLS: _by_shells, CHOICE: _by_choice, BANK: _bank}[strategy]
    # With respect to either operand a convolution is linear.
    runs = {
        "forward": forward,
        "dgrad": lambda dy, w, s: jax.linear_transpose(lambda x: forward(x, w, s), x)(dy)[0],
        "wgrad": lambda x, dy, s: jax.linear_transpose(lambda w: forward(x, w, s), w)(dy)[0],
    }
    return runs[product], a, b, sizes


def _convolution(x: jax.Array, w: jax.Array) -> jax.Array:
    wide = {"preferred_element_type": jnp.float32}
    return box_conv(x, w, (1, 1), (1, 1), **wide).astype(x.dtype)


def _not_masked(x: jax.Array, w: jax.Array, sizes: jax.Array) -> jax.Array:
    """Not the result: every position has all taps."""
    return _convolution(x, w)


def _by_choice(x: jax.Array, w: jax.Array, sizes: jax.Array) -> jax.Array:
    """The exact result: a convolution of each size, of which each position takes its own."""
    y = jnp.zeros_like(x)
    for size in SIZES:
        low = (len(w) - 1) // 2 - (size - 1) // 2
        own = w[low : low + size, low : low + size]
        y = jnp.where((sizes >= size)[..., None], _convolution(x, own), y)
    return y


def _bank(x: jax.Array, w: jax.Array, sizes: jax.Array) -> jax.Array:
    """Approximate: sizes 4 and 6 take a neighbor's kernel."""
    spec = sized_spec(w.shape[:2], (1, 1), (1, 1))
    near = jnp.asarray((0, 3, 3, 3, 3, 5, 5, 7))[sizes]
    return by_convolutions(x, w.reshape(-1, *w.shape[2:]), near, spec, (3, 5, 7))


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


def _applied(kernel: Kernel, problem: Problem, parameters: Parameters) -> Any:
    """The product over arrays with all their axes, as a network has them."""

    def run(a: jax.Array, b: jax.Array, sizes: jax.Array) -> jax.Array:
        operands = [v.reshape(s) for v, s in zip((a, b), problem.operand_shapes, strict=True)]
        found = kernel.apply(
            problem, parameters, operands[0], operands[1], {"sizes": sizes.reshape(-1)}
        )
        if problem.product == "wgrad":
            return found
        return found.reshape(1, EXTENT, EXTENT, -1)

    return run


def measure(chip: str, cases: list[tuple[str, str]]) -> list[dict[str, Any]]:
    """Return a row for each strategy and product."""
    # One program has the kernels of all sizes.
    programs = dict.fromkeys((SELECTED if s.startswith(SELECTED) else s, p) for s, p in cases)
    target = "benchmarks.tpu.dynamic:program"
    asked = [(chip, target, {"strategy": s, "product": p}) for s, p in programs]
    found = dict(zip(programs, outcomes(asked), strict=True))
    rows = []
    for strategy, product in cases:
        row: dict[str, Any] = {"chip": chip, "strategy": strategy, "product": product}
        size = int(strategy[-1]) if strategy.startswith(SELECTED) else None
        outcome = found[strategy if size is None else SELECTED, product]
        rows.append(row | _counted(outcome, size))
    return rows


def _counted(outcome: CompiledProgram | VoxaxError, size: int | None) -> dict[str, Any]:
    """Return cycles of a program, of the branch of one size where it has several."""
    if isinstance(outcome, VoxaxError):
        return {"error": str(outcome)[-600:]}
    costs = outcome.costs() if size is None else _of_size(outcome.costs(), size)
    missing = [cost for cost in costs if not cost.complete]
    if any(cost.kernel.in_open_loop for cost in missing):
        return {"not counted": OPEN_LOOP}
    own = sum(cost.cycles for cost in costs if cost.kernel.is_pallas)
    return {
        "cycles": sum(cost.cycles for cost in costs) / EXTENT**2,
        "own": own / EXTENT**2,
        "without a schedule": [cost.kernel.name for cost in missing],
    }


def _of_size(costs: Sequence[Cost], size: int) -> list[Cost]:
    """Kernels that run where ``lax.switch`` takes the branch of a size.

    Copies have no label. Between two branches stand those of the results of one and of the operands
    of the next. The branches of all sizes have results of one shape, so both count as the latter's.
    """
    kept: list[Cost] = []
    unlabeled: list[Cost] = []
    inside = False
    for cost in costs:
        branches = re.findall(r"branch_(\d+)_fun", cost.kernel.label)
        if not branches:
            unlabeled.append(cost)
            continue
        own = int(branches[0]) == size
        kept += [*(unlabeled if own or not inside else ()), *((cost,) if own else ())]
        unlabeled, inside = [], True
    return kept + unlabeled


def cell(row: dict[str, Any] | None) -> str:
    """A cell of the table."""
    if row is None:
        return ""
    if "error" in row:
        return "does not fit" if TOO_LARGE in row["error"] else "does not compile"
    if "not counted" in row:
        return "not countable"
    own = f" ({row['own']:.1f})" if row["own"] else ""
    return f"{'≥ ' if row['without a schedule'] else ''}{row['cycles']:.1f}{own}"


def lines_of(rows: list[Row]) -> list[str]:
    """Return the tables: cycles, and how they relate to those of planes in lanes."""
    known = {(row["strategy"], row["product"], row["chip"]): row for row in rows}
    counted, related, left = [], [], []
    for strategy, products in STRATEGIES.items():
        for product in products:
            cells = [cell(known.get((strategy, product, chip))) for chip in CHIPS]
            if any(cells):
                counted.append([strategy, product, *cells])
            else:
                left.append(f"{strategy}, {product}")
    for words, of in (
        ("blocks", (BLOCKS,)),
        ("exact masked maximum, the faster of XLA's two", (SHELLS, CHOICE)),
        ("the fastest other exact strategy", (SHELLS, CHOICE, *EXACT)),
        ("`selected`, a scene of the largest size", (f"{SELECTED} {max(SIZES)}",)),
        ("one convolution, which is not the result", (UNMASKED,)),
    ):
        for product in PRODUCTS:
            cells = []
            for chip in CHIPS:
                own = known.get((LANES, product, chip), {}).get("cycles")
                others = [known.get((s, product, chip), {}).get("cycles") for s in of]
                others = [cycles for cycles in others if cycles]
                cells.append(f"{min(others) / own:.2f}" if own and others else "")
            if any(cells):
                related.append([words, product, *cells])
    head = ["strategy", "product", *CHIPS]
    return [
        "# Cycles of dynamic convolution for each position",
        "",
        "See benchmarks/tpu/dynamic.py.",
        "",
        *report.table(head, counted, 2),
        "",
        "≥: the compiler wrote no schedule of some small operation, which is left out. "
        f"Not countable: {OPEN_LOOP}. An empty cell was not counted yet.",
        *(["", f"Not counted yet for any chip: {'; '.join(left)}."] if left else []),
        "",
        "Cycles relative to those of planes in lanes:",
        "",
        *report.table(head, related, 2),
    ]


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--only", default="", help="strategies whose name has this")
    parser.add_argument("--products", nargs="*", default=list(PRODUCTS), choices=PRODUCTS)
    parser.add_argument("--table", action="store_true", help="count nothing")
    given = parser.parse_args()
    fields = "strategy", "product", "chip"
    kept = Kept(given.out, "tpu_dynamic", fields, {}, lines_of)
    done = set() if given.anew else kept.done(fields)
    for chip in [] if given.table else given.chips:
        cases = [
            (strategy, product)
            for strategy, products in STRATEGIES.items()
            for product in products
            if given.only in strategy and product in given.products
            and (strategy, product, chip) not in done
        ]  # fmt: skip
        kept.add(measure(chip, cases))
    kept.add([])
    kept.show()


if __name__ == "__main__":
    main()
