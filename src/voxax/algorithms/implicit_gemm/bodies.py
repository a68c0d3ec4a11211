"""Which body runs: a native one, a GPU's or a TPU's where the platform has it, else plain XLA.

For ``implicit_gemm``, and for the depthwise ``implicit``, whose kernels are its own; in XLA both
are the same tiles.
"""

from __future__ import annotations

import jax

from voxax.algorithms import native
from voxax.algorithms.base import Parameters, Problem, Product
from voxax.algorithms.depthwise import cpu as depthwise_cpu
from voxax.algorithms.depthwise import gpu as depthwise_gpu
from voxax.algorithms.depthwise import tpu as depthwise_tpu
from voxax.algorithms.implicit_gemm import cpu, gpu, tpu, xla
from voxax.hardware import HardwareInfo


def preferred(problem: Problem, hardware: HardwareInfo) -> bool:
    """Where the native kernels or those for TPUs run they are taken unmeasured.

    On 2 cores of an AMD EPYC (AVX2) the native ones took 0.36 to 0.8 times the best of
    explicit_gemm in all products of a LiDAR sweep and an indoor scan, 16 to 256 channels. Those for
    TPUs take 0.11 to 0.4 times XLA's gather with products, or less, at 64 channels of bfloat16 on
    two scans and five generations, by the compiler's schedules (benchmarks/tpu/layers.py).
    """
    if native.refusal(problem) is None:
        return True
    kernels = depthwise_tpu if problem.kind == "depthwise" else tpu
    return kernels.refusal(problem, hardware) is None


def space(problem: Problem, hardware: HardwareInfo) -> tuple[Parameters, ...]:
    """The native kernels' parameters where they run: tiles in XLA are slower there.

    On TPUs and GPUs their kernels first, and tiles too: which is faster, no one has measured yet.
    """
    if native.refusal(problem) is not None:
        bodies = (depthwise_tpu, depthwise_gpu) if problem.kind == "depthwise" else (tpu, gpu)
        kernels = [
            parameters
            for body in bodies
            if body.refusal(problem, hardware) is None
            for parameters in body.space(problem, hardware)
        ]
        return (*kernels, *xla.space(problem, hardware))
    return (depthwise_cpu if problem.kind == "depthwise" else cpu).space(problem)


def heuristic(problem: Problem, hardware: HardwareInfo) -> Parameters:
    """The first of the space."""
    return space(problem, hardware)[0]


def views(parameters: Parameters, product: Product, symmetric: bool) -> tuple[str, ...]:
    """The neighbour table of the side that is written; on TPUs its windows too, on GPUs sorted."""
    if gpu.is_triton(parameters):
        return gpu.views(parameters, product, symmetric)
    if tpu.is_windowed(parameters):
        return tpu.views(parameters, product, symmetric)
    return xla.views(parameters, product, symmetric)


def apply(
    problem: Problem,
    parameters: Parameters,
    a: jax.Array,
    b: jax.Array,
    views: dict[str, jax.Array],
) -> jax.Array:
    """Run the body that ``parameters`` name."""
    if gpu.is_triton(parameters):
        body = depthwise_gpu if problem.kind == "depthwise" else gpu
        return body.apply(problem, parameters, a, b, views)
    if tpu.is_windowed(parameters):
        body = depthwise_tpu if problem.kind == "depthwise" else tpu
        return body.apply(problem, parameters, a, b, views)
    if not native.is_native(parameters):
        return xla.apply(problem, parameters, a, b, views)
    body = depthwise_cpu if problem.kind == "depthwise" else cpu
    return body.apply(problem, parameters, a, b, views)
