"""Triton kernels compiled for GPUs that are not present: registers, spills, memory, copies.

The package ``triton`` (in ``voxax[triton]``) compiles without a GPU, and brings NVIDIA's assembler.
"""

from __future__ import annotations

import collections
import dataclasses
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import jax
from benchmarks.gpu.lowered import alone
from benchmarks.gpu.sheets import gpu_sheet

from voxax.hardware import targeting
from voxax.kernels.triton_call import Compilation, noting_calls


@dataclasses.dataclass(frozen=True)
class Resources:
    """What a compiled kernel needs.

    Attributes:
      registers: of a thread; on AMD's GPUs vector registers, with those of accumulators.
      spilled: bytes of a thread that are in memory instead.
      shared_bytes: of a program.
      wide, narrow: copies of 16 bytes, and of fewer, from the operands into shared memory.
      buffers: steps that are in shared memory at once, of the operand that has fewest; 0 where
        copies are not ahead.
      products: matrix instructions, by name.
      programs_per_core: that run at once.
    """

    registers: int
    spilled: int
    shared_bytes: int
    wide: int
    narrow: int
    buffers: int
    products: dict[str, int]
    programs_per_core: int


def kernel_of(problem: Any, parameters: Any, target: str) -> Compilation:
    """The Triton kernel that a product calls on a target of :func:`gpu_sheet`."""
    run, arguments = alone(problem, parameters)
    with noting_calls() as found, targeting(gpu_sheet(target).info):
        jax.eval_shape(run, *arguments)
    (kernel,) = found
    return kernel


def resources(kernel: Compilation, target: str) -> Resources:
    """Compile a kernel and read what it needs."""
    sheet = gpu_sheet(target)
    made = kernel.compiled(sheet.info.generation or "")
    read = _on_amd if target.startswith("gfx") else _on_nvidia
    registers, spilled, wide, narrow, products = read(made)
    shared = made.metadata.shared
    threads = kernel.launch.warps * (64 if target.startswith("gfx") else 32)
    return Resources(
        registers=registers,
        spilled=spilled,
        shared_bytes=shared,
        wide=wide,
        narrow=narrow,
        buffers=_buffers(made.asm["ttgir"]),
        products=products,
        programs_per_core=sheet.blocks_per_core(threads, registers, shared),
    )


def _buffers(text: str) -> int:
    """Steps of the operands in shared memory: the first axis of what is allocated for copies."""
    found = re.findall(r"local_alloc : \(\) -> !ttg\.memdesc<(\d+)x\d+x\d+x[bf]+\d+,", text)
    return min(map(int, found), default=0)


def _on_nvidia(made: Any) -> tuple[int, int, int, int, dict[str, int]]:
    usage = _cuda_tool("cuobjdump", "-res-usage", made.asm["cubin"])
    text = made.asm["ptx"]
    sizes = re.findall(r"cp\.async\.c[ag]\.shared\.global [^,]*, [^,]*, (0x[0-9a-f]+)", text)
    wide = sum(int(size, 16) == 16 for size in sizes)
    products = r"(wgmma\.mma_async|mma\.sync(?=\.aligned\.m16n8)|tcgen05\.mma(?=\.)|fma\.rn\.f32)"
    return (
        int(_only(r"REG:(\d+)", usage)),
        int(_only(r"STACK:(\d+)", usage)),
        wide,
        len(sizes) - wide,
        dict(collections.Counter(re.findall(products, text))),
    )


def _on_amd(made: Any) -> tuple[int, int, int, int, dict[str, int]]:
    text = made.asm["amdgcn"]
    loads = re.findall(r"^\s+(?:global|buffer)_load_(?:lds_)?(\w+)", text, re.M)
    wide = sum(load in ("dwordx4", "b128") for load in loads)
    spilled = 4 * int(_only(r"\.vgpr_spill_count:\s+(\d+)", text))
    products = collections.Counter(re.findall(r"v_(?:mfma|wmma)_\w+", text))
    return (
        int(_only(r"\.vgpr_count:\s+(\d+)", text)),
        spilled,
        wide,
        len(loads) - wide,
        dict(products),
    )


def _only(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    if found is None:
        raise ValueError(f"no {pattern} in what the compiler says: {text[:200]}")
    return found[1]


def _cuda_tool(name: str, option: str, cubin: bytes) -> str:
    """What a tool says of machine code; Triton brings NVIDIA's."""
    import triton

    (tool,) = Path(triton.__file__).parent.rglob(name)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run(
            [str(tool), option, file.name], capture_output=True, text=True, check=True
        ).stdout
