"""Facts from JAX's device object and its client on any platform, and default facts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from voxax.hardware.info import Facts, facts_from, first_known


def ask(device: Any, name: str) -> Any:
    """Return a device's attribute ``name``, or the result if it is a method; None after an error.

    Devices of plugins differ in their attributes, and in the errors for missing attributes.
    """
    try:
        value = getattr(device, name)
        return value() if callable(value) else value
    except Exception:
        return None


def device_facts(device: Any) -> Facts:
    """Return facts from a JAX device object: platform, kind, cores, coordinates and memory."""
    coords = ask(device, "coords")
    stats = ask(device, "memory_stats") or {}
    return first_known(
        [
            facts_from(
                "jax device",
                platform=ask(device, "platform") or "unknown",
                device_kind=ask(device, "device_kind") or "unknown",
                cores=ask(device, "core_count") or ask(device, "num_cores"),
                device_coords=None if coords is None else tuple(coords),
                core_on_chip=ask(device, "core_on_chip"),
            ),
            facts_from(
                "jax memory_stats",
                memory_bytes=stats.get("bytes_limit"),
                memory_in_use=stats.get("bytes_in_use"),
                memory_peak=stats.get("peak_bytes_in_use"),
            ),
        ]
    )


def process_facts(device: Any) -> Facts:
    """Return the numbers of devices, processes, hosts and slices, from the device's client.

    A device without a client, such as one that is only described, counts as the only device.
    """
    try:
        client = device.client  # not called: it may be callable
    except Exception:
        client = None
    return facts_from(
        "default: a device alone" if client is None else "jax client",
        num_devices=ask(client, "local_device_count") or 1,
        **topology_of(ask(client, "devices") or [device]),
    )


def topology_of(devices: Sequence[Any]) -> dict[str, Any]:
    """Return facts about ``devices`` as values by field name of HardwareInfo.

    They are the numbers of processes, hosts and slices, and the extent of the device coordinates.
    """
    hosts = {ask(d, "process_index") for d in devices} - {None}
    slices = {ask(d, "slice_index") for d in devices} - {None}
    coords = [tuple(c) for d in devices if (c := ask(d, "coords")) is not None]
    shape = None
    if coords and len({len(c) for c in coords}) == 1:
        shape = tuple(max(axis) - min(axis) + 1 for axis in zip(*coords, strict=True))
    return {
        "process_count": len(hosts) or 1,
        "num_hosts": len(hosts) or 1,
        "num_slices": len(slices) or None,
        "topology_shape": shape,
    }


def default_facts(platform: str) -> Facts:
    """Return conservative facts about any chip of a platform, for fields without another source.

    Programs work with these values, but may be slow. Sizes and rates of memories and compute units
    have no default, because code must not depend on a guess.
    """
    return facts_from(
        "default",
        num_devices=1,
        process_count=1,
        num_hosts=1,
        num_slices=1,
        cpu_cores=1,
        cores=1,
        cores_per_chip=1,
        sparse_cores=0,
        lane_count=1,
        tile_shape=(1, 1),
        native_dtypes=("float32", "int32"),
        **({"vmem_bytes": 0, "smem_bytes": 0} if platform == "cpu" else {}),
    )
