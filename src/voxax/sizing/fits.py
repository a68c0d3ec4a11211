"""Predict the memory of a run before it runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from voxax.errors import InputError
from voxax.geometry import Voxels
from voxax.hardware import describe, process_memory
from voxax.sizing.program import ProgramMemory, program_memory, resident_bytes
from voxax.sizing.report import MemoryReport
from voxax.sizing.resize import resized
from voxax.sizing.search import largest_fitting
from voxax.sizing.step import Step, step_of


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
    """Whether ``model(voxels)`` fits into the device's free memory, before running it.

    The program is compiled from shapes alone and the compiler's own account is read:
    arguments, outputs and temporaries. Nothing is allocated on the device and nothing runs.
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
      device: a JAX device, also one of a topology that is not there
        (``jax.experimental.topologies``). None: the first local one.
      available: bytes to stay within; None asks the device for its free memory.
      margin: share of the available memory to leave alone: allocators need room.
      suggest: look for the largest capacity that fits, by compiling for a few. None: only
        where the voxels' own capacity does not fit.

    Returns:
      A :class:`voxax.sizing.MemoryReport`: true if it fits; prints well; and
      ``fits(...).raise_if_not()`` raises :class:`voxax.sizing.MemoryLimitError` before
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
        held = first.resident_bytes if capacity == voxels.capacity else _state(step, device)
        return None if program.refused else program.total - min(held, program.arguments)

    capacity = largest_fitting(need, voxels.capacity, limit)
    batch = None if capacity is None else capacity * max(voxels.batch_size, 1) // voxels.capacity
    return dataclasses.replace(
        report(), suggested_capacity=capacity, suggested_batch=batch, searched=True
    )


def _state(step: Step, device: Any) -> int:
    return resident_bytes(step, (), device)


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
