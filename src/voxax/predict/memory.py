"""Predict the memory of a program before it runs, and the largest capacity that fits."""

from __future__ import annotations

import bisect
import dataclasses
import functools
import re
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from voxax import _compat, _limits
from voxax.coords import bucket_capacity
from voxax.errors import CapacityError, InputError
from voxax.geometry import VoxelGeometry, Voxels
from voxax.geometry.call_checks import checked_operator
from voxax.geometry.lost_rows import LostRows
from voxax.hardware import describe, process_memory
from voxax.nn.model_step import Step, step_of
from voxax.tuning import unmeasured


class MemoryLimitError(CapacityError, MemoryError):
    """A program needs more memory than the device has free."""


@dataclasses.dataclass(frozen=True)
class MemoryReport:
    """The memory that a program will need, and the memory that is available; prints as text.

    Attributes:
      device: kind of the device.
      capacity, batch_size: capacity and batch size of the voxels.
      argument_bytes: bytes of parameters, voxels and the optimizer's state.
      output_bytes: bytes of results.
      temporary_bytes: bytes of intermediate arrays and constants.
      program_bytes: bytes of arguments, outputs, temporaries and the program's code, without
        outputs that reuse the memory of arguments.
      resident_bytes: bytes of arguments that are on the device already.
      needed_bytes: bytes that a run needs in addition to the memory in use now.
      baseline_bytes: bytes in use before the run, by this process on a CPU, otherwise on the
        device; None if the runtime does not count them.
      peak_bytes: the largest expected use, by this process on a CPU, otherwise on the device.
      available_bytes: bytes that are free now, or the argument ``available``; None if unknown.
      margin: share of the available memory that stays free.
      suggested_capacity: the largest capacity found to fit; None if there was no search, or none
        fits.
      suggested_batch: number of scenes of the present size that fit into this capacity.
      refused: the reason why the compiler refuses the program, or empty. If refused, only
        ``temporary_bytes`` is known, from the compiler's message.
      programs: number of programs that were compiled for this report.
      searched: whether there was a search for a capacity that fits.
    """

    device: str
    capacity: int
    batch_size: int
    argument_bytes: int
    output_bytes: int
    temporary_bytes: int
    program_bytes: int
    resident_bytes: int
    needed_bytes: int
    baseline_bytes: int | None
    peak_bytes: int
    available_bytes: int | None
    margin: float
    suggested_capacity: int | None = None
    suggested_batch: int | None = None
    refused: str = ""
    programs: int = 1
    searched: bool = False

    @property
    def limit_bytes(self) -> int | None:
        """Available memory minus the margin; None if unknown."""
        if self.available_bytes is None:
            return None
        return int((1 - self.margin) * self.available_bytes)

    @property
    def fits(self) -> bool:
        """Whether the program compiles, and the needed memory is within the limit (if known)."""
        if self.refused:
            return False
        return self.limit_bytes is None or self.needed_bytes <= self.limit_bytes

    def __bool__(self) -> bool:
        return self.fits

    def raise_if_not(self) -> MemoryReport:
        """Return this report if the program fits; raise an error if it does not.

        Raises:
          MemoryLimitError: the program does not fit. The message names the memory needed, the
            memory available, and the largest capacity that fits.
        """
        if not self.fits:
            raise MemoryLimitError(f"{self._verdict()}: {self._advice()}")
        return self

    def _verdict(self) -> str:
        words = f"capacity {self.capacity} (batch of {self.batch_size}) needs "
        if self.refused:
            asked = f"{megabytes(self.needed_bytes)}, " if self.needed_bytes else ""
            return f"{words}{asked}more than the compiler allows on {self.device}: {self.refused}"
        words += f"{megabytes(self.needed_bytes)} on {self.device}"
        if self.available_bytes is None:
            return f"{words}, whose free memory is unknown"
        left = f", of which {self.margin:.0%} are left alone" if self.margin else ""
        return f"{words}, available are {megabytes(self.available_bytes)}{left}"

    def _advice(self) -> str:
        if self.suggested_capacity is None and not self.searched:
            return "no smaller capacity was tried; use suggest=True, or a narrower network"
        if self.suggested_capacity is None:
            return "no capacity was found that fits; use a narrower network or another device"
        batch = self.suggested_batch or 0
        scenes = f", about {batch} scenes of this size" if batch else ""
        more = "" if self.fits else ", or a narrower network"
        return f"the largest capacity that fits is {self.suggested_capacity}{scenes}{more}"

    def __str__(self) -> str:
        verdict = "fits" if self.fits else "does not fit"
        lines = [f"{verdict}: {self._verdict()}"]
        if not self.fits or self.suggested_capacity is not None:
            lines.append(self._advice())
        rows = [
            ("arguments", self.argument_bytes),
            ("outputs", self.output_bytes),
            ("temporaries", self.temporary_bytes),
            ("program", self.program_bytes),
            ("already there", self.resident_bytes),
            ("needed", self.needed_bytes),
            ("in use before", self.baseline_bytes),
            ("peak", self.peak_bytes),
            ("available", self.available_bytes),
        ]
        lines += [f"  {name:<14} {megabytes(value):>12}" for name, value in rows]
        return "\n".join(lines)


