"""Define MinkowskiEngine's functions that describe the system; they report no GPU."""

from __future__ import annotations

import platform
import sys

import torch


def is_cuda_available() -> bool:
    """Return False, because the layers run on the CPU only."""
    return False


def cuda_version() -> int:
    """Return -1, because the layers do not use CUDA."""
    return -1


cudart_version = cuda_version


def get_gpu_memory_info() -> tuple[int, int]:
    """Return 0 and 0 as the free and the total memory of GPUs."""
    return 0, 0


def print_diagnostics() -> None:
    """Print the versions of the system, Python and PyTorch."""
    print(platform.platform(), sys.version, f"torch {torch.__version__}", sep="\n")  # noqa: T201 (its task)
