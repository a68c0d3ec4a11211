"""What the compiler says a program needs: compiled from shapes, nothing is allocated."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import jax
import numpy as np

from voxax import _compat
from voxax.sizing.step import Step

# "Used 21.31G of 15.75G hbm" and the like, of XLA's allocators.
_USED = re.compile(r"(?:[Uu]sed|allocate|allocating)\s+([\d.]+)\s?([KMGT]?)i?B?\b")
_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}


@dataclasses.dataclass(frozen=True)
class ProgramMemory:
    """Bytes of one compiled program.

    Attributes:
      arguments: parameters, voxels, the optimiser's state.
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
    """Compile ``step`` for the shapes of ``voxels`` on ``device``, which need not be there.

    Raises:
      Exception: whatever tracing or compiling raises, but for lack of memory.
    """
    sharding = jax.sharding.SingleDeviceSharding(device)
    shapes = jax.tree.map(_shape, step.arguments(voxels))
    jitted = jax.jit(step.call, in_shardings=sharding, out_shardings=sharding)
    lowered = jitted.lower(*shapes)
    try:
        stats: Any = lowered.compile().memory_analysis()
    except Exception as error:
        text = str(error)
        if "RESOURCE_EXHAUSTED" not in text and "out of memory" not in text.lower():
            raise
        return ProgramMemory(temporaries=_asked(text), refused=True, reason=_first_line(text))
    return ProgramMemory(
        stats.argument_size_in_bytes,
        stats.output_size_in_bytes,
        stats.temp_size_in_bytes,
        stats.alias_size_in_bytes,
        stats.generated_code_size_in_bytes,
    )


def resident_bytes(step: Step, voxels: Any, device: Any) -> int:
    """Bytes of the arguments that are on ``device`` already."""
    held = jax.tree.leaves((step.state, voxels))
    arrays = [x for x in held if isinstance(x, jax.Array) and not _compat.is_traced(x)]
    return sum(x.nbytes for x in arrays if device in x.devices())


def _shape(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(np.shape(leaf), jax.dtypes.result_type(leaf))


def _asked(text: str) -> int:
    amounts = [float(n) * 2 ** _UNITS[unit] for n, unit in _USED.findall(text)]
    return int(max(amounts, default=0))


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0][:300] if text.strip() else ""