def megabytes(value: int | None) -> str:
    """Return bytes in MiB as text, or ``unknown``."""
    return "unknown" if value is None else f"{value / 2**20:,.1f} MiB"


@functools.partial(checked_operator, on_whole_arrays=False)
def fits(
    model: Callable[..., Any],
    voxels: Voxels,
    *,
    training: bool = False,
    params: Any = None,
    optimizer: Any = None,
    loss: Callable[[Any], jax.Array] | None = None,
    device: Any = None,
    available: int | None = None,
    margin: float = 0.1,
    suggest: bool | None = None,
) -> MemoryReport:
    """Predict whether ``model(voxels)`` fits into the device's free memory, before running it.

    The program is compiled from shapes alone, and the compiler reports the memory of arguments,
    outputs and temporaries. Nothing is allocated on the device, nothing runs, and nothing is
    measured: algorithms are those that :func:`voxax.explain` names. Compiling takes as long as in
    the first call of the jitted model, and longer if a capacity is to be suggested.

    On a CPU the report is about the memory of the process, and the baseline is its memory when
    ``fits`` returns. If your own ``jax.jit`` compiles the program again, it reuses most of the
    memory that this compilation left. A jitted closure over a module has copies of the module's
    parameters in the program, which are not counted: pass them as arguments (``nnx.split`` outside,
    ``nnx.merge`` inside).

    Args:
      model: any callable on Voxels, or on ``(params, voxels)``. A flax.nnx module is not changed;
        it is compiled in evaluation or training mode according to ``training``.
      voxels: an example, with or without attached maps; only its shapes matter.
      training: whether to compile a training step, with the gradient of the parameters (those of an
        nnx module, or ``params``) and the new state.
      params: the first argument of ``model``, if it takes parameters.
      optimizer: with ``training``, an object with optax's ``init`` and ``update``, whose state and
        update are included; None leaves them out.
      loss: with ``training``, a function from the model's output to a scalar; None takes the mean
        square.
      device: a JAX device, which may be one of an absent topology
        (``jax.experimental.topologies``). None takes the first local device.
      available: largest number of bytes to use; None takes the device's free memory.
      margin: share of the available memory to leave free for allocators.
      suggest: whether to search for the largest capacity that fits, by compiling for a few
        capacities. None searches only if the capacity of ``voxels`` does not fit.

    Returns:
      A :class:`voxax.predict.MemoryReport`, which is true if the program fits and prints as text.
      ``fits(...).raise_if_not()`` raises :class:`voxax.predict.MemoryLimitError` before anything is
      allocated.

    Raises:
      InputError: ``optimizer`` or ``loss`` without ``training``, a margin outside [0, 1), an
        optimizer without ``init`` and ``update``, a device that is none of JAX, or ``available`` is
        no number of bytes.
    """
    if not training and (optimizer is not None or loss is not None):
        raise InputError("optimizer= and loss= belong to a training step: give training=True")
    if isinstance(margin, str) or not 0 <= margin < 1:
        raise InputError(f"margin={margin!r} must be a number of at least 0 and less than 1")
    if available is not None:
        _limits.BYTES.check("available", available, 0)
    device = jax.local_devices()[0] if device is None else device
    if not hasattr(device, "device_kind"):
        raise InputError(f"device={device!r:.80}: give a device of JAX, such as jax.devices()[0]")
    step = step_of(model, params, training, optimizer, loss)
    compiled: dict[int, ProgramMemory] = {}

    def memory(capacity: int) -> ProgramMemory:
        if capacity not in compiled:
            same = capacity == voxels.capacity
            shapes = voxels if same else resized(voxels, capacity)
            compiled[capacity] = program_memory(step, shapes, device)
        return compiled[capacity]

    def report() -> MemoryReport:
        return _report(
            memory(voxels.capacity), step, voxels, device, available, margin, len(compiled)
        )

    first = report()
    limit = first.limit_bytes
    if limit is None or (first.fits if suggest is None else not suggest):
        return first

    def need(capacity: int) -> int | None:
        program = memory(capacity)
        # The model's arrays may be on the device already, voxels of another capacity are not.
        held = (
            first.resident_bytes
            if capacity == voxels.capacity
            else resident_bytes(step, (), device)
        )
        return None if program.refused else program.total - min(held, program.arguments)

    capacity = largest_fitting(need, voxels.capacity, limit)
    batch = None if capacity is None else capacity * max(voxels.batch_size, 1) // voxels.capacity
    return dataclasses.replace(
        report(), suggested_capacity=capacity, suggested_batch=batch, searched=True
    )


