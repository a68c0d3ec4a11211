"""Facts from the device object and JAX's process on any platform, and conservative defaults."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from voxax.hardware.info import Facts, first_known, told


def ask(device: Any, name: str) -> Any:
    """An attribute of the device, called if it is a method; None if it is not there.

    Devices of plugins differ in what they have, and in what they raise for the rest.
    """
    try:
        value = getattr(device, name)
        return value() if callable(value) else value
    except Exception:
        return None


def device_facts(device: Any) -> Facts:
    """Facts that the device tells of itself."""
    coords = ask(device, "coords")
    stats = ask(device, "memory_stats") or {}
    return first_known(
        [
            told("jax device", platform=ask(device, "platform") or "unknown"),
            told("jax device", device_kind=ask(device, "device_kind") or "unknown"),
            told(
                "jax device",
                cores=ask(device, "core_count") or ask(device, "num_cores"),
                device_coords=None if coords is None else tuple(coords),
                core_on_chip=ask(device, "core_on_chip"),
            ),
            told(
                "jax memory_stats",
                memory_bytes=stats.get("bytes_limit"),
                memory_in_use=stats.get("bytes_in_use"),
                memory_peak=stats.get("peak_bytes_in_use"),
            ),
        ]
    )


def process_facts(device: Any) -> Facts:
    """How many devices and processes there are, asked of the device's client.

    A device without a client (an invented one) is alone.
    """
    client = ask_plain(device, "client")
    devices = _devices(client) or [device]
    local = ask(client, "local_device_count") if client is not None else None
    return told(
        "jax client" if client is not None else "default: a device alone",
        num_devices=local or 1,
        **topology_of(devices),
    )


def topology_of(devices: Sequence[Any]) -> dict[str, Any]:
    """Extents and numbers of hosts and slices of a set of devices, by field name."""
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


def ask_plain(device: Any, name: str) -> Any:
    """An attribute that is not to be called; None if it is not there."""
    try:
        return getattr(device, name)
    except Exception:
        return None


def _devices(client: Any) -> list[Any]:
    found = ask(client, "devices") if client is not None else None
    return list(found) if found else []


DEFAULT = "default"


def default_facts(platform: str) -> Facts:
    """Conservative facts about any chip."""
    return told(
        DEFAULT,
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
