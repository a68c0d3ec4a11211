"""TPUs: the table that JAX's own compiler for kernels works with."""

from __future__ import annotations

from typing import Any

from voxax import _compat
from voxax.hardware.fact import Facts, first_known, told
from voxax.hardware.runtime_device import ask

SOURCE = "pltpu.get_tpu_info"
# Dtypes that a matrix unit may take.
_CANDIDATES = (
    "float32",
    "bfloat16",
    "float8_e5m2",
    "float8_e4m3fn",
    "float8_e4m3b11fnuz",
    "int8",
    "int4",
)


def tpu_facts(device: Any) -> Facts:
    """Facts about a JAX device of the platform ``tpu``, attached or only described."""
    return table_facts(_compat.tpu_info(ask(device, "device_kind"), ask(device, "num_cores")))


def table_facts(table: Any, source: str = SOURCE) -> Facts:
    """What one entry (``pltpu.TpuInfo``, of one TensorCore) says of a device.

    Args:
      table: the entry; None for a chip that JAX does not know.
      source: who gave it.
    """
    if table is None:
        return {}
    cores = table.num_cores
    rates = {
        "bfloat16": table.bf16_ops_per_second,
        "float8_e4m3fn": table.fp8_ops_per_second,
        "float8_e5m2": table.fp8_ops_per_second,
        "int8": table.int8_ops_per_second,
        "int4": table.int4_ops_per_second,
    }
    sparse = table.sparse_core
    dtypes = tuple(d for d in _CANDIDATES if _takes(table, d))
    memory = cores * table.hbm_capacity_bytes
    return told(
        source,
        generation=str(table.generation),
        model=f"TPU {table.chip_version}",
        cores=cores,
        cores_per_chip=getattr(table.chip_version, "num_physical_tensor_cores_per_chip", None),
        sparse_cores=0 if sparse is None else sparse.num_cores,
        sparse_subcores=None if sparse is None else sparse.num_subcores,
        sparse_lanes=None if sparse is None else sparse.num_lanes,
        sparse_memory_bytes=None if sparse is None else sparse.vmem_capacity_bytes,
        memory_bytes=memory,
        physical_memory_bytes=memory,
        vmem_bytes=table.vmem_capacity_bytes,
        smem_bytes=table.smem_capacity_bytes,
        tile_shape=(table.num_sublanes, table.num_lanes),
        # A vector register is one tile.
        lane_count=table.num_lanes,
        matrix_unit=(table.mxu_column_size, table.mxu_column_size),
        num_matrix_units=table.num_mxus,
        memory_bandwidth=float(cores * table.mem_bw_bytes_per_second),
        # The table writes 0 for what it does not know.
        peak_rates=tuple((name, float(cores * r)) for name, r in rates.items() if r),
        native_dtypes=dtypes or None,
    )


def least_of_all() -> Facts:
    """For a TPU that JAX does not know: of each limit the least that any known TPU has."""
    tables = _compat.known_tpu_infos()
    if not tables:
        return {}
    source = "default: least of all TPUs that JAX knows"
    entries = [table_facts(table, source) for table in tables]
    fields = ("vmem_bytes", "smem_bytes", "tile_shape", "lane_count", "matrix_unit")
    least = {name: min(entry[name].value for entry in entries) for name in fields}
    return first_known([told(source, **least), told(source, sparse_cores=0)])


def _takes(table: Any, dtype: str) -> bool:
    try:
        return bool(table.is_matmul_supported(dtype, dtype))
    except Exception:
        return False