def _report(
    program: ProgramMemory,
    step: Step,
    voxels: Voxels,
    device: Any,
    available: int | None,
    margin: float,
    programs: int,
) -> MemoryReport:
    info = describe(device)
    resident = min(resident_bytes(step, voxels, device), program.arguments)
    needed = program.total - resident
    baseline, before = info.memory_in_use, 0
    if info.platform == "cpu":
        baseline, before = process_memory(), info.memory_peak or 0
    return MemoryReport(
        info.device_kind,
        voxels.capacity,
        voxels.batch_size,
        program.arguments,
        program.outputs,
        program.temporaries,
        program.total,
        resident,
        needed,
        baseline,
        max((baseline or 0) + needed, before),
        info.memory_free if available is None else available,
        margin,
        refused=program.reason if program.refused else "",
        programs=programs,
    )


# "Used 21.31G of 15.75G hbm" and the like, of XLA's allocators.
_USED = re.compile(r"(?:[Uu]sed|allocate|allocating)\s+([\d.]+)\s?([KMGT]?)i?B?\b")
_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}


@dataclasses.dataclass(frozen=True)
class ProgramMemory:
    """Bytes of memory that one compiled program needs.

    Attributes:
      arguments: bytes of parameters, voxels and the optimizer's state.
      outputs: bytes of results.
      temporaries: bytes of intermediate arrays and constants.
      aliased: bytes of outputs that take the place of arguments.
      code: bytes of the program itself, where the compiler counts them.
      refused: whether the compiler refuses the program for lack of memory; ``temporaries`` is then
        the size that its message names, if any.
      reason: the compiler's message if refused, else empty.
    """

    arguments: int = 0
    outputs: int = 0
    temporaries: int = 0
    aliased: int = 0
    code: int = 0
    refused: bool = False
    reason: str = ""

    @property
    def total(self) -> int:
        """Bytes that must be in the device's memory at once."""
        held = self.arguments + self.outputs + self.temporaries + self.code
        return held - self.aliased


def program_memory(step: Step, voxels: Any, device: Any) -> ProgramMemory:
    """Compile ``step`` for the shapes of ``voxels``, and return the memory that the program needs.

    ``device`` may be absent. Nothing is run.

    Raises:
      Exception: tracing or compiling fails for another reason than lack of memory.
    """
    sharding = jax.sharding.SingleDeviceSharding(device)
    shapes = jax.tree.map(_shape, step.arguments(voxels))
    jitted = jax.jit(step.call, in_shardings=sharding, out_shardings=sharding)
    # Only algorithm choices that are known already are used: measuring takes memory and time.
    with unmeasured(foreseen=True):
        lowered = jitted.lower(*shapes)
    try:
        stats: Any = lowered.compile().memory_analysis()
    except Exception as error:
        text = str(error)
        if "RESOURCE_EXHAUSTED" not in text and "out of memory" not in text.lower():
            raise
        reason = (text.strip().splitlines() or [""])[0][:300]
        return ProgramMemory(temporaries=_bytes_asked(text), refused=True, reason=reason)
    return ProgramMemory(
        stats.argument_size_in_bytes,
        stats.output_size_in_bytes,
        stats.temp_size_in_bytes,
        stats.alias_size_in_bytes,
        stats.generated_code_size_in_bytes,
    )


def resident_bytes(step: Step, voxels: Any, device: Any) -> int:
    """Return how many bytes of a step's arguments (its state, the voxels) are on ``device`` now."""
    held = jax.tree.leaves((step.state, voxels))
    arrays = [x for x in held if isinstance(x, jax.Array) and not _compat.is_traced(x)]
    return sum(x.nbytes for x in arrays if device in x.devices())


