"""MinkowskiEngine's diagnostics, without GPUs."""

from __future__ import annotations

import platform
import sys

import torch


def is_cuda_available() -> bool:
    """Return False: these layers run on the CPU."""
    return False


def cuda_version() -> int:
    """Return -1: there is no CUDA in these layers."""
    return -1


cudart_version = cuda_version


def get_gpu_memory_info() -> tuple[int, int]:
    """Return the free and the total memory of GPUs: 0 and 0."""
    return 0, 0


def print_diagnostics() -> None:
    """Print the versions of the system, Python and PyTorch."""
    print(platform.platform(), sys.version, f"torch {torch.__version__}", sep="\n")  # noqa: T201 (its task)
