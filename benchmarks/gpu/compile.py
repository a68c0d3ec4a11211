"""Compile the Triton kernels without a GPU: registers, spills, shared memory.

    python benchmarks/gpu/compile.py --chips cuda rocm

Takes the kernels as JAX hands them to XLA, and compiles them with the package ``triton``
(``pip install triton``), which needs no GPU: to ``cubin`` for compute capability 9.0, to ``hsaco``
for gfx942. XLA has a Triton of its own, of another version: figures may differ a little. Nothing
runs.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

ROWS, OUT_ROWS, TAPS = 1000, 700, 27
PRODUCTS = ("forward", "dgrad", "wgrad")
# Compute capability and threads of a warp, as Triton names a target.
TARGETS = {"cuda": ("cuda", 90, 32), "rocm": ("hip", "gfx942", 64)}


def problem_of(
    product: Any,
    kind: Any = "dense",
    dtype: str = "bfloat16",
    channels: tuple[int, int] = (48, 96),
    precision: str = "highest",
) -> Any:
    """A problem of 27 taps between 1000 and 700 rows."""
    from voxax.algorithms import Layer, Problem

    c_in, c_out = (channels[0],) * 2 if kind == "depthwise" else channels
    groups = 2 if kind == "grouped" else 1
    layer = Layer(
        in_capacity=ROWS,
        out_capacity=OUT_ROWS,
        num_offsets=TAPS,
        symmetric=False,
        kind=kind,
        groups=groups,
        precision=precision,
    )
    return Problem(product, layer, c_in, c_out, dtype, "gpu")


def lowered_kernel(chip: Any, problem: Any, parameters: Any, apply: Any = None) -> Any:
    """A product alone, for a chip of ``lowered.CHIPS``; by default with ``implicit_gemm``."""
    import jax
    import jax.numpy as jnp
    from benchmarks.gpu.lowered import lower

    from voxax.algorithms.depthwise import gpu as depthwise_gpu
    from voxax.algorithms.implicit_gemm import gpu
    from voxax.geometry import PAIR_ROOM

    shapes = {
        "sorted_neighbors": (TAPS + 1, OUT_ROWS),
        "transposed_sorted_neighbors": (TAPS + 1, ROWS),
        "pairs": (2, TAPS * OUT_ROWS + PAIR_ROOM),
        "pair_starts": (TAPS + 1,),
    }
    module = depthwise_gpu if problem.layer.kind == "depthwise" else gpu
    names = module.TRITON.views_of(problem, parameters)
    views = {name: jax.ShapeDtypeStruct(shapes[name], jnp.int32) for name in names}
    x = jax.ShapeDtypeStruct((ROWS, problem.in_channels), problem.dtype)
    dy = jax.ShapeDtypeStruct((OUT_ROWS, problem.out_channels), problem.dtype)
    w = jax.ShapeDtypeStruct(problem.weight_shape, problem.dtype)
    operands = {"forward": (x, w), "dgrad": (dy, w), "wgrad": (x, dy)}[problem.product]
    chosen = module.apply if apply is None else apply

    def run(a: Any, b: Any, views: Any) -> Any:
        return chosen(problem, parameters, a, b, views)

    return lower(chip, run, *operands, views)


def compiled(chip: str, module: bytes, warps: int, stages: int, folder: Path) -> Any:
    """Compile a module in MLIR's bytecode with Triton."""
    import triton
    from triton.backends.compiler import GPUTarget

    path = folder / "kernel.ttir"
    path.write_text(as_text(module))
    options = {"num_warps": warps, "num_stages": stages}
    return triton.compile(str(path), target=GPUTarget(*TARGETS[chip]), options=options)


def as_text(module: bytes) -> str:
    """MLIR's bytecode as text, by the dialects that jaxlib has."""
    from jax._src.lib.mlir import ir
    from jax._src.lib.triton import dialect

    context = ir.Context()
    dialect.register_dialect(context)
    with context:
        return str(ir.Module.parse(module))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chips", nargs="+", choices=sorted(TARGETS), default=sorted(TARGETS))
    parser.add_argument("--channels", type=int, default=64)
    parser.add_argument("--most", type=int, default=99, help="candidates of each problem")
    options = parser.parse_args()
    from benchmarks.gpu.lowered import CHIPS, triton_modules

    from voxax.algorithms.depthwise import gpu as depthwise_gpu
    from voxax.algorithms.implicit_gemm import gpu

    print("| chip | product | kind | dtype | parameters | registers | spills | shared | expected |")
    print("|---|---|---|---|---|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("TRITON_CACHE_DIR", folder)
        grid = itertools.product(
            options.chips, PRODUCTS, ("dense", "depthwise"), ("bfloat16", "float32")
        )
        for name, product, kind, dtype in grid:
            chip = CHIPS[name]
            problem = problem_of(product, kind, dtype, (options.channels,) * 2)
            module = depthwise_gpu if kind == "depthwise" else gpu
            found = module.space(problem, chip.info)
            for parameters in found[: options.most]:
                lowered = lowered_kernel(chip, problem, parameters)
                ((_, module, warps, stages),) = triton_modules(lowered)
                made = compiled(name, module, warps, stages, Path(folder))
                shown = " ".join(f"{k}={v}" for k, v in parameters if k != "body")
                expected = "" if kind == "depthwise" else gpu.shared_bytes(problem, parameters)
                facts = (name, product, kind, dtype, shown, *_usage(made), expected)
                print(f"| {' | '.join(map(str, facts))} |", flush=True)


def _usage(made: Any) -> tuple[Any, Any, int]:
    """Registers of a thread, spilled ones, bytes of shared memory."""
    registers = spills = ""
    text = made.asm.get("amdgcn", "")
    for line in text.splitlines():
        words = line.split()
        if len(words) == 2 and words[0] == ".vgpr_count:":
            registers = words[1]
        if len(words) == 2 and words[0] == ".vgpr_spill_count:":
            spills = words[1]
    if "cubin" in made.asm:
        registers, spills = _of_cubin(made.asm["cubin"])
    return registers, spills, made.metadata.shared


def _of_cubin(cubin: bytes) -> tuple[Any, Any]:
    """By ``cuobjdump``, where Triton brought it."""
    import re
    import subprocess

    import triton

    tools = list(Path(triton.__file__).parent.rglob("cuobjdump"))
    if not tools:
        return "", ""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run(
            [str(tools[0]), "-res-usage", file.name], capture_output=True, text=True, check=False
        ).stdout
    registers, stack = re.search(r"REG:(\d+)", text), re.search(r"STACK:(\d+)", text)
    return registers and registers[1], stack and stack[1]


if __name__ == "__main__":
    main()
