"""Sparse convolution of Voxels: strided, submanifold, transposed or generative."""

from __future__ import annotations

import enum
from collections.abc import Sequence

import jax

from voxax._array_types import Array, Num
from voxax.geometry import KernelMap, KernelShape, Voxels
from voxax.geometry.call_checks import checked_operator
from voxax.nn.arguments import by_product, convolve_voxels, request_map
from voxax.tuning import Request


class SPARSE_CONV_FWD_ALGO_MODE(enum.StrEnum):
    """Names of algorithms for ``fwd_algo=`` of sparse convolutions; a member equals its string."""

    EXPLICIT_GEMM = "explicit_gemm"
    IMPLICIT_GEMM = "implicit_gemm"
    CUTLASS_IMPLICIT_GEMM = "cutlass_implicit_gemm"
    AUTO = "auto"
    ALL = "all"


SPARSE_CONV_BWD_ALGO_MODE = SPARSE_CONV_FWD_ALGO_MODE
"""Names of algorithms for ``bwd_algo=``, the same as for ``fwd_algo=``."""


@checked_operator
def spatially_sparse_conv(
    voxels: Voxels,
    weight: Num[Array, "K C_in C_out"] | Num[Array, "K G C_in_per_G C_out_per_G"],
    kernel_size: int | Sequence[int] = 3,
    stride: int | Sequence[int] = 1,
    dilation: int | Sequence[int] = 1,
    bias: Num[Array, " C_out"] | None = None,
    groups: int = 1,
    *,
    transposed: bool = False,
    generative: bool = False,
    out_voxels: Voxels | None = None,
    capacity: int | None = None,
    kernel_map: KernelMap | None = None,
    fwd_algo: Request = None,
    bwd_algo: Request = None,
    dgrad_algo: Request = None,
    wgrad_algo: Request = None,
    precision: jax.lax.PrecisionLike = None,
    kernel_shape: KernelShape = "box",
    spatial_shape: int | Sequence[int] | None = None,
) -> Voxels:
    """Convolve voxels, and compute the result only at voxels (sparse convolution).

    ``weight[k]`` multiplies the input at ``out * stride + offset[k] * dilation``. At the active
    outputs, the result equals ``jax.lax.conv_general_dilated`` on the densified grid. A kernel
    of size k covers offsets ``-((k-1)//2)`` to ``k//2``, or ``0`` to ``k-1`` when
    ``stride == k``. Stride 1 keeps the voxels (submanifold convolution, Graham et al. 2018).
    With stride s the output voxels are ``unique(floor(coords / s))``.

    Args:
      voxels: input with ``C_in`` channels.
      weight: ``[K, C_in, C_out]``, or ``[K, G, C_in/G, C_out/G]`` with ``groups=G``; the K taps in
        lexicographic order, last axis fastest (a dense kernel, flattened).
      kernel_size, stride, dilation: integers, or one per axis.
      bias: ``[C_out]`` or None.
      groups: number of channel groups.
      transposed: whether to convolve from coarse voxels to the fine ``out_voxels`` (the adjoint of
        the convolution with this stride).
      generative: whether to create an output voxel at every site that a kernel offset connects with
        an input voxel.
      out_voxels: voxels whose coordinates the result gets: the target of a transposed convolution,
        or any voxels on the lattice of the output.
      capacity: static number of rows of new output voxels. None takes the capacity that
        :func:`voxax.plan` gave this level. Without a plan, None takes the input's capacity, or with
        ``generative`` counts the new voxels, which needs an eager call.
      kernel_map: an existing map, from :func:`voxax.kernel_map`, in place of the arguments that
        describe one.
      fwd_algo, bwd_algo, dgrad_algo, wgrad_algo: which algorithms may be used: a name, an enum
        member, a list or tuple of them, ``"[a,b]"``, ``"auto"``; None leaves it to
        :func:`voxax.algorithms` and the environment. ``bwd_algo`` applies to the gradients by input
        (dgrad) and by weight (wgrad) that have no request of their own.
      precision: None keeps the input's full precision (or follows
        ``jax.default_matmul_precision``).
      kernel_shape: ``"box"``, ``"cross"``, or custom offsets ``int[K, D]``, whose order is
        that of the weight's taps (``kernel_size`` is then ignored).
      spatial_shape: extent n of the input's grid ``[0, n)``, an integer or one per axis; only
        with ``generative``. The outputs are then those of a dense convolution on this grid, padded
        by the kernel's reach below its center, ``dilation * ((k - 1) // 2)``, or by 0 where stride
        equals k (spconv's ``SparseConv3d`` with this padding).

    Returns:
      Voxels with ``C_out`` channels in the promoted dtype, accumulated in at least float32.
      Integers of 8 and 16 bits give int32.

    Raises:
      InputError: shapes do not match, a transposed convolution has no target, or the sites that all
        taps of a generative one reach from all rows are more than 2**31 - 1, or than fit into
        memory on a CPU.
      CapacityError: there are more outputs than ``capacity``; only in eager calls.
      AlgorithmError: a request is unknown, or none of the allowed algorithms can run this.

    Examples:
      >>> weight = jnp.ones((27, 4, 8))
      >>> functional.spatially_sparse_conv(voxels, weight, kernel_size=3).num_channels
      8
    """
    relation = (kernel_size, stride, dilation, transposed, generative)
    target = (out_voxels, capacity, kernel_map, kernel_shape, spatial_shape)
    kmap = request_map(voxels, *relation, *target)
    requests = by_product(fwd_algo, bwd_algo, dgrad_algo, wgrad_algo)
    return convolve_voxels(
        voxels, weight, kmap, bias, groups, out_voxels, precision=precision, **requests
    )
