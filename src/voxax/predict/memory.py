"""Predict the memory of a run before it runs, and the largest capacity that fits."""

from __future__ import annotations

import bisect
import dataclasses
import functools
import re
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from voxax import _compat
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
    """Memory that a program will need and memory that is available, in bytes; prints as text.

    Attributes:
      device: kind of the device.
      capacity, batch_size: of the voxels asked about.
      argument_bytes: parameters, voxels, the optimizer's state.
      output_bytes: results.
      temporary_bytes: everything in between, and constants.
      program_bytes: the compiler's figure: all of these at once, less what is shared.
      resident_bytes: arguments that are on the device already.
      needed_bytes: what a run takes in addition to what is in use now.
      baseline_bytes: in use before the run: by this process on a CPU, on the device
        otherwise; None if the runtime does not count it.
      peak_bytes: the largest use to be expected: of this process on a CPU, of the device
        otherwise.
      available_bytes: free now, or as given; None if unknown.
      margin: share of the free memory that is left alone.
      suggested_capacity: the largest bucket that was found to fit (compiled, not guessed);
        None if none was looked for or found.
      suggested_batch: scenes of the present size that fit into that capacity.
      refused: the compiler itself refuses the program, for this reason; then only
        ``temporary_bytes`` is known, as far as the compiler told.
      programs: programs that were compiled for this answer.
      searched: whether a capacity that fits was looked for.
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
        """Available memory less the margin; None if unknown."""
        if self.available_bytes is None:
            return None
        return int((1 - self.margin) * self.available_bytes)

    @property
    def fits(self) -> bool:
        """True if the need is within the limit, or the limit is unknown."""
        if self.refused:
            return False
        return self.limit_bytes is None or self.needed_bytes <= self.limit_bytes

    def __bool__(self) -> bool:
        return self.fits

    def raise_if_not(self) -> MemoryReport:
        """Return this report if it fits.

        Raises:
          MemoryLimitError: names the memory needed, the memory available, and the largest
            capacity that fits. It is a CapacityError and a MemoryError.
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

    The program is compiled from shapes alone, and the compiler's own figures are read:
    arguments, outputs and temporaries. Nothing is allocated on the device, nothing runs, and
    nothing is measured: algorithms are those that :func:`voxax.explain` names.
    Compiling takes as long as the first call of the jitted model would, and more where a
    capacity is to be suggested.

    On a CPU memory is the process's: the baseline is what it holds when this returns. A
    program that is compiled again afterwards (by the caller's own ``jax.jit``) reuses most
    of what this compilation left. A jitted closure over a module holds copies of its
    parameters inside the program, beyond this prediction: make them arguments (``nnx.split``
    outside, ``nnx.merge`` inside).

    Args:
      model: any callable on Voxels, or on ``(params, voxels)``. A flax.nnx module is taken
        apart without being changed, and asked about in evaluation or training mode
        according to ``training``.
      voxels: an example, with or without attached maps; only its shapes matter.
      training: also the gradient with respect to the parameters (of an nnx module, or
        ``params``), and the new state.
      params: given to ``model`` as first argument.
      optimizer: with ``training``, anything with optax's ``init`` and ``update``: its state
        and update count too.
      loss: with ``training``, from the model's output to a scalar; None: the mean square.
      device: a JAX device, also one of a topology of absent hardware
        (``jax.experimental.topologies``). None: the first local one.
      available: bytes to stay within; None asks the device for its free memory.
      margin: share of the available memory to leave free for allocators.
      suggest: look for the largest capacity that fits, by compiling for a few. None: only
        where the voxels' own capacity does not fit.

    Returns:
      A :class:`voxax.predict.MemoryReport`: true if it fits; prints well; and
      ``fits(...).raise_if_not()`` raises :class:`voxax.predict.MemoryLimitError` before
      anything is allocated.

    Raises:
      InputError: an optimizer or a loss without ``training``; a margin outside [0, 1).
    """
    if not training and (optimizer is not None or loss is not None):
        raise InputError("optimizer= and loss= belong to a training step: give training=True")
    if not 0 <= margin < 1:
        raise InputError(f"margin={margin} must be at least 0 and less than 1")
    device = jax.local_devices()[0] if device is None else device
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
        # The model's own arrays stay where they are; other voxels are new ones.
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
    """Bytes of one compiled program.

    Attributes:
      arguments: parameters, voxels, the optimizer's state.
      outputs: results.
      temporaries: everything in between, and constants.
      aliased: outputs that take the place of arguments.
      code: the program itself, where the compiler counts it.
      refused: the compiler would not build it for lack of memory; then ``temporaries`` is
        what it asked for, as far as it told.
      reason: its words.
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
        """All that must be in the device's memory at once."""
        held = self.arguments + self.outputs + self.temporaries + self.code
        return held - self.aliased


def program_memory(step: Step, voxels: Any, device: Any) -> ProgramMemory:
    """Compile ``step`` for the shapes of ``voxels`` on ``device``, which may be absent.

    Raises:
      Exception: whatever tracing or compiling raises, except for lack of memory.
    """
    sharding = jax.sharding.SingleDeviceSharding(device)
    shapes = jax.tree.map(_shape, step.arguments(voxels))
    jitted = jax.jit(step.call, in_shardings=sharding, out_shardings=sharding)
    # The program of the choices that are known now: measuring would take memory and time.
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
    """Return the bytes of the arguments that are on ``device`` already."""
    held = jax.tree.leaves((step.state, voxels))
    arrays = [x for x in held if isinstance(x, jax.Array) and not _compat.is_traced(x)]
    return sum(x.nbytes for x in arrays if device in x.devices())


def _shape(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(np.shape(leaf), jax.dtypes.result_type(leaf))


def _bytes_asked(text: str) -> int:
    amounts = [float(n) * 2 ** _UNITS[unit] for n, unit in _USED.findall(text)]
    return int(max(amounts, default=0))


def resized(voxels: Voxels, capacity: int) -> Voxels:
    """Return voxels of ``ShapeDtypeStruct`` with ``capacity`` rows, attached maps included.

    The capacities of all levels keep their ratio to the input's, rounded up to a bucket.
    """
    old = voxels.capacity

    def rows(n: int) -> int:
        return capacity if n == old else bucket_capacity(-(-n * capacity // old))

    known = _capacities(voxels.geometry)

    def leaf(x: Any) -> Any:
        if isinstance(x, LostRows):  # of one shape for any capacity
            return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), x)
        shape = x.shape
        if shape and shape[0] in known:
            shape = (rows(shape[0]), *shape[1:])
        return jax.ShapeDtypeStruct(shape, x.dtype)

    abstract = jax.tree.map(leaf, voxels, is_leaf=lambda x: isinstance(x, LostRows))
    return dataclasses.replace(abstract, geometry=_levels(abstract.geometry, rows))


def buckets_up_to(n: int) -> list[int]:
    """Return all bucket capacities of at most ``n`` rows, ascending."""
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
    """Find the largest bucket whose need is within ``limit``, in ``tries`` compilations.

    Memory is nearly linear in the capacity, so the line through the capacities tried so far
    gives the next one. The answer itself was compiled.

    Args:
      need: bytes at a capacity, None where the program cannot be built; slow.
      start: a capacity that was tried already, the first point of the line.
      limit: bytes.
      tries: calls of ``need`` at most, with those at ``start``.
    """
    buckets = buckets_up_to(64 * max(start, 16))
    known: dict[int, int | None] = {start: need(start)}
    at_start = bisect.bisect_right(buckets, start) - 1
    low, high = (at_start, len(buckets)) if _fits(known[start], limit) else (-1, at_start + 1)
    if low >= 0 and low == at_start and buckets[low] != start:
        known[buckets[low]] = known[start]  # a bucket below: needs no more
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
    """Return the capacity at which the line through the closest points reaches ``limit``, or 0."""
    points = sorted((abs(n - limit), c, n) for c, n in known.items() if n is not None)[:2]
    if len(points) < 2:
        return 0
    (_, a, need_a), (_, b, need_b) = points
    if need_a == need_b:
        return 0
    return max(int(a + (limit - need_a) * (b - a) / (need_b - need_a)), 0)
