"""What spconv's binary says of itself: built for CPUs, as its version 2.3.8 is without CUDA."""

from __future__ import annotations

CPU_ONLY_BUILD = True
BUILD_CUMM_VERSION = "0.7.11"
BUILD_PCCM_VERSION = "0.4.16"
HAS_BOOST = True
"""Overlaps of turned boxes are there (:mod:`voxax.torch.spconv.boxes`), without Boost."""
COMPILED_CUDA_ARCHS: set[tuple[int, int]] = set()
COMPILED_CUDA_GEMM_ARCHS: set[tuple[int, int]] = set()
