"""The part of spconv's binary that code names itself: facts of the build, boxes, points to voxels.

The rest of ``spconv.core_cc`` is functions in C++ on memory that a caller prepares; what they do
is in :mod:`voxax.torch.spconv.ops`.
"""

from __future__ import annotations

from typing import NoReturn

from voxax.torch.spconv import boxes as overlaps_of
from voxax.torch.spconv import cppconstants, voxel_generators
from voxax.torch.spconv.ops import INT32_MAX
from voxax.torch.spconv.tensorview import Tensor


class _Named(type):
    """Says of names that are not there where to look."""

    def __getattr__(cls, name: str) -> NoReturn:
        raise AttributeError(
            f"{cls.__name__}.{name}: voxax.torch.spconv has no binary; the functions on pairs and "
            "tensors are in spconv.pytorch.ops"
        )


class SpconvOps(metaclass=_Named):
    """Facts of the build."""

    @staticmethod
    def is_cpu_only_build() -> bool:
        """Return True."""
        return cppconstants.CPU_ONLY_BUILD

    @staticmethod
    def cumm_version() -> str:
        """Return the version of cumm that spconv 2.3.8 is built with."""
        return cppconstants.BUILD_CUMM_VERSION

    @staticmethod
    def pccm_version() -> str:
        """Return the version of pccm that spconv 2.3.8 is built with."""
        return cppconstants.BUILD_PCCM_VERSION

    @staticmethod
    def get_int32_max() -> int:
        """Return the largest int32."""
        return INT32_MAX

    @staticmethod
    def calc_point2voxel_meta_data(
        vsize_xyz: list[float], coors_range_xyz: list[float]
    ) -> tuple[list[float], list[int], list[int], list[float]]:
        """Return sizes of cells, sizes of the grid, its strides and bounds, axes reversed."""
        return voxel_generators.meta_data(vsize_xyz, coors_range_xyz)


class BoxOps(metaclass=_Named):
    """:mod:`voxax.torch.spconv.boxes` on ``cumm.tensorview``'s tensors."""

    @staticmethod
    def has_boost() -> bool:
        """Return whether overlaps of turned boxes are there: True."""
        return cppconstants.HAS_BOOST

    @staticmethod
    def rbbox_iou(
        box_corners: Tensor,
        qbox_corners: Tensor,
        standup_iou: Tensor,
        overlaps: Tensor,
        standup_thresh: float,
        inter_only: bool,
    ) -> None:
        """Write what :func:`~voxax.torch.spconv.boxes.rbbox_iou` returns into ``overlaps``."""
        of = overlaps_of.rbbox_intersection if inter_only else overlaps_of.rbbox_iou
        first, second = box_corners.numpy_view(), qbox_corners.numpy_view()
        overlaps.numpy_view()[...] = of(first, second, standup_iou.numpy_view(), standup_thresh)

    @staticmethod
    def non_max_suppression_cpu(
        boxes: Tensor, order: Tensor, thresh: float, eps: float = 0
    ) -> list[int]:
        """As the function of ``spconv.utils``."""
        arrays = boxes.numpy_view(), order.numpy_view()
        return overlaps_of.non_max_suppression_cpu(*arrays, thresh, eps)

    @staticmethod
    def rotate_non_max_suppression_cpu(
        box_corners: Tensor, order: Tensor, standup_iou: Tensor, thresh: float, eps: float = 0
    ) -> list[int]:
        """As the function of ``spconv.utils``; ``eps`` means nothing, as in spconv."""
        del eps
        arrays = box_corners.numpy_view(), order.numpy_view(), standup_iou.numpy_view()
        return overlaps_of.rotate_non_max_suppression_cpu(*arrays, thresh)


class CompileInfo(metaclass=_Named):
    """Nothing is compiled for CUDA."""

    @staticmethod
    def get_compiled_cuda_version() -> tuple[int, int]:
        """Return ``(-1, -1)``."""
        return -1, -1

    @staticmethod
    def get_compiled_cuda_arch() -> list[tuple[int, int]]:
        """Return none."""
        return []

    get_compiled_gemm_cuda_arch = get_compiled_cuda_arch

    @staticmethod
    def arch_is_compiled(arch: tuple[int, int]) -> bool:
        """Return False."""
        del arch
        return False

    arch_is_compiled_gemm = arch_is_compatible = arch_is_compatible_gemm = arch_is_compiled


MODULES: dict[str, dict[str, type]] = {
    "csrc.sparse.all": {"SpconvOps": SpconvOps},
    "csrc.utils.boxops": {"BoxOps": BoxOps},
    "cumm.common": {"CompileInfo": CompileInfo},
    **{
        f"csrc.sparse.all.ops_cpu{kind.NDIM}d": {"Point2VoxelCPU": kind}
        for kind in voxel_generators.KINDS
    },
}
"""Modules of ``spconv.core_cc`` and what they hold."""
