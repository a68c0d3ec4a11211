"""The dynamic strategy ``selected``: an ordinary convolution for each scene of one kernel size.

If all positions of a scene have the same size, the scene runs XLA's convolution with a kernel of
this size. Other scenes run ``masked``, so the result is exact for any sizes. Scenes are computed
one after the other, also under ``jax.vmap``, so that only one branch of ``jax.lax.switch`` runs. If
every position has all taps, one convolution computes all scenes, without branches.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from voxax.geometry.dtypes import accumulator, product_dtype
from voxax.hardware import HardwareInfo
from voxax.kernels.dynamic import masked
from voxax.kernels.dynamic.grid import Grid, box_conv, grid_of
from voxax.kernels.kernel import Parameters, Problem, Views
from voxax.kernels.rows import options, zeros


def supports(problem: Problem, hardware: HardwareInfo) -> str | None:
    """Return the reason why this strategy cannot run the problem (taps must be a box), or None."""
    reason = masked.supports(problem, hardware)
    grid = grid_of(problem)
    if reason is not None:
        return reason
    if problem.layer.sizes.uniform == "all":
        return None if math.prod(_sides(problem)) == grid.counts[-1] else "multiplies whole boxes"
    if not is_box(problem):
        return f"has one kernel for each size, the taps {problem.layer.spec} are no whole box"
    return None


def is_box(problem: Problem) -> bool:
    """Return whether the largest kernel size has all taps of a cube with this size as its edge."""
    grid = grid_of(problem)
    return grid.counts[-1] == grid.largest ** len(grid.stride)


def _sides(problem: Problem) -> tuple[int, ...]:
    """Return the side lengths, in taps, of the smallest box that contains all taps."""
    offsets = np.asarray(problem.layer.spec.offsets)
    return tuple(int(n) for n in np.ptp(offsets, axis=0) + 1)


def apply(
    problem: Problem, parameters: Parameters, a: jax.Array, b: jax.Array, views: Views
) -> jax.Array:
    """Return the product (forward, dgrad or wgrad) of ``a`` and ``b`` that ``problem`` describes.

    The operands are as for :class:`voxax.kernels.kernel.Apply`.
    ``views["sizes"]``, ``int32[M]``, has the kernel size of each output position.
    """
    grid, scenes = grid_of(problem), problem.layer.sizes.grid[0]
    if problem.layer.sizes.uniform == "all":
        return _kernel(problem, grid, grid.largest, in_branch=False)(a, b, views["sizes"])
    sizes = jnp.clip(views["sizes"], 0, grid.largest).reshape(scenes, -1)
    one = _one_scene(problem)
    branches = _kernels(one)
    branches.append(
        lambda a, b, sizes: masked.apply_masked(one, masked.MASKED_FORMS[0], a, b, {"sizes": sizes})
    )

    def scene(a: jax.Array, b: jax.Array, sizes: jax.Array) -> jax.Array:
        first, last = jnp.min(sizes), jnp.max(sizes)
        which = jnp.where(first == last, last, len(branches) - 1)
        return jax.lax.switch(which, branches, a, b, sizes)

    a = a.reshape(scenes, -1, a.shape[-1])
    if problem.product != "wgrad":
        out = jax.lax.map(lambda part: scene(part[0], b, part[1]), (a, sizes))
        return out.reshape(-1, out.shape[-1])
    b = b.reshape(scenes, -1, b.shape[-1])
    wide = accumulator(a.dtype)

    def step(total: jax.Array, part: tuple) -> tuple[jax.Array, None]:
        return total + scene(*part).astype(wide), None

    total = zeros(problem.weight_shape, wide, a.reshape(-1))
    total, _ = jax.lax.scan(step, total, (a, b, sizes))
    return total.astype(product_dtype(a.dtype))


def forward_of_uniform(problem: Problem, a: jax.Array, b: jax.Array, sizes: jax.Array) -> jax.Array:
    """Return the forward product of ``a`` and ``b`` if all positions of a scene have one size.

    Scene s has the kernel size ``sizes[s]`` along each axis, and uses only the taps within it.
    ``a`` is ``[N, C_in]``, ``b`` the weight ``[K, C_in, C_out]`` of the largest size, ``sizes``
    ``int32[scenes]``, and the result ``[M, C_out]``.
    """
    branches = _kernels(_one_scene(problem))

    def scene(part: tuple[jax.Array, jax.Array]) -> jax.Array:
        return jax.lax.switch(part[1], branches, part[0], b, part[1])  # clamps the size

    out = jax.lax.map(scene, (a.reshape(len(sizes), -1, a.shape[-1]), sizes))
    return out.reshape(-1, out.shape[-1])


def _one_scene(problem: Problem) -> Problem:
    scenes = max(1, problem.layer.sizes.grid[0])
    one = problem.with_sizes(grid=(1, *problem.layer.sizes.grid[1:]), prefix=())
    return one.with_layer(
        in_capacity=problem.layer.in_capacity // scenes,
        out_capacity=problem.layer.out_capacity // scenes,
    )


def _kernels(problem: Problem) -> list[Callable[..., jax.Array]]:
    """Return one function for each kernel size, from 0 to the largest.

    Each function computes the product with this size at every position, see :func:`_kernel`.
    """
    grid = grid_of(problem)
    return [_kernel(problem, grid, size) for size in range(grid.largest + 1)]


def _kernel(problem: Problem, grid: Grid, size: int, in_branch: bool = True):
    """Return a function of ``(a, b, sizes)`` that computes y, dx or dw for a single kernel size.

    ``a`` and ``b`` are the operands of ``problem``. All positions have the kernel size ``size``,
    and the function ignores ``sizes``. ``in_branch`` is whether ``jax.lax.switch`` will call the
    function; CPUs need another algorithm there.
    """
    sides = tuple(min(size, side) for side in _sides(problem))
    taps = np.sort(grid.order[: grid.counts[size]])
    wide = options(problem, jnp.dtype(problem.dtype))
    kind = product_dtype(jnp.dtype(problem.dtype))

    def forward(x: jax.Array, w: jax.Array) -> jax.Array:
        grid_of_x = x.reshape(*grid.inputs, -1)
        box = w[taps].reshape(*sides, *w.shape[1:])
        out = box_conv(grid_of_x, box, grid.stride, problem.layer.spec.dilation, **wide)
        return out.reshape(-1, w.shape[-1]).astype(kind)

    def product(a: jax.Array, b: jax.Array, sizes: jax.Array) -> jax.Array:
        if not size:
            return zeros(problem.result_shape, kind, a)
        if problem.product == "forward":
            return forward(a, b)
        if in_branch and problem.platform == "cpu":
            # On CPUs, XLA computes the transposes of a convolution slowly inside a branch: both
            # took 76 s for 256x256 positions, 7x7 taps and 64 channels on an AMD EPYC.
            return _by_taps(problem, taps, a, b)
        result = jax.ShapeDtypeStruct(problem.result_shape, a.dtype)
        if problem.product == "dgrad":
            return jax.linear_transpose(lambda x: forward(x, b), result)(a)[0].astype(kind)
        return jax.linear_transpose(lambda w: forward(a, w), result)(b)[0].astype(kind)

    return product


def _by_taps(problem: Problem, taps: np.ndarray, a: jax.Array, b: jax.Array) -> jax.Array:
    """Return dx or dw, as ``problem`` says, if all positions have the same kernel offsets.

    ``taps`` are the indices of these offsets in the weight. All other offsets get zero in dw. ``a``
    and ``b`` are the operands of ``problem``. The strategy ``masked`` computes the product.
    """
    offsets = tuple(problem.layer.spec.offsets[k] for k in taps)
    spec = dataclasses.replace(problem.layer.spec, offsets=offsets)
    own = problem.with_layer(num_offsets=len(taps), spec=spec)
    grid = grid_of(own)
    everywhere = jnp.full((grid.positions,), grid.largest, jnp.int32)
    form = masked.forms_for(own)[-1]
    if problem.product == "dgrad":
        return masked.apply_masked(own, form, a, b[taps], {"sizes": everywhere})
    found = masked.apply_masked(own, form, a, b, {"sizes": everywhere})
    return jnp.zeros(problem.weight_shape, found.dtype).at[taps].set(found, unique_indices=True)


ALGORITHM = dataclasses.replace(
    masked.MASKED,
    name="selected",
    revision=2,
    supports=supports,
    space=lambda problem, hardware: ((),),
    heuristic=lambda problem, hardware: (),
    apply=apply,
    preferred=lambda problem, hardware: (
        bool(problem.layer.sizes.uniform) and problem.product == "forward"
    ),
    rank=40,
)
