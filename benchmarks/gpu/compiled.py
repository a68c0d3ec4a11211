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
from unittest import mock

import jax
import jax.numpy as jnp
from benchmarks.gpu.lowered import alone

from voxax import _compat
from voxax.hardware import gpu_sheet, targeting


@dataclasses.dataclass(frozen=True)
class Kernel:
    """A call of a Triton kernel, as :func:`voxax._compat.triton_call` gets it."""

    function: Any
    types: tuple[str, ...]
    programs: int
    constants: dict[str, Any]
    warps: int
    stages: int


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


def kernel_of(problem: Any, parameters: Any, target: str) -> Kernel:
    """The Triton kernel that a product calls on a target of :func:`gpu_sheet`."""
    found = []

    def caught(function, operands, sizes, out, programs, constants, **options):
        types = [f"*{_compat.triton_dtype(a.dtype)}" for a in (*operands, out)]
        types[len(operands) : len(operands)] = ["i32"] * len(sizes)
        found.append((function, tuple(types), programs, dict(constants), options))
        return jnp.zeros(out.shape, out.dtype)

    run, arguments = alone(problem, parameters)
    with mock.patch.object(_compat, "triton_call", caught), targeting(gpu_sheet(target).info):
        jax.eval_shape(run, *arguments)
    ((function, types, programs, constants, options),) = found
    return Kernel(function, types, programs, constants, options["warps"], options["stages"])


def resources(kernel: Kernel, target: str) -> Resources:
    """Compile a kernel and read what it needs."""
    generation = gpu_sheet(target).info.generation or ""
    made = _compat.compiled_by_triton(
        kernel.function, kernel.types, kernel.constants, generation, kernel.warps, kernel.stages
    )
    read = _on_amd if target.startswith("gfx") else _on_nvidia
    registers, spilled, wide, narrow, products = read(made)
    shared = made.metadata.shared
    return Resources(
        registers=registers,
        spilled=spilled,
        shared_bytes=shared,
        wide=wide,
        narrow=narrow,
        buffers=_buffers(made.asm["ttgir"]),
        products=products,
        programs_per_core=gpu_sheet(target).blocks_per_core(kernel.warps, registers, shared),
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
    wide = sum(load == "dwordx4" for load in loads)
    spilled = 4 * int(_only(r"\.vgpr_spill_count:\s+(\d+)", text))
    products = collections.Counter(re.findall(r"v_mfma_\w+", text))
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
