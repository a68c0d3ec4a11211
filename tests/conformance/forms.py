"""Every form of every algorithm under a name of its own, so that a test can pin it.

A form is an algorithm with one set of parameters for each product: the tuner has no choice left.
``registered()`` (the fixture ``forms``) adds them to the registry; ``fwd_algo=`` and ``bwd_algo=``
take their names then, and no program of one is ever used for another.
"""

import contextlib
import dataclasses

from voxax.algorithms import Algorithm, native, registry
from voxax.algorithms.depthwise import gpu as depthwise_gpu
from voxax.algorithms.depthwise import tpu as depthwise_tpu
from voxax.algorithms.explicit_gemm import formulations, sparse_core
from voxax.algorithms.implicit_gemm import bodies, gpu, tpu, xla
from voxax.algorithms.rows import EVERY_PRODUCT
from voxax.hardware import HardwareInfo


def make_form(name, module, product, wgrad=None):
    """``product``: parameters of forward and dgrad, and of wgrad where it has none of its own."""

    def parameters(problem, hardware):
        del hardware
        return wgrad if wgrad is not None and problem.product == "wgrad" else product

    return Algorithm(
        name=name,
        kinds=frozenset({"dense", "grouped", "depthwise"}),
        products=EVERY_PRODUCT,
        platforms=frozenset({"any"}),
        revision=1,
        supports=module.supports,
        space=lambda problem, hardware: (parameters(problem, hardware),),
        heuristic=parameters,
        views=module.views,
        forms=(product,),
        apply=module.apply,
    )


def explicit(name, parameters):
    return make_form(name, formulations, parameters)


def implicit(name, rows, wgrad_rows, splits):
    return make_form(
        name,
        xla,
        (("fwd_block_size", rows),),
        (("gemm_block_size", wgrad_rows), ("split_k_factor", splits)),
    )


def natively(name, rows):
    """In tiles of so many rows by the native kernels; in XLA where those do not run."""

    def parameters(problem, hardware):
        del hardware
        wgrad = problem.product == "wgrad"
        if native.refusal(problem) is None:
            return native.parameters(**{BLOCK[wgrad]: rows})
        return ((BLOCK[True], rows), ("split_k_factor", 1)) if wgrad else ((BLOCK[False], rows),)

    return dataclasses.replace(
        make_form(name, xla, ()),
        space=lambda problem, hardware: (parameters(problem, hardware),),
        heuristic=parameters,
        apply=bodies.apply,
    )


def interpreted(name, chip, dense, depthwise, sizes):
    """A chip's kernels as plain JAX, with these sizes where they take them; else in XLA."""

    def parameters(problem, hardware):
        del hardware
        there = dataclasses.replace(problem, platform=chip.platform)
        body = depthwise if problem.kind == "depthwise" else dense
        if body.refusal(there, chip) is None:
            chosen = dict(body.space(there, chip)[0])
            chosen |= {key: size for key, size in sizes.items() if key in chosen}
            return tuple(sorted({**chosen, "interpret": 1}.items()))
        if problem.product == "wgrad":
            return (("gemm_block_size", 4), ("split_k_factor", 1))
        return (("fwd_block_size", 4),)

    return dataclasses.replace(
        make_form(name, xla, ()),
        space=lambda problem, hardware: (parameters(problem, hardware),),
        heuristic=parameters,
        views=bodies.views,
        apply=bodies.apply,
        forms=((),),
    )


def windowed(name, window, stripes):
    """The TPU's kernels, with windows of so many rows."""
    chip = HardwareInfo(
        platform="tpu", device_kind="roomy", vmem_bytes=2**40, smem_bytes=2**40, cores=stripes
    )
    return interpreted(name, chip, tpu, depthwise_tpu, {"window_rows": window})


def by_triton(name, rows, block):
    """The GPU's kernels, in tiles of so many rows and blocks of so many channels, sums of wgrad in
    three parts."""
    chip = HardwareInfo(platform="gpu", device_kind="roomy", shared_memory_bytes=2**40, cores=1)
    sizes = {"fwd_block_size": rows, "gemm_block_size": rows, "split_k_factor": 3}
    sizes |= dict.fromkeys(("in_block", "out_block", "channel_block"), block)
    return interpreted(name, chip, gpu, depthwise_gpu, sizes)


# Pallas's interpreter takes up to half a minute for a case.
INTERPRETED = ("windows_64",)

BLOCK = {False: "fwd_block_size", True: "gemm_block_size"}
FORMS = {
    form.name: form
    for form in (
        explicit("im2col", formulations.IM2COL),
        explicit("output_stationary", formulations.OUTPUT_STATIONARY),
        # Many blocks for each tap, the last one partly full; and one that is never full.
        explicit("pair_lists_4", formulations.pair_list_parameters(4)),
        explicit("pair_lists_1024", formulations.pair_list_parameters(1024)),
        # Many tiles; and one that is larger than the map, with stripes for wgrad.
        implicit("tiles_4", 4, 4, 1),
        implicit("tiles_256", 256, 16, 4),
        natively("native_4", 4),
        # Windows shorter than a tile, so that most are visited again, by two cores.
        windowed("windows_64", 64, 2),
    )
}


def by_sparse_cores(name, block):
    """Rows gathered as SparseCores do, but in plain JAX, in blocks of so many; else im2col."""
    chip = HardwareInfo(
        platform="tpu",
        device_kind="roomy",
        sparse_cores=2,
        sparse_subcores=16,
        sparse_lanes=16,
        sparse_memory_bytes=2**40,
    )
    chosen = tuple(sorted((*sparse_core.parameters(block, chip), ("interpret", 1))))

    def parameters(problem, hardware):
        del hardware
        there = dataclasses.replace(problem, platform="tpu")
        return chosen if sparse_core.refusal(there, chip) is None else formulations.IM2COL

    return dataclasses.replace(
        make_form(name, formulations, chosen),
        space=lambda problem, hardware: (parameters(problem, hardware),),
        heuristic=parameters,
    )


# Interpreted too, and run by a sample of their own alone: in the smallest tiles and blocks, so that
# most problems have several.
SAMPLED = {
    "triton_16": by_triton("triton_16", 16, 16),
    "sparse_core_128": by_sparse_cores("sparse_core_128", 128),
}


@contextlib.contextmanager
def registered():
    """Inside, the forms are algorithms like others, behind all others."""
    before = registry.ALGORITHMS
    registry.ALGORITHMS = (*before, *FORMS.values(), *SAMPLED.values())
    try:
        yield
    finally:
        registry.ALGORITHMS = before
