"""Define the names of spconv's C++ module ``spconv.core_cc`` that Python code uses.

They describe a CPU build of spconv 2.3.8 and its voxel generators. The other functions of the C++
module write to memory that the caller prepares; :mod:`voxax.torch.spconv.ops` has functions with
the same results. The constants have the values of ``spconv.cppconstants``.
"""

from __future__ import annotations

from typing import NoReturn

from voxax.torch.spconv import voxel_generators
from voxax.torch.spconv.ops import CPU_ONLY_BUILD, INT32_MAX

BUILD_CUMM_VERSION = "0.7.11"
BUILD_PCCM_VERSION = "0.4.16"
HAS_BOOST = True
"""True: :mod:`voxax.torch.spconv.voxel_generators` computes overlaps of rotated boxes.

spconv needs the C++ library Boost for this, voxax does not.
"""
COMPILED_CUDA_ARCHS: set[tuple[int, int]] = set()
COMPILED_CUDA_GEMM_ARCHS: set[tuple[int, int]] = set()


class _Named(type):
    """Metaclass whose error for a missing attribute names the modules to use instead."""

    def __getattr__(cls, name: str) -> NoReturn:
        raise AttributeError(
            f"{cls.__name__}.{name}: voxax.torch.spconv has no binary; the functions on pairs and "
            "tensors are in spconv.pytorch.ops, those on boxes and points in spconv.utils"
        )


class SpconvOps(metaclass=_Named):
    """Static methods that describe the build of spconv."""

    @staticmethod
    def is_cpu_only_build() -> bool:
        """Return True, because this package runs on the CPU only."""
        return CPU_ONLY_BUILD

    @staticmethod
    def cumm_version() -> str:
        """Return the version of cumm that spconv 2.3.8 is built with."""
        return BUILD_CUMM_VERSION

    @staticmethod
    def get_int32_max() -> int:
        """Return the largest ``int32``, ``2**31 - 1``."""
        return INT32_MAX


class BoxOps(metaclass=_Named):
    """Static methods that describe the box functions of ``spconv.utils``."""

    @staticmethod
    def has_boost() -> bool:
        """Return True, because ``spconv.utils`` can compute overlaps of rotated boxes."""
        return HAS_BOOST


class CompileInfo(metaclass=_Named):
    """Static methods that describe the CUDA compilation, which this package does not have."""

    @staticmethod
    def get_compiled_cuda_arch() -> list[tuple[int, int]]:
        """Return an empty list of CUDA compute capabilities."""
        return []

    get_compiled_gemm_cuda_arch = get_compiled_cuda_arch


class PickledActivation:
    """Activation in a module that spconv has pickled: its number, as ``value``."""

    def __setstate__(self, value: int) -> None:
        self.value = value


MODULES: dict[str, dict[str, type]] = {
    "spconv.core_cc": {},
    "spconv.core_cc.csrc": {},
    "spconv.core_cc.csrc.sparse": {},
    "spconv.core_cc.csrc.sparse.all": {"SpconvOps": SpconvOps},
    "spconv.core_cc.csrc.utils": {},
    "spconv.core_cc.csrc.utils.boxops": {"BoxOps": BoxOps},
    "spconv.core_cc.cumm": {},
    "spconv.core_cc.cumm.common": {"CompileInfo": CompileInfo},
}
"""Maps each module name of ``spconv.core_cc`` to the names and classes of the module."""
for _kind in voxel_generators.KINDS:
    MODULES[f"spconv.core_cc.csrc.sparse.all.ops_cpu{_kind.NDIM}d"] = {"Point2VoxelCPU": _kind}
