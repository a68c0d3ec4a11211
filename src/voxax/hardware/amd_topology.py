"""What Linux's driver of AMD's GPUs tells of them, in ``/sys/class/kfd``.

Documented in the kernel's ``drivers/gpu/drm/amd/amdkfd/kfd_topology.c``: one folder a node, whose
file ``properties`` has a name and a number on each line.
"""

from __future__ import annotations

from pathlib import Path

from voxax.hardware.fact import Facts, told

_NODES = "sys/class/kfd/kfd/topology/nodes"


def amd_facts(root: Path, ordinal: int) -> Facts:
    """Facts about the GPU that is the ``ordinal``-th of this host; none where there is no driver.

    ``HIP_VISIBLE_DEVICES`` renumbers: GPUs of one host are taken to be alike in what is asked.
    """
    nodes = [_properties(path) for path in sorted((root / _NODES).glob("*/properties"), key=_node)]
    found = [node for node in nodes if node.get("lds_size_in_kb")]  # others are processors
    if not found:
        return {}
    own = found[min(ordinal, len(found) - 1)]
    return told(
        "/sys/class/kfd",
        shared_memory_bytes=own["lds_size_in_kb"] << 10,
        lane_count=own.get("wave_front_size") or None,
    )


def _node(path: Path) -> int:
    return int(path.parent.name) if path.parent.name.isdigit() else 0


def _properties(path: Path) -> dict[str, int]:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.split() for line in lines)
    return {p[0]: int(p[1]) for p in pairs if len(p) == 2 and p[1].isdigit()}
