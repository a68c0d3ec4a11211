"""Facts about TPU generations (bandwidth, peak, clock), and compilation for a TPU."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import AbstractDevice, AbstractMesh, SingleDeviceSharding, use_abstract_mesh

from voxax import _compat
from voxax.errors import InputError
from voxax.hardware import describe, targeting
from voxax.hardware.tpu import COPY_LATENCY, TOPOLOGIES

# Rows that a matrix unit takes in a cycle, by its number of columns. In the listing of a plain
# product of large matrices, each unit is busy for rows * columns / columns^2 / this number of
# cycles.
_ROWS_PER_CYCLE = {128: 1, 256: 2}
# Seconds from the end of a kernel to the start of the next. This is the time of a program on v4
# minus the time of its kernels, by XProf (github.com/ayaka14732/pallas-tpu-tutorial,
# chapter03/02_fair_timing and chapter02/09_large_matmul, TPU:1: 76.4 us for two kernels of 76.3 us,
# 80.15 us for 80.04).
_LAUNCH = 0.05e-6
# Bytes of a granule by generation. Listings print the size of copies in granules.
_GRANULE = {4: 512}
_LATER_GRANULE = 32
# Delay slots after a branch, by generation; later generations have four.
_DELAY_SLOTS = {4: 1}


@dataclasses.dataclass(frozen=True)
class Chip:
    """Hardware facts of one TensorCore of a TPU generation.

    Attributes:
      name: name of the generation, a key of ``TOPOLOGIES``.
      clock: cycles per second. JAX's table of TPUs has no clock, so it is computed as
        ``peak / (units * 2 * columns^2 * rows_per_cycle)`` of the matrix units. The rows per cycle
        (1 for 128 columns, 2 for 256) are from the compiler's schedule of a matrix product.
      peak: bfloat16 operations per second.
      bandwidth: bytes per second from and to HBM.
      granule: bytes of a granule, the unit of copy sizes in the compiler's listings.
      latency: seconds from the start of a copy from or to HBM until it moves its first bytes.
      launch: seconds between two kernels.
      vmem, hbm: bytes of vector memory and of HBM.
      cores: number of TensorCores of one JAX device. The other numbers and a program's schedule
        are for one core.
      delay_slots: number of instruction bundles after a branch that run before it takes effect.
    """

    name: str
    clock: float
    peak: float
    bandwidth: float
    granule: int
    latency: float
    launch: float
    vmem: int
    hbm: int
    cores: int
    delay_slots: int = 4

    @property
    def device_bandwidth(self) -> float:
        """Bytes per second from and to HBM, of all cores of a device together."""
        return self.cores * self.bandwidth


def chip_named(name: str) -> Chip:
    """Return the facts about a TPU generation from JAX's table. No device is needed.

    Raises:
      InputError: the name is unknown, or this version of JAX does not know the chip.
    """
    name = name.removeprefix("tpu")
    if name not in TOPOLOGIES:
        raise InputError(f"TPU {name!r} is unknown: give {', '.join(TOPOLOGIES)}")
    table = _compat.tpu_info_of_version(name)
    if table is None or table.mxu_column_size not in _ROWS_PER_CYCLE:
        raise InputError(f"this version of JAX does not know the TPU {name}")
    columns = table.mxu_column_size
    per_cycle = table.num_mxus * 2 * columns**2 * _ROWS_PER_CYCLE[columns]
    return Chip(
        name,
        table.bf16_ops_per_second / per_cycle,
        float(table.bf16_ops_per_second),
        float(table.mem_bw_bytes_per_second),
        _GRANULE.get(table.generation, _LATER_GRANULE),
        COPY_LATENCY.get(name, max(COPY_LATENCY.values())),
        _LAUNCH,
        table.vmem_capacity_bytes,
        table.hbm_capacity_bytes,
        table.num_cores,
        _DELAY_SLOTS.get(table.generation, 4),
    )


def compile_for(topology: str, function: Callable[..., Any], *shapes: Any) -> Any:
    """Compile a function for one device of a TPU topology, which may be absent.

    The result is JAX's compiled function, with default layouts. Convolutions in the function choose
    their algorithms for that device. The call sets environment variables of libtpu, unless they are
    set, so that the process does not look for a TPU on a metadata server.

    Args:
      topology: libtpu's name of the topology, see :data:`voxax.predict.TOPOLOGIES`.
      function: the function to compile.
      *shapes: the function's arguments, pytrees of ``jax.ShapeDtypeStruct`` or arrays.
    """
    # Set before libtpu is loaded. By default it waits for the metadata server and allows only one
    # process at a time.
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    device = _compat.tpu_topology(topology)[0]
    kind, cores = device.device_kind, int(getattr(device, "num_cores", None) or 1)
    one = SingleDeviceSharding(device)
    abstract = AbstractDevice(device_kind=kind, num_cores=cores, platform="tpu")
    hardware = describe(device)
    with (
        use_abstract_mesh(AbstractMesh((), (), abstract_device=abstract)),
        targeting(hardware),
        _compat.separate_traces(hardware),
    ):
        lowered = jax.jit(function, in_shardings=one, out_shardings=one).lower(*shapes)
    return lowered.compile()
