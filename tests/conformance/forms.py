"""Every form of every algorithm under a name of its own, so that a test can pin it.

A form is an algorithm with one set of parameters for each product: the tuner has no choice left.
``registered()`` (the fixture ``forms``) adds them to the registry; ``fwd_algo=`` and ``bwd_algo=``
take their names then, and no program of one is ever used for another.
"""

import contextlib
import dataclasses

from voxax.hardware import HardwareInfo
from voxax.kernels import Kernel, registry
from voxax.kernels.depthwise import cpu as depthwise_cpu
from voxax.kernels.depthwise import gpu as depthwise_gpu
from voxax.kernels.depthwise import tpu as depthwise_tpu
from voxax.kernels.explicit_gemm import xla as explicit_xla
from voxax.kernels.implicit_gemm import cpu, gpu, tpu, xla
from voxax.kernels.kernel import EVERY_PRODUCT
from voxax.kernels.rows import multiplies, table_read


def make_form(name, parameters, reads, apply, views=None):
    """``parameters``: from a problem. :func:`registered` adds the same for depthwise weights."""

    def chosen(problem, hardware):
        del hardware
        return parameters(problem)

    return Kernel(
        name=name,
        kind="dense",
        products=EVERY_PRODUCT,
        platform="any",
        supports=multiplies,
        space=lambda problem, hardware: (chosen(problem, hardware),),
        heuristic=chosen,
        reads=reads,
        apply=apply,
        views=views or {},
        rank=10**6,
    )


def explicit(name, parameters):
    return make_form(name, lambda problem: parameters, explicit_xla.reads, explicit_xla.apply)


def tiles(problem, rows, wgrad_rows, splits):
    if problem.product == "wgrad":
        return (("gemm_block_size", wgrad_rows), ("split_k_factor", splits))
    return (("fwd_block_size", rows),)


def implicit(name, rows, wgrad_rows, splits):
    return make_form(
        name, lambda problem: tiles(problem, rows, wgrad_rows, splits), table_read, xla.apply
    )


def natively(name, rows):
    """In tiles of so many rows by the native kernels; in XLA where those do not run."""

    def parameters(problem):
        if cpu.refusal(problem) is None:
            return cpu.native_parameters(**{BLOCK[problem.product == "wgrad"]: rows})
        return tiles(problem, rows, rows, 1)

    def apply(problem, parameters, a, b, views):
        module = depthwise_cpu if problem.layer.kind == "depthwise" else cpu
        run = module.apply if ("body", "native") in parameters else xla.apply
        return run(problem, parameters, a, b, views)

    return make_form(name, parameters, table_read, apply)


def interpreted(name, chip, dense, depthwise, sizes):
    """A chip's kernels as plain JAX, with these sizes where they take them; else in XLA."""

    def module_of(problem):
        return depthwise if problem.layer.kind == "depthwise" else dense

    def parameters(problem):
        there = dataclasses.replace(problem, platform=chip.platform)
        module = module_of(problem)
        if module.supports(there, chip) is not None:
            return tiles(problem, 4, 4, 1)
        chosen = dict(module.space(there, chip)[0])
        chosen |= {key: size for key, size in sizes.items() if key in chosen}
        return tuple(sorted({**chosen, "interpret": 1}.items()))

    def reads(parameters, product, symmetric):
        names = dense.reads if ("interpret", 1) in parameters else table_read
        return names(parameters, product, symmetric)

    def apply(problem, parameters, a, b, views):
        run = module_of(problem).apply if ("interpret", 1) in parameters else xla.apply
        return run(problem, parameters, a, b, views)

    return make_form(name, parameters, reads, apply, dense.VIEWS)


def windowed(name, window, stripes):
    """The TPU's kernels, with windows of so many rows."""
    chip = HardwareInfo(
        platform="tpu", device_kind="roomy", vmem_bytes=2**40, smem_bytes=2**40, cores=stripes
    )
    sizes = {"window_rows": window, "tiles": 1}
    return interpreted(name, chip, tpu, depthwise_tpu, sizes)


def by_triton(name, rows, block):
    """The GPU's kernels, in tiles of so many rows and blocks of so many channels, sums of wgrad in
    three parts."""
    chip = HardwareInfo(
        platform="gpu", device_kind="roomy", generation="9.0", shared_memory_bytes=2**40, cores=1
    )
    sizes = {"fwd_block_size": rows, "gemm_block_size": rows, "split_k_factor": 3}
    sizes |= dict.fromkeys(("in_block", "out_block", "channel_block"), block)
    return interpreted(name, chip, gpu, depthwise_gpu, sizes)


# Pallas's interpreter takes up to half a minute for a case.
INTERPRETED = ("windows_128",)

BLOCK = {False: "fwd_block_size", True: "gemm_block_size"}
FORMS = {
    form.name: form
    for form in (
        explicit("im2col", explicit_xla.IM2COL),
        explicit("output_stationary", explicit_xla.OUTPUT_STATIONARY),
        # Many blocks for each tap, the last one partly full; and one that is never full.
        explicit("pair_lists_4", explicit_xla.pair_list_parameters(4)),
        explicit("pair_lists_1024", explicit_xla.pair_list_parameters(1024)),
        # Many tiles; and one that is larger than the map, with stripes for wgrad.
        implicit("tiles_4", 4, 4, 1),
        implicit("tiles_256", 256, 16, 4),
        natively("native_4", 4),
        # Windows shorter than a tile, so that most are visited again, by two cores.
        windowed("windows_128", 128, 2),
    )
}


# Interpreted too, and run by a sample of their own alone: in the smallest tiles and blocks, so that
# most problems have several.
SAMPLED = {"triton_16": by_triton("triton_16", 16, 16)}


@contextlib.contextmanager
def registered():
    """Inside, the forms are algorithms like others, behind all others."""
    before = registry.kernels
    forms = (*FORMS.values(), *SAMPLED.values())
    forms += tuple(dataclasses.replace(form, kind="depthwise") for form in forms)
    # A form may be an algorithm as it is.
    known = {(kernel.name, kernel.kind) for kernel in before()}
    forms = tuple(form for form in forms if (form.name, form.kind) not in known)
    registry.kernels = lambda: (*before(), *forms)
    try:
        yield
    finally:
        registry.kernels = before
