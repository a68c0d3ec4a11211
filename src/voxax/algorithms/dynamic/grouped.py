"""grouped: positions sorted by size, so that nearly every block has one size.

The taps are ordered by the size that reaches them: each block multiplies a prefix, and only the
blocks at which the size changes multiply taps that some of their positions lack. No capacity is
assumed, and nothing overflows: how many blocks take which prefix is decided while running.

On CPUs the native kernels (:mod:`.cpu`) do better without sorting.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from voxax.algorithms import native
from voxax.algorithms.base import Parameters, Problem
from voxax.algorithms.dynamic import blocks, cpu, masked
from voxax.algorithms.dynamic.grid import grid_of
from voxax.hardware import HardwareInfo

FORMS: tuple[Parameters, ...] = tuple((("block", block),) for block in (512, 256, 1024))


def apply(
    problem: Problem, parameters: Parameters, a: jax.Array, b: jax.Array, views: dict
) -> jax.Array:
    """See :class:`voxax.algorithms.base.Apply`; the view is ``sizes int32[M]``."""
    sizes = views["sizes"]
    if native.is_native(parameters):
        return cpu.apply(problem, parameters, a, b, sizes)
    largest = grid_of(problem).largest
    # Stable, so that neighbours of one size stay neighbours, and results are reproducible.
    order = jnp.argsort(-jnp.clip(sizes, 0, largest), stable=True).astype(jnp.int32)
    return blocks.run(problem, a, b, sizes, order, int(dict(parameters)["block"]))


def space(problem: Problem, hardware: HardwareInfo) -> tuple[Parameters, ...]:
    """The native kernels' parameters where they run, else blocks that are not mostly padding."""
    if native.refusal(problem) is None:
        return cpu.space(problem)
    rows = problem.out_capacity
    return tuple(form for form in FORMS if int(dict(form)["block"]) <= rows) or FORMS[:1]


def _preferred(problem: Problem, hardware: HardwareInfo) -> bool:
    """Always with the native kernels; else but for dgrad, which adds to rows.

    On 2 cores of an AMD EPYC (AVX2) the kernels took 0.22 to 1.1 of the time of the next best
    strategy, on the ten maps of benchmarks/dynamic.py, 64 channels, forward; 0.18 to 0.72 with
    gradients.
    """
    return native.refusal(problem) is None or problem.product != "dgrad"


ALGORITHM = dataclasses.replace(
    masked.MASKED,
    name="grouped",
    space=space,
    heuristic=lambda problem, hardware: space(problem, hardware)[0],
    forms=FORMS,
    apply=apply,
    preferred=_preferred,
)
