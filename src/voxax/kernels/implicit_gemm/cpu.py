"""implicit_gemm on CPUs: native C++ kernels, called through XLA's foreign function interface.

The sums of a tile of output rows stay in cache while one tap after the other is added. The product
of a tap takes a few input rows at a time and reads their features in place, without a copy, see
``native/src/product.h``. Results are bitwise equal for any number of threads.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax
import numpy as np

from voxax import _native
from voxax._native import host_products
from voxax._native.eager import threads
from voxax._native.host import empty_array
from voxax._native.on_cpu import library_call
from voxax.hardware import HardwareInfo
from voxax.kernels.kernel import EVERY_PRODUCT, Kernel, Parameters, Problem, Views, first_of
from voxax.kernels.rows import table_name, table_read

_DTYPES = ("float32", "float64", "bfloat16")

# Rows of a tile. For 16 to 64 channels of a LiDAR sweep, forward and dgrad in tiles of 256 rows
# took 2 to 9 % less than in tiles of 128. With few rows, small tiles keep more threads busy.
# wgrad in tiles of 2048 was within 4 % of the better of 512 and 2048 in 9 workloads of
# benchmarks/tuning.py (2 cores of an AMD EPYC, Zen 3). So the tuner measures no sizes.
_FORWARD_TILE, _FORWARD_TILE_OF_FEW, _WGRAD_TILE = 256, 128, 2048
_FEW_ROWS = 8192


def refusal(problem: Problem) -> str | None:
    """Return the reason why the native library cannot run this problem, or None."""
    if problem.platform != "cpu":
        return f"the native kernels do not run on {problem.platform}"
    if problem.dtype not in _DTYPES:
        return f"the native kernels multiply {', '.join(_DTYPES)}, got {problem.dtype}"
    return _native.unavailable()


def native_parameters(**sizes: int) -> Parameters:
    """Return the tile sizes ``sizes`` as parameters, marked as those of a native kernel."""
    return (("body", "native"), *sizes.items())


def space(problem: Problem, hardware: HardwareInfo) -> tuple[Parameters, ...]:
    """Return the one set of parameters to try: a tile size, which depends on product and rows."""
    del hardware
    if problem.product == "wgrad":
        return (native_parameters(gemm_block_size=_WGRAD_TILE),)
    few = problem.out_rows < _FEW_ROWS
    return (native_parameters(fwd_block_size=_FORWARD_TILE_OF_FEW if few else _FORWARD_TILE),)


def apply(
    problem: Problem, parameters: Parameters, a: jax.Array, b: jax.Array, views: Views
) -> jax.Array:
    """Return the product (forward, dgrad or wgrad) of ``a`` and ``b`` that ``problem`` describes.

    The operands and ``views``, arrays of the kernel map, are as for
    :class:`voxax.kernels.kernel.Apply`. The parameter whose name ends in ``_block_size`` is the
    number of rows of a tile.
    """
    values = dict(parameters)
    groups = problem.layer.groups
    c_in, c_out = problem.in_channels // groups, problem.out_channels // groups
    if problem.product == "wgrad":
        shape = (problem.layer.num_offsets, groups, c_in, c_out)
        dw = library_call(
            "voxax_weight_product",
            jax.ShapeDtypeStruct(shape, a.dtype),
            a,
            b,
            views["neighbors"],
            tile=np.int64(values["gemm_block_size"]),
        )
        return dw.reshape(problem.weight_shape)
    # The transpose of a symmetric map is the map with its taps reversed, so dgrad reads its table.
    backward = problem.product == "dgrad"
    result = jax.ShapeDtypeStruct(problem.result_shape, a.dtype)
    return library_call(
        "voxax_product",
        result,
        a,
        b.reshape(problem.layer.num_offsets, groups, c_in, c_out),
        views[table_name(problem)],
        groups=np.int64(groups),
        tile=np.int64(values["fwd_block_size"]),
        transposed=np.bool_(backward),
        reversed=np.bool_(backward and problem.layer.symmetric),
    )


def apply_on_host(
    problem: Problem,
    parameters: Parameters,
    a: np.ndarray,
    b: np.ndarray,
    views: Mapping[str, np.ndarray],
) -> np.ndarray:
    """Compute :func:`apply` for NumPy arrays, with the same bits.

    The groups of a grouped weight are computed one after the other.
    """
    del parameters  # the size of tiles does not change any bit of the result
    found = empty_array(problem.result_shape, a.dtype)
    result, a, b = (host_products.elements_of(array) for array in (found, a, b))
    table = np.ascontiguousarray(views[table_name(problem)])
    backward = problem.product == "dgrad"
    for group in range(problem.layer.groups):
        # A function of the library takes one group, in contiguous rows.
        rows, factor, out = (_of_group(x, group, problem.layer.groups) for x in (a, b, result))
        rows, dense = np.ascontiguousarray(rows), np.ascontiguousarray(out)
        if problem.product == "wgrad":
            factor = np.ascontiguousarray(factor)
            host_products.weight_product(rows, factor, table, dense, threads=threads())
        else:
            host_products.product(
                rows,
                factor.transpose(0, 2, 1) if backward else factor,
                table,
                dense,
                reverse=backward and problem.layer.symmetric,
                threads=threads(),
            )
        if dense is not out:
            out[...] = dense
    return found


def _of_group(array: np.ndarray, group: int, groups: int) -> np.ndarray:
    """Return the part of ``array`` that belongs to group number ``group``.

    It is a slice of the channels of features ``[N, C]``, or ``array[:, group]`` of grouped weights.
    Dense weights ``[K, C_in, C_out]`` are returned whole.
    """
    if array.ndim != 2:
        return array[:, group] if array.ndim == 4 else array
    width = array.shape[1] // groups
    return array[:, group * width : (group + 1) * width]


NATIVE = Kernel(
    name="implicit_gemm",
    kind="dense",
    products=EVERY_PRODUCT,
    platform="cpu",
    supports=lambda problem, hardware: refusal(problem),
    space=space,
    heuristic=first_of(space),
    reads=table_read,
    apply=apply,
    on_host=apply_on_host,
    # On 2 cores of an AMD EPYC (AVX2) it took 0.36 to 0.8 times the best of explicit_gemm in all
    # products of a LiDAR sweep and an indoor scan, 16 to 256 channels. Tiles in XLA are slower.
    preferred=lambda problem, hardware: True,
    # It was the fastest in all 27 workloads of benchmarks/tuning.py; the best other choice took 1.9
    # times as long in the geometric mean (2 cores of an AMD EPYC).
    decisive=lambda problem, hardware: True,
    alone=True,
    rank=20,
)
