"""TPUs that are not there: described by name, through the TPU compiler's own description.

``libtpu`` describes a topology without a TPU. It is asked in a process of its own: it wants
environment variables set before it loads, and stays loaded. Without libtpu, JAX's table of
chips and the extents in the name must do.
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
from voxax.hardware.fact import Facts, first_known, told
from voxax.hardware.runtime_device import ask, topology_of
from voxax.hardware.runtime_tpu import table_facts

# libtpu must neither ask a cloud for its place nor insist on being alone.
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
_NAME = re.compile(r"(?:tpu)?(?P<chip>v?\d+\w*)[:=](?P<shape>\d+(?:x\d+)*)", re.IGNORECASE)
_SECONDS = 120


def topology_facts(name: str) -> Facts:
    """Facts about one device of the topology ``name``, such as ``v5e:2x2``.

    Raises:
      InputError: the name cannot be read, or names a chip that JAX does not know.
    """
    match = _NAME.fullmatch(name.strip())
    if match is None:
        raise InputError(
            f"{name!r} is no TPU topology: give CHIP:EXTENTS, for example v5e:2x2, v4:2x2x1 or "
            "tpu7x:2x2x1"
        )
    described = _described(name.strip())
    if described is not None:
        return _through_compiler(described)
    return _through_table(name, match["chip"].lower(), match["shape"])


def _through_compiler(described: dict[str, Any]) -> Facts:
    coords, shape = described.pop("device_coords"), described.pop("topology_shape")
    cores = described.pop("cores")
    table = _compat.tpu_info(described["device_kind"], cores)
    named = told(
        "libtpu topology",
        platform="tpu",
        cores=cores,
        device_coords=None if coords is None else tuple(coords),
        topology_shape=None if shape is None else tuple(shape),
        **described,
    )
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
    named = told(
        "name of the topology",
        platform="tpu",
        device_kind=f"TPU {chip}",
        topology_shape=shape,
        num_devices=devices,
    )
    return first_known([named, facts])


@functools.lru_cache(maxsize=64)
def _answer(name: str) -> str | None:
    script = f"from voxax.hardware.topology import main; main({name!r})"
    try:
        result = subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            env={**os.environ, **ENVIRONMENT},
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = result.stdout.strip().splitlines()
    return lines[-1] if result.returncode == 0 and lines else None


def _described(name: str) -> dict[str, Any] | None:
    if not _compat.has_libtpu():
        return None
    answer = _answer(name)
    try:
        return None if answer is None else json.loads(answer)
    except json.JSONDecodeError:
        return None


def main(name: str) -> None:
    """In a process of its own: print what libtpu says of ``name``, as one line of JSON."""
    devices = _compat.tpu_topology(name)
    first = devices[0]
    coords = ask(first, "coords")
    described = {
        "device_kind": ask(first, "device_kind"),
        "num_devices": len(devices),
        "cores": ask(first, "num_cores"),
        "device_coords": None if coords is None else list(coords),
        "core_on_chip": ask(first, "core_on_chip"),
        **topology_of(devices),
    }
    sys.stdout.write(json.dumps(described) + "\n")
