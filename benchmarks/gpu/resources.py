"""What each Triton kernel needs on GPUs from a T4 on, none of which is here.

    pip install "voxax[triton]" && JAX_PLATFORMS=cpu python benchmarks/gpu/resources.py

Compiles the first candidate of each product for a map of 98,304 rows, and writes
``benchmarks/results/gpu_resources.json`` and ``.md``. Takes some minutes. Nothing runs.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks import report  # noqa: E402
from benchmarks.gpu.compiled import kernel_of, resources  # noqa: E402
from benchmarks.gpu.lowered import PRODUCTS, module_of, problem_of  # noqa: E402
from benchmarks.gpu.sheets import gpu_sheet, known_gpus  # noqa: E402

ROWS = 98_304
CASES = (
    ("dense", "float16", 32),
    ("dense", "float16", 64),
    ("dense", "float16", 128),
    ("dense", "float16", 256),
    ("dense", "float32", 64),
    ("depthwise", "float16", 64),
)
COLUMNS = {
    "target": "GPU",
    "case": "weights",
    "product": "product",
    "tile": "tile",
    "stages": "stages",
    "warps": "warps",
    "registers": "registers",
    "spilled": "spilled",
    "shared_bytes": "shared, bytes",
    "buffers": "steps in shared memory",
    "wide": "16-byte copies",
    "narrow": "smaller",
    "programs_per_core": "programs a core",
    "occupancy": "warps of a core",
    "products": "matrix instructions",
}


def row_of(target: str, problem: Any, case: tuple[str, str, int]) -> dict[str, Any]:
    """One row of the table."""
    sheet = gpu_sheet(target)
    parameters = module_of(problem).space(problem, sheet.info)[0]
    kernel = kernel_of(problem, parameters, target)
    found = resources(kernel, target)
    # Of an RDNA GPU a warp has 32 threads, and JAX counts 64.
    launched = 64 if target.startswith("gfx") else 32
    warps = kernel.launch.warps * launched // (sheet.info.lane_count or launched)
    return {
        "target": target,
        "case": f"{case[0]} {case[1]} C{case[2]}",
        "product": problem.product,
        "tile": tile_of(dict(parameters)),
        "stages": kernel.launch.stages,
        "warps": kernel.launch.warps,
        **dataclasses.asdict(found),
        "occupancy": f"{found.programs_per_core * warps} of {sheet.core_warps}",
    }


def tile_of(values: dict[str, Any]) -> str:
    """Rows or pairs, and channels of a step and of a program."""
    names = ("fwd_block_size", "gemm_block_size", "in_block", "out_block", "channel_block")
    return " x ".join(str(values[name]) for name in names if name in values)


def table(rows: list[dict[str, Any]]) -> list[str]:
    """The rows in Markdown."""
    cells = []
    for row in rows:
        shown = {**row, "products": ", ".join(f"{n} {c}" for n, c in row["products"].items())}
        cells.append([shown[name] for name in COLUMNS])
    return report.table(list(COLUMNS.values()), cells, len(COLUMNS))


def main() -> None:
    options = report.options(__doc__).parse_args()
    rows = []
    for target in known_gpus():
        for case in CASES:
            for product in PRODUCTS:
                problem = problem_of(product, *case[:2], (case[2], case[2]))
                problem = problem.with_layer(in_capacity=ROWS, out_capacity=ROWS)
                if reason := module_of(problem).supports(problem, gpu_sheet(target).info):
                    print(target, case, reason)
                    continue
                rows.append(row_of(target, problem, case))
                print(rows[-1], flush=True)
    version = importlib.metadata.version("triton")
    head = (
        "# Resources of the Triton kernels\n\n"
        f"`benchmarks/gpu/resources.py`, triton {version}; compiled, not run. The first candidate "
        f"of each\nproduct for 27 taps and {ROWS:,} rows. Tile: rows or pairs, then channels.\n"
        "*Steps in shared memory* are those of the operand that has fewest; 0 where copies are\n"
        "ahead in registers. *16-byte copies* of NVIDIA's GPUs are `cp.async`, which sm_75 has "
        "not.\nRefused, since Triton multiplies without matrix instructions and spills: half "
        "precision on\nsm_75, float32 on gfx1100 and gfx1201.\n\n"
    )
    values = {"triton": version, "rows": rows}
    report.write(options.out, "gpu_resources", values, [*head.splitlines(), *table(rows)])


if __name__ == "__main__":
    main()
