"""What makers' documents say of GPUs that are not present: sizes, rates and limits.

Sources: NVIDIA's data sheets of A100 (80 GB, SXM), H100 (SXM5) and B200, rates without sparsity;
CUDA C++ programming guide, "compute capabilities"; AMD's data sheets of MI300X and MI355X, and the
instruction set architectures CDNA 3 and CDNA 4.
"""

from __future__ import annotations

import dataclasses

from voxax.errors import InputError
from voxax.hardware.info import HardwareInfo, facts_from


@dataclasses.dataclass(frozen=True)
class GpuSheet:
    """A GPU as its maker describes it.

    Attributes:
      info: what :func:`voxax.hardware.describe` would say of one.
      core_shared_bytes: shared memory of one core, for all its blocks.
      unit_registers: 32-bit registers of each of the four parts of a core.
      core_warps: most warps of one core.
      reserved_bytes: shared memory that the runtime takes of each block.
      l2_bandwidth: bytes per second between second-level cache and cores; None where no document
        says so.
    """

    info: HardwareInfo
    core_shared_bytes: int
    unit_registers: int
    core_warps: int
    reserved_bytes: int
    l2_bandwidth: float | None = None

    def blocks_per_core(self, warps: int, registers: int, shared_bytes: int) -> int:
        """Blocks that one core runs at once.

        Args:
          warps: of a block.
          registers: of a thread.
          shared_bytes: of a block.
        """
        stepped = -(-registers // _REGISTER_STEP) * _REGISTER_STEP
        of_unit = self.unit_registers // (stepped * (self.info.lane_count or 1))
        by_registers = min(_UNITS * of_unit, self.core_warps) // warps
        by_memory = self.core_shared_bytes // max(shared_bytes + self.reserved_bytes, 1)
        return min(by_registers, by_memory, _CORE_BLOCKS)


# Alike on all of them: registers come in steps of 8, a core has four units.
_REGISTER_STEP, _UNITS, _CORE_BLOCKS = 8, 4, 32


def _sheet(
    kind: str,
    generation: str,
    cores: int,
    shared: tuple[int, int],
    bandwidth: float,
    half: float,
    single: float,
    l2_bandwidth: float | None = None,
) -> GpuSheet:
    amd = generation.startswith("gfx")
    facts = facts_from(
        "data sheet",
        platform="gpu",
        device_kind=kind,
        generation=generation,
        cores=cores,
        cores_per_chip=cores,
        lane_count=64 if amd else 32,
        shared_memory_bytes=shared[0],
        memory_bandwidth=bandwidth,
        peak_rates=(("bfloat16", half), ("float16", half), ("float32", single)),
    )
    return GpuSheet(
        info=HardwareInfo.from_facts(facts),
        core_shared_bytes=shared[1],
        unit_registers=32_768 if amd else 16_384,
        core_warps=32 if amd else 64,
        reserved_bytes=0 if amd else 1024,
        l2_bandwidth=l2_bandwidth,
    )


# By what Triton calls the target. Rates are dense; those of float32 are with all its digits. An
# A100's second-level cache gives 5,120 bytes a clock (its white paper); H100's says nothing: the
# same is taken, at the 1.83 GHz of its rates.
_SHEETS = {
    "sm_80": _sheet(
        "NVIDIA A100-SXM4-80GB", "8.0", 108, (166_912, 167_936), 2.039e12, 312e12, 19.5e12, 7.2e12
    ),
    "sm_90": _sheet(
        "NVIDIA H100 80GB HBM3", "9.0", 132, (232_448, 233_472), 3.35e12, 989e12, 67e12, 9.4e12
    ),
    "sm_100": _sheet("NVIDIA B200", "10.0", 148, (232_448, 233_472), 8e12, 2250e12, 75e12),
    "gfx942": _sheet("gfx942", "gfx942", 304, (65_536, 65_536), 5.3e12, 1307e12, 163e12),
    "gfx950": _sheet("gfx950", "gfx950", 256, (163_840, 163_840), 8e12, 2516e12, 157e12),
}


def gpu_sheet(target: str) -> GpuSheet:
    """The sheet of a GPU: ``sm_80``, ``sm_90``, ``sm_100``, ``gfx942`` or ``gfx950``.

    Raises:
      InputError: another name.
    """
    if target not in _SHEETS:
        raise InputError(f"no sheet of the GPU {target!r}; known: {', '.join(_SHEETS)}")
    return _SHEETS[target]


def known_gpus() -> tuple[str, ...]:
    """The names that :func:`gpu_sheet` takes."""
    return tuple(_SHEETS)
