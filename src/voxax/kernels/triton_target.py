"""Whether Triton kernels can be compiled for a GPU, asked where a crash is survived."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import warnings

from voxax import _compat

# Triton from 3.6 on compiles for these, as tests say; for others LLVM may end the process.
_TRIED = (
    *("7.5", "8.0", "8.6", "8.7", "8.9", "9.0", "10.0", "10.3", "12.0", "12.1"),
    *("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201"),
)
_SECONDS = 120


@functools.cache
def refusal(generation: str) -> str | None:
    """The reason why no Triton kernel is compiled for this GPU, or None.

    The first time for a GPU that is not well known, a small kernel is compiled in a process of its
    own, and a warning says if that fails. It takes some seconds.

    Args:
      generation: compute capability, as ``9.0``, or AMD's name, as ``gfx942``.
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
