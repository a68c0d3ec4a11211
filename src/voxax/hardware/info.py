"""HardwareInfo: the record of all facts about one device and the process that uses it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from voxax.errors import InputError

UNKNOWN_SOURCE = "unknown"


@dataclasses.dataclass(frozen=True)
class Fact:
    """A value of one field of :class:`HardwareInfo`, with the source of the value.

    Attributes:
      value: the value, or None if no source knows it.
      source: the name of the source (``jax memory_stats``, ``/proc/cpuinfo``, ``NVML``, ``probe``,
        ``default: ...``), or ``unknown``.
    """

    value: Any
    source: str

    @property
    def known(self) -> bool:
        """Whether a source knows the value."""
        return self.source != UNKNOWN_SOURCE


Facts = dict[str, Fact]


def facts_from(source: str, **values: Any) -> Facts:
    """Return facts by field name: the ``values`` that are not None, each with its ``source``."""
    return {name: Fact(value, source) for name, value in values.items() if value is not None}


def first_known(sources: Iterable[Mapping[str, Fact]]) -> Facts:
    """Return one fact for each field: that of the first of ``sources`` that knows the field."""
    facts: Facts = {}
    for source in sources:
        for name, fact in source.items():
            if fact.known:
                facts.setdefault(name, fact)
    return facts


# Operations per second by dtype name, hashable: (("bfloat16", 1.97e14), ...).
Rates = tuple[tuple[str, float], ...]


@dataclasses.dataclass(frozen=True)
class HardwareInfo:
    """Facts about one device and the process that uses it; unknown facts are None.

    The source of each field is in :attr:`facts`. The record is hashable and prints as a table;
    ``to_json`` and ``from_json`` are inverse to each other.

    Attributes:
      platform: ``cpu``, ``gpu``, ``tpu``, or another name that the runtime uses.
      device_kind: the runtime's name of the chip.
      num_devices: number of devices of this process, or of all devices of a topology.
      process_count: number of processes in this run.
      memory_bytes: bytes of memory that JAX may use on this device.
      cpu_cores: number of cores of the host that this process may use.
      model: the chip's marketing name, if it differs from ``device_kind``.
      generation: the number of a TPU, the compute capability of an NVIDIA GPU, the name of an AMD
        GPU's instruction set, or family and model of a CPU.
      cores: number of TensorCores, streaming multiprocessors or CPU cores of this device.
      cores_per_chip: number of cores of the whole chip, of which the device may be a part.
      sparse_cores: number of SparseCores, as the compiler's table counts them.
      memory_in_use: bytes in use on this device; on a CPU, by all processes.
      memory_peak: largest number of bytes in use so far, by this process.
      physical_memory_bytes: bytes of memory of the device itself, before JAX's limit.
      vmem_bytes: vector memory (VMEM) of one TensorCore.
      smem_bytes: scalar memory (SMEM) of one TensorCore.
      shared_memory_bytes: largest shared memory of one block of a GPU.
      l1_cache_bytes: data cache of one core.
      l2_cache_bytes: second-level cache of one core of a CPU, or of a whole GPU.
      l3_cache_bytes: third-level cache of a CPU.
      tile_shape: layout tile of 32-bit values, (sublanes, lanes).
      lane_count: number of 32-bit values that one vector instruction, or one warp, works on.
      matrix_unit: shape of one matrix unit.
      num_matrix_units: number of matrix units of one core.
      peak_rates: ``((dtype, rate), ...)``, operations per second of the whole device in matrix
        products. The rates of float32 and float64 are at full precision.
      memory_bandwidth: bytes per second between the device and its memory.
      clock_hz: highest clock of the cores.
      native_dtypes: dtypes that the arithmetic units compute in without conversion.
      topology_shape: extent of the coordinates of all devices along each axis.
      device_coords: coordinates of this device in the topology.
      core_on_chip: index of this device on its chip.
      num_slices: number of TPU slices that the devices of this run span.
      num_hosts: number of processes that have devices.
      links: number of direct links to other chips.
      host_memory_bytes: memory of the host, or of the container.
      host_memory_in_use: bytes of the host's memory that all processes use.
      vector_extensions: vector extensions of the host's CPU.
      native_kernels: on a CPU, the vector instructions that voxax's native kernels use; or
        ``none`` and the reason why only XLA is used.
      sources: ``(field, source)`` for each known field.
    """

    platform: str
    device_kind: str
    num_devices: int = 1
    process_count: int = 1
    memory_bytes: int | None = None
    cpu_cores: int = 1
    model: str | None = None
    generation: str | None = None
    cores: int | None = None
    cores_per_chip: int | None = None
    sparse_cores: int | None = None
    memory_in_use: int | None = None
    memory_peak: int | None = None
    physical_memory_bytes: int | None = None
    vmem_bytes: int | None = None
    smem_bytes: int | None = None
    shared_memory_bytes: int | None = None
    l1_cache_bytes: int | None = None
    l2_cache_bytes: int | None = None
    l3_cache_bytes: int | None = None
    tile_shape: tuple[int, ...] | None = None
    lane_count: int | None = None
    matrix_unit: tuple[int, ...] | None = None
    num_matrix_units: int | None = None
    peak_rates: Rates | None = None
    memory_bandwidth: float | None = None
    clock_hz: float | None = None
    native_dtypes: tuple[str, ...] | None = None
    topology_shape: tuple[int, ...] | None = None
    device_coords: tuple[int, ...] | None = None
    core_on_chip: int | None = None
    num_slices: int | None = None
    num_hosts: int | None = None
    links: int | None = None
    host_memory_bytes: int | None = None
    host_memory_in_use: int | None = None
    vector_extensions: tuple[str, ...] | None = None
    native_kernels: str | None = None
    sources: tuple[tuple[str, str], ...] = dataclasses.field(default=(), repr=False)

    @classmethod
    def from_facts(cls, facts: Mapping[str, Fact]) -> HardwareInfo:
        """Make the record from ``facts`` by field name; other fields are unknown."""
        known = {name: facts[name] for name in field_names() if name in facts}
        sources = tuple((name, fact.source) for name, fact in known.items())
        return cls(**{name: fact.value for name, fact in known.items()}, sources=sources)

    @property
    def facts(self) -> dict[str, Fact]:
        """Every field as a :class:`Fact`, in order; unknown ones are ``Fact(None, "unknown")``."""
        sources = dict(self.sources)
        return {
            name: Fact(getattr(self, name), sources.get(name, UNKNOWN_SOURCE))
            for name in field_names()
        }

    def fact(self, name: str) -> Fact:
        """Return the field ``name`` with its source.

        Raises:
          InputError: there is no field of this name.
        """
        try:
            return self.facts[name]
        except KeyError:
            raise InputError(
                f"HardwareInfo has no field {name!r}; it has {', '.join(field_names())}"
            ) from None

    @property
    def memory_free(self) -> int | None:
        """Free memory in bytes: ``memory_bytes - memory_in_use``, where unknown use counts as 0."""
        if self.memory_bytes is None:
            return None
        return max(self.memory_bytes - (self.memory_in_use or 0), 0)

    def peak_rate(self, dtype: Any) -> float | None:
        """Return the peak operations per second of matrix products in ``dtype``; None if unknown.

        Args:
          dtype: a dtype or its name, such as ``"bfloat16"``.
        """
        name = dtype if isinstance(dtype, str) else np.dtype(dtype).name
        return dict(self.peak_rates or ()).get(name)

    def supports(self, feature: str) -> bool:
        """Return whether this device is known to have ``feature``; never raise an error.

        False may also mean that this is unknown, or that there is no feature of this name, so that
        the caller falls back to portable code. Features:

        - a dtype's name (``"bfloat16"``, ``"float8_e4m3fn"``, ``"int4"``, ...): native arithmetic
        - ``"matrix_unit"``: a unit for matrix products
        - ``"sparse_core"``: cores for gather and scatter
        - ``"vmem"``, ``"smem"``, ``"shared_memory"``: memories that a kernel manages itself
        - ``"memory_stats"``: the memory in use is known
        - ``"multi_core"``: the device has more than one core
        - ``"multi_device"``, ``"multi_host"``, ``"multi_slice"``: this run has more than one
          device, process or slice
        - ``"pallas"``: Pallas has a compiler for the platform
        - a vector extension of the host's CPU (``"avx2"``, ``"avx512f"``, ``"sve"``, ...)
        """
        if feature in _FEATURES:
            return _FEATURES[feature](self)
        return feature in (self.native_dtypes or ()) or feature in (self.vector_extensions or ())

    def to_json(self) -> dict[str, Any]:
        """Return ``{field: {"value": ..., "source": ...}}`` with values that JSON supports."""
        return {
            name: {"value": _plain(fact.value), "source": fact.source}
            for name, fact in self.facts.items()
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Mapping[str, Any]]) -> HardwareInfo:
        """Make the record from a result of :meth:`to_json`, also from one that was read as JSON.

        Fields that this version of voxax does not know are left out.
        """
        facts = {
            name: Fact(_frozen(entry["value"]), entry["source"])
            for name, entry in values.items()
            if entry["source"] != UNKNOWN_SOURCE
        }
        return cls.from_facts(facts)

    def __str__(self) -> str:
        rows = [(name, shown(name, fact.value), fact.source) for name, fact in self.facts.items()]
        first, second = (max(len(row[i]) for row in rows) for i in (0, 1))
        return "\n".join(f"{n:<{first}}  {v:<{second}}  {s}" for n, v, s in rows)


def _more_than(field: str, number: int) -> Callable[[HardwareInfo], bool]:
    return lambda info: (getattr(info, field) or 0) > number


_FEATURES: dict[str, Callable[[HardwareInfo], bool]] = {
    "matrix_unit": lambda info: info.matrix_unit is not None,
    "sparse_core": _more_than("sparse_cores", 0),
    "vmem": _more_than("vmem_bytes", 0),
    "smem": _more_than("smem_bytes", 0),
    "shared_memory": _more_than("shared_memory_bytes", 0),
    "memory_stats": lambda info: info.memory_in_use is not None,
    "multi_core": _more_than("cores", 1),
    "multi_device": _more_than("num_devices", 1),
    "multi_host": _more_than("process_count", 1),
    "multi_slice": _more_than("num_slices", 1),
    "pallas": lambda info: info.platform in ("gpu", "cuda", "tpu"),
}


def feature_names() -> tuple[str, ...]:
    """Return the names for :meth:`HardwareInfo.supports` except dtypes and vector extensions."""
    return tuple(_FEATURES)


def field_names() -> tuple[str, ...]:
    """Return the names of the fields of :class:`HardwareInfo` that are facts, in printing order."""
    return tuple(f.name for f in dataclasses.fields(HardwareInfo) if f.name != "sources")


_UNITS = {"peak_rates": "op/s", "memory_bandwidth": "bytes/s", "clock_hz": "Hz"}
_BYTES = ("memory_in_use", "memory_peak", "host_memory_in_use")


def shown(name: str, value: Any) -> str:
    """Format the value of the field ``name`` with its unit, for printing; ``-`` if it is None."""
    counts_bytes = name.endswith("_bytes") or name in _BYTES
    unit = "bytes" if counts_bytes else _UNITS.get(name, "")
    if value is None:
        return "-"
    if name == "peak_rates":
        return ", ".join(f"{dtype} {_scaled(rate, 1000, unit)}" for dtype, rate in value)
    if unit == "bytes":
        return _scaled(value, 1024, "B", "i")
    if unit:
        return _scaled(value, 1000, unit.replace("bytes", "B"))
    if name in ("tile_shape", "matrix_unit", "topology_shape"):
        return " x ".join(str(n) for n in value)
    if isinstance(value, tuple):
        return ", ".join(str(n) for n in value) or "none"
    return str(value)


def _scaled(value: float, base: int, unit: str, binary: str = "") -> str:
    for prefix in ("", "k", "M", "G", "T", "P"):
        if abs(value) < base or prefix == "P":
            break
        value /= base
    prefix = (prefix.upper() if binary else prefix) + (binary if prefix else "")
    return f"{value:.4g} {prefix}{unit}"


def _plain(value: Any) -> Any:
    return [_plain(v) for v in value] if isinstance(value, tuple) else value


def _frozen(value: Any) -> Any:
    return tuple(_frozen(v) for v in value) if isinstance(value, list) else value
