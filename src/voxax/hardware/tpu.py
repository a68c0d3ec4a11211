"""Facts about TPUs: attached ones from JAX's table of chips, absent ones by a topology's name.

``libtpu`` can describe a topology without a TPU. It is called in a separate process, because it
needs environment variables before it loads, and stays loaded. If libtpu is missing, the facts come
from JAX's table of chips and the extents in the name.
"""

from __future__ import annotations

import functools
import json
import math
import os
import re
import subprocess
import sys
from typing import Any

from voxax import _compat
from voxax.errors import InputError
from voxax.hardware.device import ask, topology_of
from voxax.hardware.info import Facts, facts_from, first_known

TOPOLOGIES = {
    "v4": "v4:2x2x1",
    "v5e": "v5e:2x2",
    "v5p": "v5p:2x2x1",
    "v6e": "v6e:2x2",
    "7x": "tpu7x:2x2x1",
}
"""The smallest topology of each TPU generation that libtpu describes."""
# v4: 483.6 cycles, by the chip's own counter (github.com/ayaka14732/tpu-v4-latency-numbers,
# results/02_local.md). v5e: 350 ns, the time of a step of JAX's product in blocks of
# 128 x 128 x 128 (docs.jax.dev/en/latest/pallas/tpu/matmul.html: 91.8 ms for 8192 x 8192
# matrices), minus the time of 64 KiB at the bandwidth.
COPY_LATENCY = {"v4": 461e-9, "v5e": 270e-9}
"""Seconds from the start of a copy from HBM until its first bytes arrive. Numbers are published
only for these generations."""

SOURCE = "pltpu.get_tpu_info"
# Dtypes that a matrix unit may support.
_CANDIDATES = (
    *("float32", "bfloat16", "float8_e5m2", "float8_e4m3fn", "float8_e4m3b11fnuz"),
    *("int8", "int4"),
)


def tpu_facts(device: Any) -> Facts:
    """Return facts about a JAX device of the platform ``tpu``, attached or only described."""
    return table_facts(_compat.tpu_info(ask(device, "device_kind"), ask(device, "num_cores")))


def table_facts(table: Any, source: str = SOURCE) -> Facts:
    """Return facts about a TPU from its entry in JAX's table of chips; {} without an entry.

    Args:
      table: a ``pltpu.TpuInfo``, whose sizes and rates are those of one TensorCore; None for a chip
        that JAX does not know.
      source: name of the function that returned the entry.
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
    memory = cores * table.hbm_capacity_bytes
    return facts_from(
        source,
        generation=str(table.generation),
        model=f"TPU {table.chip_version}",
        cores=cores,
        cores_per_chip=getattr(table.chip_version, "num_physical_tensor_cores_per_chip", None),
        sparse_cores=0 if sparse is None else sparse.num_cores,
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
        # Unknown rates are 0 in the table.
        peak_rates=tuple((name, float(cores * r)) for name, r in rates.items() if r),
        native_dtypes=tuple(d for d in _CANDIDATES if _takes(table, d)) or None,
    )


def least_known_facts() -> Facts:
    """Return the smallest limits of all TPUs that JAX knows, for a TPU that JAX does not know."""
    tables = _compat.known_tpu_infos()
    if not tables:
        return {}
    source = "default: least of all TPUs that JAX knows"
    entries = [table_facts(table, source) for table in tables]
    fields = ("vmem_bytes", "smem_bytes", "tile_shape", "lane_count", "matrix_unit")
    least = {name: min(entry[name].value for entry in entries) for name in fields}
    return facts_from(source, **least, sparse_cores=0)


def _takes(table: Any, dtype: str) -> bool:
    try:
        return bool(table.is_matmul_supported(dtype, dtype))
    except Exception:
        return False


# With these, libtpu neither queries a cloud's metadata nor locks out other processes.
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
_TOPOLOGY_NAME = re.compile(r"(?:tpu)?(?P<chip>v?\d+\w*)[:=](?P<shape>\d+(?:x\d+)*)", re.IGNORECASE)
_SECONDS = 120


def topology_facts(name: str) -> Facts:
    """Return facts about one device of the topology ``name``, such as ``v5e:2x2``.

    Raises:
      InputError: the name cannot be read, or names a chip that JAX does not know.
    """
    match = _TOPOLOGY_NAME.fullmatch(name.strip())
    if match is None:
        raise InputError(
            f"{name!r} is no TPU topology: give CHIP:EXTENTS, for example v5e:2x2, v4:2x2x1 or "
            "tpu7x:2x2x1"
        )
    described = _described(name.strip()) if _compat.has_libtpu() else None
    if described is not None:
        return _through_compiler(described)
    return _through_table(name, match["chip"].lower(), match["shape"])


def _through_compiler(described: dict[str, Any]) -> Facts:
    table = _compat.tpu_info(described["device_kind"], described["cores"])
    lists = {name: tuple(value) for name, value in described.items() if isinstance(value, list)}
    named = facts_from("libtpu topology", platform="tpu", **{**described, **lists})
    return first_known([named, table_facts(table)])


def _through_table(name: str, chip: str, extents: str) -> Facts:
    table = _compat.tpu_info_of_version(chip)
    if table is None:
        raise InputError(
            f"{name!r}: JAX {_compat.JAX_VERSION} knows no TPU {chip!r}, and libtpu is not "
            f"installed or refuses the name; known chips: {', '.join(_compat.tpu_versions())}"
        )
    shape = tuple(int(n) for n in extents.split("x"))
    facts = table_facts(table, "pltpu.get_tpu_info_for_chip")
    per_chip = facts["cores_per_chip"].value if "cores_per_chip" in facts else table.num_cores
    devices = math.prod(shape) * max(per_chip // table.num_cores, 1)
    named = facts_from(
        "name of the topology",
        platform="tpu",
        device_kind=f"TPU {chip}",
        topology_shape=shape,
        num_devices=devices,
    )
    return first_known([named, facts])


@functools.lru_cache(maxsize=64)
def _described(name: str) -> dict[str, Any] | None:
    """Return libtpu's description of the TPU topology ``name``, or None if libtpu gives none.

    The description is what :func:`print_topology` prints in a separate process.
    """
    script = f"from {__name__} import {print_topology.__name__} as ask; ask({name!r})"
    try:
        result = subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            env={**os.environ, **ENVIRONMENT},
        )
        lines = result.stdout.strip().splitlines()
        return json.loads(lines[-1]) if result.returncode == 0 and lines else None
    except (OSError, subprocess.TimeoutExpired, json.JSONDecodeError):
        return None


def print_topology(name: str) -> None:
    """Print libtpu's description of ``name`` as one line of JSON; runs in a separate process."""
    devices = _compat.tpu_topology(name)
    first = devices[0]
    described = {
        "device_kind": ask(first, "device_kind"),
        "num_devices": len(devices),
        "cores": ask(first, "num_cores"),
        "device_coords": ask(first, "coords"),
        "core_on_chip": ask(first, "core_on_chip"),
        **topology_of(devices),
    }
    sys.stdout.write(json.dumps(described) + "\n")
