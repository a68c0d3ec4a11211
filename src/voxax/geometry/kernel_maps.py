"""``vx.kernel_map``: a map as a value, for users who want to hold one."""

from __future__ import annotations

from collections.abc import Sequence

from voxax.geometry.build import kernel_map_of
from voxax.geometry.kernel_map import KernelMap
from voxax.geometry.kernel_spec import KernelShape, KernelSpec
from voxax.geometry.voxels import Voxels


def kernel_map(
    voxels: Voxels,
    kernel_size: int | Sequence[int] = 3,
    stride: int | Sequence[int] = 1,
    dilation: int | Sequence[int] = 1,
    transposed: bool = False,
    generative: bool = False,
    out_voxels: Voxels | None = None,
    capacity: int | None = None,
    *,
    kernel_shape: KernelShape = "box",
    spatial_shape: int | Sequence[int] | None = None,
) -> KernelMap:
    """The relation between ``voxels`` and the voxels a convolution would produce.

    Built at most once per geometry, spec and trace, or taken from those that
    :func:`voxax.plan` attached. Arguments as in
    :func:`voxax.nn.functional.spatially_sparse_conv`.

    Raises:
      InputError, CapacityError: as there.
    """
    spec = KernelSpec.make(
        voxels.geometry.ndim,
        kernel_size,
        stride,
        dilation,
        transposed,
        generative,
        kernel_shape=kernel_shape,
        spatial_shape=spatial_shape,
    )
    out = None if out_voxels is None else out_voxels.geometry
    return kernel_map_of(voxels.geometry, spec, out, capacity)
