"""Sizes, rates and limits of GPUs that this machine does not have, from their makers' documents.

Sources: NVIDIA's data sheets and white papers, rates without sparsity and with sums in float32; the
CUDA programming guide, "compute capabilities"; AMD's data sheets and the instruction set
architectures CDNA 2 to 4, RDNA 3 and 4. Values that the documents do not state are None.
"""

from __future__ import annotations

import dataclasses

from voxax.errors import InputError
from voxax.hardware.info import HardwareInfo, facts_from


@dataclasses.dataclass(frozen=True)
class GpuSheet:
    """The data sheet of a GPU: facts, and the limits that determine the occupancy of its cores.

    A core is a streaming multiprocessor, or AMD's equivalent.

    Attributes:
      info: the facts, as :func:`voxax.hardware.describe` returns them.
      core_shared_bytes: bytes of shared memory of one core, for all its blocks together.
      unit_registers: number of 32-bit registers of each of the four units of a core.
      core_warps: largest number of resident warps of one core.
      reserved_bytes: bytes of shared memory that the runtime reserves in each block.
      core_blocks: largest number of resident blocks of one core.
    """

    info: HardwareInfo
    core_shared_bytes: int
    unit_registers: int
    core_warps: int
    reserved_bytes: int
    core_blocks: int = 32

    def blocks_per_core(self, threads: int, registers: int, shared_bytes: int) -> int:
        """Return the number of blocks that run on one core at the same time (its occupancy).

        Args:
          threads: number of threads of a block.
          registers: number of registers of a thread.
          shared_bytes: bytes of shared memory of a block.
        """
        lanes = self.info.lane_count or 1
        warps = -(-threads // lanes)
        stepped = -(-registers // _REGISTER_STEP) * _REGISTER_STEP
        of_unit = self.unit_registers // (stepped * lanes)
        by_registers = min(_UNITS * of_unit, self.core_warps) // warps
        by_memory = self.core_shared_bytes // max(shared_bytes + self.reserved_bytes, 1)
        return min(by_registers, by_memory, self.core_blocks)


# On all of these GPUs registers come in steps of 8, and a core has four units.
_REGISTER_STEP, _UNITS = 8, 4


def _sheet(
    kind: str,
    generation: str,
    cores: int,
    shared: tuple[int, int],
    bandwidth: float,
    half: float | None = None,
    single: float | None = None,
    *,
    blocks: tuple[int, int] = (64, 32),
    registers: int = 16_384,
    lanes: int = 32,
) -> GpuSheet:
    """Make a GpuSheet from the numbers of a data sheet.

    Args:
      kind: the device kind.
      generation: the compute capability, or the name of the instruction set.
      cores: number of cores.
      shared: largest shared memory of a block, and shared memory of a core, in KiB.
      bandwidth: bytes per second of the memory.
      half: operations per second in half precision; None if unknown.
      single: operations per second in float32; None if unknown.
      blocks: largest numbers of resident warps and blocks of a core.
      registers: number of 32-bit registers of each unit.
      lanes: number of threads of a warp.
    """
    amd = generation.startswith("gfx")
    rates = {"bfloat16": half if generation != "7.5" else None, "float16": half, "float32": single}
    facts = facts_from(
        "data sheet",
        platform="gpu",
        device_kind=kind,
        generation=generation,
        cores=cores,
        cores_per_chip=cores,
        lane_count=lanes,
        shared_memory_bytes=1024 * shared[0],
        memory_bandwidth=bandwidth,
        peak_rates=tuple((name, rate) for name, rate in rates.items() if rate is not None),
    )
    return GpuSheet(
        info=HardwareInfo.from_facts(facts),
        core_shared_bytes=1024 * shared[1],
        unit_registers=registers,
        core_warps=blocks[0],
        core_blocks=blocks[1],
        reserved_bytes=0 if amd or generation == "7.5" else 1024,
    )


# Sheets by Triton's name of the GPU. Rates are without sparsity; rates of float32 are at its full
# precision. gfx90a is one of the two dies of an MI250X. A core of RDNA is a work group processor,
# which has two compute units.
_CDNA = {"blocks": (32, 32), "registers": 32_768, "lanes": 64}
_RDNA = {"blocks": (64, 32), "registers": 49_152}
_SHEETS = {
    "sm_75": _sheet("Tesla T4", "7.5", 40, (64, 64), 320e9, 65e12, 8.1e12, blocks=(32, 16)),
    "sm_80": _sheet("NVIDIA A100-SXM4-80GB", "8.0", 108, (163, 164), 2.039e12, 312e12, 19.5e12),
    "sm_86": _sheet(
        "NVIDIA GeForce RTX 3090", "8.6", 82, (99, 100), 936e9, 71e12, 35.6e12, blocks=(48, 16)
    ),
    "sm_89": _sheet(
        "NVIDIA GeForce RTX 4090", "8.9", 128, (99, 100), 1.008e12, 165e12, 82.6e12, blocks=(48, 24)
    ),
    "sm_90": _sheet("NVIDIA H100 80GB HBM3", "9.0", 132, (227, 228), 3.35e12, 989e12, 67e12),
    "sm_100": _sheet("NVIDIA B200", "10.0", 148, (227, 228), 8e12, 2250e12, 75e12),
    "sm_103": _sheet("NVIDIA GB300", "10.3", 160, (227, 228), 8e12, 2500e12, 80e12),
    "sm_110": _sheet("NVIDIA Thor", "11.0", 20, (227, 228), 273e9, blocks=(48, 24)),
    "sm_120": _sheet(
        "NVIDIA GeForce RTX 5090", "12.0", 170, (99, 100), 1.792e12, 209e12, 105e12, blocks=(48, 24)
    ),
    "sm_121": _sheet("NVIDIA GB10", "12.1", 48, (99, 100), 273e9, blocks=(48, 24)),
    "gfx90a": _sheet("gfx90a", "gfx90a", 110, (64, 64), 1.6e12, 191e12, 47.9e12, **_CDNA),
    "gfx942": _sheet("gfx942", "gfx942", 304, (64, 64), 5.3e12, 1307e12, 163e12, **_CDNA),
    "gfx950": _sheet("gfx950", "gfx950", 256, (160, 160), 8e12, 2516e12, 157e12, **_CDNA),
    "gfx1100": _sheet("gfx1100", "gfx1100", 48, (64, 128), 960e9, 123e12, 61.4e12, **_RDNA),
    "gfx1201": _sheet("gfx1201", "gfx1201", 32, (64, 128), 640e9, 195e12, 48.7e12, **_RDNA),
}


def gpu_sheet(target: str) -> GpuSheet:
    """Return the data sheet of a GPU.

    Args:
      target: the compilers' name of the GPU, such as ``sm_90`` or ``gfx942``; see
        :func:`known_gpus`.

    Raises:
      InputError: the name is unknown.
    """
    if target not in _SHEETS:
        raise InputError(f"no sheet of the GPU {target!r}; known: {', '.join(_SHEETS)}")
    return _SHEETS[target]


def known_gpus() -> tuple[str, ...]:
    """Return the names of GPUs that :func:`gpu_sheet` knows."""
    return tuple(_SHEETS)
