"""Functions to call Triton kernels from JAX, compiled for a GPU or interpreted on any platform.

A separate process tests whether Triton can compile for a GPU, since the compiler may crash.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from voxax import _compat
from voxax.hardware import hardware_of

# Tests show that Triton from 3.6 on compiles for these; for others LLVM may end the process.
_TRIED = (
    *("7.5", "8.0", "8.6", "8.7", "8.9", "9.0", "10.0", "10.3", "12.0", "12.1"),
    *("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201"),
)
_SECONDS = 120
# Triton's interpreter replaces functions of Triton's language while it runs.
_interpreting = threading.Lock()


@dataclasses.dataclass(frozen=True)
class Launch:
    """Options to compile and run a Triton kernel.

    Attributes:
      stages: number of loop iterations whose copies to shared memory are in flight together.
      warps: number of warps of a program. A warp has 32 threads, on AMD GPUs usually 64.
      interpret: whether to run in Triton's interpreter, on the host.
      options: other options of Triton's compiler, by name.
    """

    stages: int
    warps: int
    interpret: bool = False
    options: tuple[tuple[str, int], ...] = ()


@dataclasses.dataclass(frozen=True)
class Compilation:
    """The input of Triton's compiler for one call of a kernel.

    Attributes:
      kernel, constants, launch, programs: the arguments of :func:`call`.
      types: types of the kernel's other parameters in Triton's notation, such as ``*fp16``.
    """

    kernel: Any
    types: tuple[str, ...]
    constants: Mapping[str, Any]
    launch: Launch
    programs: int

    def compiled(self, generation: str) -> Any:
        """Return the kernel, compiled for the GPU ``generation``, which need not be present.

        ``generation`` is as for :func:`refusal`. Triton caches the result on disk.
        """
        launch = self.launch
        return _compat.compiled_by_triton(
            self.kernel,
            self.types,
            self.constants,
            generation,
            launch.warps,
            launch.stages,
            launch.options,
        )


_noted: contextvars.ContextVar[list[Compilation] | None]
_noted = contextvars.ContextVar("voxax_noted_calls", default=None)


@contextlib.contextmanager
def noting_calls() -> Iterator[list[Compilation]]:
    """Record calls: in this context, :func:`call` appends to the yielded list and returns zeros."""
    found: list[Compilation] = []
    token = _noted.set(found)
    try:
        yield found
    finally:
        _noted.reset(token)


def absence(generation: str | None = None) -> str | None:
    """Return the reason why Triton kernels cannot be called here, or None if they can.

    Args:
      generation: the GPU, as for :func:`refusal`; None checks only the installed packages.
    """
    if missing := _compat.missing_for_triton():
        return f"the Triton kernels need {missing}"
    return refusal(generation) if generation else None


@functools.cache
def refusal(generation: str) -> str | None:
    """Return the reason why Triton cannot compile for this GPU, or None if it can.

    For a GPU that voxax's tests do not cover, the first call compiles a small kernel in a separate
    process. This takes some seconds. The function warns if the compilation fails.

    Args:
      generation: the compute capability, such as ``9.0``, or AMD's name, such as ``gfx942``.
    """
    if not generation.startswith("gfx"):
        needed, known = _compat.ptx_version(generation), _compat.assembled_ptx()
        if known is not None and needed > known:
            return (
                f"a GPU of compute capability {generation} needs PTX {needed / 10}, and JAX's "
                f"assembler knows {known / 10}: install a newer nvidia-cuda-nvcc"
            )
    if generation in _TRIED:
        return None
    command = [sys.executable, "-m", "voxax.kernels.trial_kernel", generation]
    path = os.pathsep.join(place for place in sys.path if place)
    environment = os.environ | {"PYTHONPATH": path, "JAX_PLATFORMS": "cpu"}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        said = str(error)
    else:
        if done.returncode == 0:
            return None
        said = (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]
    reason = f"the installed Triton does not compile for {generation}: {said}"
    warnings.warn(f"{reason}. Convolutions run on XLA", stacklevel=2)
    return reason


def call(
    kernel: Any,
    launch: Launch,
    programs: int,
    out: jax.ShapeDtypeStruct,
    operands: tuple[jax.Array, ...],
    sizes: tuple[int, ...],
    constants: Mapping[str, Any],
) -> jax.Array:
    """Run ``kernel(*operands, *sizes, out, **constants)`` and return the array ``out``.

    Args:
      kernel: a ``triton.jit`` function with parameters in this order; constants may be anywhere.
      launch: options to compile and run the kernel.
      programs: number of programs along the first grid axis, where CUDA allows up to 2^31.
      out: shape and dtype of the result. The kernel must write every element.
      operands: dense row-major arrays, passed as pointers.
      sizes: int32 numbers, which can change without compiling the kernel again.
      constants: numbers and types that the kernel is compiled for, by name.
    """
    if (noted := _noted.get()) is not None:
        types = [f"*{_compat.triton_dtype(a.dtype)}" for a in (*operands, out)]
        types[len(operands) : len(operands)] = ["i32"] * len(sizes)
        noted.append(Compilation(kernel, tuple(types), dict(constants), launch, programs))
        return jnp.zeros(out.shape, out.dtype)
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
        options=launch.options,
    )


class _Memory:
    """A NumPy array with the methods that Triton's interpreter expects of a torch tensor."""

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
    given = (*map(_Memory, kept), *sizes, _Memory(result))
    names = (name for name in kernel.arg_names if name not in constants)
    with _interpreting:
        run = InterpretedFunction(kernel.fn)
        run[(programs,)](**dict(zip(names, given, strict=True)), **constants)
    return result.astype(out.dtype)


def _wide(dtype: Any) -> Any:
    return np.float32 if dtype == jnp.bfloat16 else dtype
