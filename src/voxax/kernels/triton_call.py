"""Calls of Triton kernels from JAX: compiled for a GPU, or interpreted on any platform."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from voxax import _compat
from voxax.hardware import hardware_of

# Triton's interpreter replaces functions of Triton's language while it runs.
_interpreting = threading.Lock()


@dataclasses.dataclass(frozen=True)
class Launch:
    """How a kernel is compiled and run.

    Attributes:
      stages: passes of its loop whose copies are under way at once.
      warps: threads of a program by 32, on AMD's GPUs by 64.
      interpret: run in Triton's interpreter, on the host.
    """

    stages: int
    warps: int
    interpret: bool = False


def absence() -> str | None:
    """The reason why no Triton kernel can be called, or None."""
    missing = _compat.missing_for_triton()
    return missing and f"the Triton kernels need {missing}"


def call(
    kernel: Any,
    launch: Launch,
    programs: int,
    out: jax.ShapeDtypeStruct,
    operands: tuple[jax.Array, ...],
    sizes: tuple[int, ...],
    constants: Mapping[str, Any],
) -> jax.Array:
    """Run ``kernel(*operands, *sizes, out, **constants)``.

    Args:
      kernel: a function under ``triton.jit``, whose parameters come in this order.
      launch: see there.
      programs: their number, along one axis: CUDA allows 2^31 along the first.
      out: shape and dtype of the result, all of which the kernel writes.
      operands: arrays, dense and row by row.
      sizes: numbers that do not change the compiled kernel.
      constants: those that do.
    """
    if launch.interpret:

        def run(*arrays: Any) -> np.ndarray:
            return _interpreted(kernel, programs, out, arrays, sizes, constants)

        return jax.pure_callback(run, out, *operands)
    return _compat.triton_call(
        kernel,
        operands,
        sizes,
        out,
        programs,
        constants,
        generation=hardware_of("gpu")[0].generation or "",
        warps=launch.warps,
        stages=launch.stages,
    )


class _Memory:
    """An array as Triton's interpreter expects one: an address, on the host already."""

    def __init__(self, array: np.ndarray):
        self._array = array
        self.dtype = _compat.triton_dtype(array.dtype)

    def data_ptr(self) -> int:
        return self._array.ctypes.data

    def untyped_storage(self) -> _Memory:
        return self

    def _unchanged(self, *args: Any, **options: Any) -> _Memory:
        return self

    cpu = new_empty = set_ = copy_ = storage_offset = size = stride = _unchanged


def _interpreted(
    kernel: Any, programs: int, out: Any, arrays: Any, sizes: Any, constants: Any
) -> np.ndarray:
    from triton.runtime.interpreter import (  # pyright: ignore[reportMissingImports]
        InterpretedFunction,
    )

    # The interpreter multiplies bfloat16 as integers; float32 has the same products.
    kept = [np.ascontiguousarray(array, _wide(array.dtype)) for array in arrays]
    result = np.full(out.shape, np.nan, _wide(out.dtype))
    with _interpreting:
        run = InterpretedFunction(kernel.fn)
        run[(programs,)](*map(_Memory, kept), *sizes, _Memory(result), **constants)
    return result.astype(out.dtype)


def _wide(dtype: Any) -> Any:
    return np.float32 if dtype == jnp.bfloat16 else dtype