def _shape(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(np.shape(leaf), jax.dtypes.result_type(leaf))


def _bytes_asked(text: str) -> int:
    amounts = [float(n) * 2 ** _UNITS[unit] for n, unit in _USED.findall(text)]
    return int(max(amounts, default=0))


def resized(voxels: Voxels, capacity: int) -> Voxels:
    """Return ``voxels`` and their kernel maps as ``ShapeDtypeStruct``s for another capacity.

    The capacities of the other levels change by the same factor, and are rounded up to a bucket.
    """
    old = voxels.capacity

    def rows(n: int) -> int:
        return capacity if n == old else bucket_capacity(-(-n * capacity // old))

    known = _capacities(voxels.geometry)

    def leaf(x: Any) -> Any:
        if isinstance(x, LostRows):  # its shape does not depend on the capacity
            return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), x)
        shape = x.shape
        if shape and shape[0] in known:
            shape = (rows(shape[0]), *shape[1:])
        return jax.ShapeDtypeStruct(shape, x.dtype)

    abstract = jax.tree.map(leaf, voxels, is_leaf=lambda x: isinstance(x, LostRows))
    return dataclasses.replace(abstract, geometry=_levels(abstract.geometry, rows))


def buckets_up_to(n: int) -> list[int]:
    """Return the bucket sizes (the capacities that voxax chooses by default) up to ``n``."""
    found = [bucket_capacity(0)]
    while found[-1] < n:
        found.append(bucket_capacity(found[-1] + 1))
    return found[: bisect.bisect_right(found, n)]


def _capacities(geometry: VoxelGeometry) -> set[int]:
    known = {geometry.capacity, *(n for _, n in geometry.level_capacities)}
    if geometry.attached is not None:
        known |= {level.capacity for level in geometry.attached.levels}
    return known


def _levels(geometry: VoxelGeometry, rows: Any) -> VoxelGeometry:
    sizes = tuple((stride, rows(n)) for stride, n in geometry.level_capacities)
    attached = geometry.attached
    if attached is not None:
        levels = tuple(_levels(level, rows) for level in attached.levels)
        attached = dataclasses.replace(attached, levels=levels)
    return dataclasses.replace(geometry, level_capacities=sizes, attached=attached)


def largest_fitting(
    need: Callable[[int], int | None], start: int, limit: int, tries: int = 6
) -> int | None:
    """Search for the largest bucket size whose memory is within ``limit``; None if none was found.

    Memory is nearly linear in the capacity, so a line through the capacities tried so far gives the
    next one to try. The returned size was tried, or is the next bucket size below ``start``, if
    ``start`` fits.

    Args:
      need: a slow function that returns the bytes at a capacity, or None if the program cannot be
        built.
      start: the first capacity to try.
      limit: the largest number of bytes.
      tries: largest number of calls of ``need``, including the call for ``start``.
    """
    buckets = buckets_up_to(64 * max(start, 16))
    known: dict[int, int | None] = {start: need(start)}
    at_start = bisect.bisect_right(buckets, start) - 1
    low, high = (at_start, len(buckets)) if _fits(known[start], limit) else (-1, at_start + 1)
    if low >= 0 and low == at_start and buckets[low] != start:
        known[buckets[low]] = known[start]  # a smaller bucket needs no more
    elif low < 0 and buckets[at_start] == start:
        high = at_start
    guess = max(at_start - 8, 0)  # a quarter of the capacity: a second point for the line
    for _ in range(tries - 1):
        if high - low <= 1:
            break
        guess = min(max(guess, low + 1), high - 1)
        known[buckets[guess]] = need(buckets[guess])
        if _fits(known[buckets[guess]], limit):
            low = guess
        else:
            high = guess
        capacity = _on_the_line(known, limit)
        guess = bisect.bisect_right(buckets, capacity) - 1 if capacity else (low + high) // 2
    return buckets[low] if low >= 0 else None


def _fits(need: int | None, limit: int) -> bool:
    return need is not None and need <= limit


def _on_the_line(known: dict[int, int | None], limit: int) -> int:
    """Estimate the capacity whose program needs `limit` bytes; 0 if there is no estimate.

    `known` has the bytes of the capacities that were tried, None where no program could be built.
    The estimate is on the line through the two points whose bytes are nearest to `limit`.
    """
    points = sorted((abs(n - limit), c, n) for c, n in known.items() if n is not None)[:2]
    if len(points) < 2:
        return 0
    (_, a, need_a), (_, b, need_b) = points
    if need_a == need_b:
        return 0
    return max(int(a + (limit - need_a) * (b - a) / (need_b - need_a)), 0)
