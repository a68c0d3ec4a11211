"""The dynamic strategies ``grouped`` and ``specialized``, which sort positions by kernel size.

The taps are sorted by the smallest size that has them, so the taps of a size precede the taps that
it lacks. A block of positions multiplies the taps of its largest size. Positions of smaller sizes
read zeros for the taps that their sizes lack. ``grouped`` selects the number of taps of each block
at run time, so one compiled program serves all sizes. On CPUs it runs the native kernels
(:mod:`.cpu`), which need no sorting.

``specialized`` is compiled for one histogram of sizes, ``Layer.sizes.prefix``, which is known if
sizes are not traced. The counts are rounded up, so that few programs are compiled. A program has no
branches. The strategy is refused where another strategy is always faster: on TPUs, and on CPUs with
the native kernels.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from voxax.hardware import HardwareInfo
from voxax.kernels.dynamic import masked, patches
from voxax.kernels.dynamic.grid import grid_of
from voxax.kernels.implicit_gemm import cpu
from voxax.kernels.kernel import Parameters, Problem, Views, first_of

GROUPED_FORMS: tuple[Parameters, ...] = tuple((("block", block),) for block in (512, 256, 1024))


def apply_grouped(
    problem: Problem, parameters: Parameters, a: jax.Array, b: jax.Array, views: Views
) -> jax.Array:
    """Return the product (forward, dgrad or wgrad) of ``a`` and ``b`` that ``problem`` describes.

    The operands are as for :class:`voxax.kernels.kernel.Apply`.
    ``views["sizes"]``, ``int32[M]``, has the kernel size of each output position. Positions
    are sorted by their size.
    """
    sizes = views["sizes"]
    largest = grid_of(problem).largest
    # The sort is stable, so neighbors of one size stay adjacent, and results are reproducible.
    order = jnp.argsort(-jnp.clip(sizes, 0, largest), stable=True).astype(jnp.int32)
    return patches.run_blocks(problem, a, b, sizes, order, int(dict(parameters)["block"]))


def space(problem: Problem, hardware: HardwareInfo) -> tuple[Parameters, ...]:
    """Return the parameters to measure: one for each number of positions per block.

    Blocks with more positions than the layer's output are left out. If all are, 512 is measured.
    """
    rows = problem.layer.out_capacity
    return (
        tuple(form for form in GROUPED_FORMS if int(dict(form)["block"]) <= rows)
        or GROUPED_FORMS[:1]
    )


GROUPED = dataclasses.replace(
    masked.MASKED,
    name="grouped",
    space=space,
    heuristic=first_of(space),
    apply=apply_grouped,
    preferred=lambda problem, hardware: (
        problem.product != "dgrad"  # adds to rows
        and problem.platform != "tpu"  # gathers row after row
        and not (problem.layer.sizes.uniform and problem.product == "forward")
    ),
    rank=15,
)


BLOCK = 512


def supports_specialized(problem: Problem, hardware: HardwareInfo) -> str | None:
    """Return why ``specialized`` is refused (it cannot run, or is never the fastest), or None."""
    if problem.platform == "tpu":
        return "cannot gain on TPUs: it gathers row after row, 'tiled' gathers none"
    if cpu.refusal(problem) is None:
        # On 2 cores of an AMD EPYC it took 1.4 to 4.1 times as long, on one to three axes, 16 to 64
        # channels.
        return (
            "cannot gain on CPUs with the native kernels: there 'grouped' multiplies only the taps "
            "that positions have, and one program serves every histogram"
        )
    if not problem.layer.sizes.prefix:
        return "compiles for one histogram of sizes: they are traced here, or it was not asked for"
    return masked.supports(problem, hardware)


def apply_specialized(
    problem: Problem, parameters: Parameters, a: jax.Array, b: jax.Array, views: Views
) -> jax.Array:
    """Return the product (forward, dgrad or wgrad) of ``a`` and ``b`` that ``problem`` describes.

    The operands are as for :class:`voxax.kernels.kernel.Apply`.
    ``views["sizes"]``, ``int32[M]``, has the kernel size of each output position. Positions
    are sorted by their size and cut into blocks. ``problem.layer.sizes.prefix`` fixes the number of
    taps of each block at compilation.
    """
    grid = grid_of(problem)
    sizes = jnp.clip(views["sizes"], 0, grid.largest)
    order = jnp.argsort(-sizes, stable=True).astype(jnp.int32)
    block = max(1, min(int(dict(parameters)["block"]), grid.positions))

    def segments(count: int) -> list[tuple[int, int, int | None]]:
        found, begin = [], 0
        for size in range(grid.largest, -1, -1):
            # Positions are sorted by descending size: none in these blocks is larger than ``size``.
            end = count if not size else min(count, -(-problem.layer.sizes.prefix[size] // block))
            found.append((begin, max(begin, end), size))
            begin = max(begin, end)
        return found

    return patches.run_blocks(problem, a, b, sizes, order, block, segments)


def prefix_of(counts: list[int], positions: int) -> tuple[int, ...]:
    """Return ``counts`` rounded up, to at most ``positions``, for ``GridSizes.prefix``.

    ``counts[s]`` is the number of positions whose kernel size is at least ``s``, and ``positions``
    the number of all. Counts become multiples of a sixteenth of ``positions`` or, if that is less
    than 512, of 512. See :class:`voxax.kernels.kernel.GridSizes`.
    """
    # Up to multiples of a 16th of the positions, at least a block, so that programs are few.
    step = max(BLOCK, -(-positions // 16))
    return tuple(min(positions, -(-count // step) * step) for count in counts)


SPECIALIZED = dataclasses.replace(
    masked.MASKED,
    name="specialized",
    supports=supports_specialized,
    space=lambda problem, hardware: ((("block", BLOCK),),),
    heuristic=lambda problem, hardware: (("block", BLOCK),),
    apply=apply_specialized,
    rank=50,
)
