"""Depthwise products on CPUs, with native C++ kernels that read features in place.

One call computes both dgrad and wgrad of a layer, since both read the same gradients. On 2 cores of
an AMD EPYC (Zen 4) one call took 0.6 to 0.9 of the time of two, with 1 to 256 channels, on a LiDAR
sweep and an indoor scan.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import jax
import numpy as np

from voxax._native import host_depthwise
from voxax._native.eager import threads
from voxax._native.host import empty_array
from voxax._native.host_products import elements_of
from voxax._native.on_cpu import library_call
from voxax.hardware import HardwareInfo
from voxax.kernels.implicit_gemm import cpu
from voxax.kernels.kernel import Fused, Parameters, Problem, Views, first_of
from voxax.kernels.rows import table_name, table_read

_TILE = 256


def space(problem: Problem, hardware: HardwareInfo) -> tuple[Parameters, ...]:
    """Return the one set of parameters to try: how many rows a thread computes at a time."""
    # 512 rows took as long as 256 (AMD EPYC, Zen 5). wgrad ignores the parameter; its units follow
    # from the shapes.
    del hardware
    name = "gemm_block_size" if problem.product == "wgrad" else "fwd_block_size"
    return (cpu.native_parameters(**{name: _TILE}),)


def apply(
    problem: Problem, parameters: Parameters, a: jax.Array, b: jax.Array, views: Views
) -> jax.Array:
    """Return the product (forward, dgrad or wgrad) of ``a`` and ``b`` that ``problem`` describes.

    The operands and ``views``, arrays of the kernel map, are as for
    :class:`voxax.kernels.kernel.Apply`. The parameter whose name ends in ``_block_size``
    is the number of output rows that a thread computes at a time; wgrad ignores it.
    """
    (tile,) = (value for name, value in parameters if name.endswith("_block_size"))
    shape = jax.ShapeDtypeStruct(problem.result_shape, a.dtype)
    return library_call(
        "voxax_depthwise",
        shape,
        a,
        b,
        views[table_name(problem)],
        tile=np.int64(tile),
        wgrad=np.bool_(problem.product == "wgrad"),
        reversed=np.bool_(problem.product == "dgrad" and problem.layer.symmetric),
    )


def gradients(
    problem: Problem,
    parameters: Parameters,
    dy: jax.Array,
    x: jax.Array,
    w: jax.Array,
    views: Views,
) -> tuple[jax.Array, jax.Array]:
    """Compute dgrad and wgrad of a layer in one call: return ``(dx [N, C], dw [K, C])``.

    ``problem`` describes dgrad; the operands and ``views`` are as for
    :class:`voxax.kernels.kernel.ApplyFused`. dx has the same bits as from :func:`apply`. The last
    bits of dw may differ, because here it is summed over input rows, not output rows. The order of
    summation depends only on the shapes.
    """
    del parameters
    dx, dw = library_call(
        "voxax_depthwise_gradients",
        (jax.ShapeDtypeStruct(x.shape, x.dtype), jax.ShapeDtypeStruct(w.shape, w.dtype)),
        dy,
        x,
        w,
        views[table_read((), "dgrad", problem.layer.symmetric)[0]],
        reversed=np.bool_(problem.layer.symmetric),
    )
    return dx, dw


def apply_on_host(
    problem: Problem,
    parameters: Parameters,
    a: np.ndarray,
    b: np.ndarray,
    views: Mapping[str, np.ndarray],
) -> np.ndarray:
    """Compute :func:`apply` for NumPy arrays, with the same bits."""
    del parameters  # the size of tiles does not change the result
    found = empty_array(problem.result_shape, a.dtype)
    host_depthwise.depthwise(
        _dense(a),
        _dense(b),
        _dense(views[table_name(problem)]),
        elements_of(found),
        wgrad=problem.product == "wgrad",
        reverse=problem.product == "dgrad" and problem.layer.symmetric,
        threads=threads(),
    )
    return found


def gradients_on_host(
    problem: Problem,
    parameters: Parameters,
    dy: np.ndarray,
    x: np.ndarray,
    w: np.ndarray,
    views: Mapping[str, np.ndarray],
) -> tuple[np.ndarray, np.ndarray]:
    """Compute :func:`gradients` for NumPy arrays, with the same bits."""
    del parameters
    dx, dw = empty_array(x.shape, x.dtype), empty_array(w.shape, w.dtype)
    table = views[table_read((), "dgrad", problem.layer.symmetric)[0]]
    host_depthwise.depthwise_gradients(
        _dense(dy),
        _dense(x),
        _dense(w),
        _dense(table),
        elements_of(dx),
        elements_of(dw),
        reverse=problem.layer.symmetric,
        threads=threads(),
    )
    return dx, dw


def _dense(array: np.ndarray) -> np.ndarray:
    return elements_of(np.ascontiguousarray(array))


NATIVE = dataclasses.replace(
    cpu.NATIVE,
    name="implicit",
    kind="depthwise",
    space=space,
    heuristic=first_of(space),
    apply=apply,
    on_host=apply_on_host,
    fused=Fused(lambda problem, hardware, parameters: parameters, gradients, gradients_on_host),
)
