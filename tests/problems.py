"""Problems of tests, from all their fields at once or of a kernel map, and their operands."""

import dataclasses
import importlib.util

import jax.numpy as jnp
import numpy as np
import pytest

from voxax import _compat, _native
from voxax.kernels import GridSizes, Layer, Problem, lookup, triton_call
from voxax.tuning import space

needs_native = pytest.mark.skipif(
    _native.unavailable() is not None, reason=f"no native kernels: {_native.unavailable()}"
)

needs_libtpu = pytest.mark.skipif(not _compat.has_libtpu(), reason="libtpu is not installed")

needs_triton = pytest.mark.skipif(
    triton_call.absence() is not None, reason=triton_call.absence() or "Triton is here"
)

needs_compiler = pytest.mark.skipif(
    importlib.util.find_spec("jax_plugins.xla_cuda13") is None
    if importlib.util.find_spec("jax_plugins")
    else True,
    reason="XLA's compiler for CUDA is in JAX's plugin: pip install 'voxax[cuda]'",
)

OF_LAYER = {field.name for field in dataclasses.fields(Layer)}
OF_SIZES = {field.name for field in dataclasses.fields(GridSizes)}


def make_problem(
    product,
    kind,
    in_capacity,
    out_capacity,
    num_offsets,
    in_channels,
    out_channels,
    groups,
    dtype,
    precision,
    symmetric,
    platform,
    spec=None,
    level=(),
    **more,
):
    """``more``: other fields of the layer, and of its sizes."""
    sizes = {name: more.pop(name) for name in OF_SIZES & set(more)}
    layer = Layer(
        in_capacity=in_capacity,
        out_capacity=out_capacity,
        num_offsets=num_offsets,
        symmetric=symmetric,
        kind=kind,
        groups=groups,
        precision=precision,
        spec=spec,
        level=level,
        sizes=GridSizes(**sizes),
        **more,
    )
    return Problem(
        product=product,
        layer=layer,
        in_channels=in_channels,
        out_channels=out_channels,
        dtype=dtype,
        platform=platform,
    )


def of_map(product, kmap, channels, dtype, platform, kind="dense", precision="highest"):
    """The problem of a layer on a kernel map; ``channels``: in and out."""
    return make_problem(
        product, kind, kmap.in_capacity, kmap.out_capacity, kmap.num_offsets, *channels, 1, dtype,
        precision, kmap.symmetric, platform, kmap.spec,
    )  # fmt: skip


def operands_of(problem, kmap):
    """Both operands, with NaN in padding rows."""
    rng = np.random.default_rng(0)

    def rows(geometry, channels):
        values = rng.normal(size=(geometry.capacity, channels))
        values[int(geometry.count) :] = np.nan
        return jnp.asarray(values, problem.dtype)

    x = rows(kmap.in_geometry, problem.in_channels)
    dy = rows(kmap.out_geometry, problem.out_channels)
    w = jnp.asarray(rng.normal(size=problem.weight_shape), problem.dtype)
    return {"forward": (x, w), "dgrad": (dy, w), "wgrad": (x, dy)}[problem.product]


def random_table(rng, inputs, outputs, taps, present, ascending=False):
    """``int32[outputs, taps]``; within a tap no input twice, as in every kernel map."""
    table = np.full((outputs, taps), -1, np.int32)
    for tap in range(taps):
        out = np.flatnonzero(rng.random(outputs) < present)[:inputs]
        chosen = rng.permutation(inputs)[: len(out)]
        table[out, tap] = np.sort(chosen) if ascending else chosen
    return table


def changed(problem, **changes):
    """The problem with other values of some fields, its layer's among them."""
    of_layer = {name: changes.pop(name) for name in OF_LAYER & set(changes)}
    of_sizes = {name: changes.pop(name) for name in OF_SIZES & set(changes)}
    found = problem.with_layer(**of_layer).with_sizes(**of_sizes)
    return dataclasses.replace(found, **changes)


def kernel_of(problem, parameters):
    """The kernel of ``implicit_gemm``, or of ``implicit``, that these parameters are of."""
    marks = {"windows": "tpu", "triton": "gpu", "native": "cpu"}
    platform = marks.get(dict(parameters).get("body"), "any")
    return next(k for k in lookup(*implicit(problem)) if k.platform == platform)


def implicit(problem):
    """The name and kind that :func:`lookup` takes."""
    kind = problem.layer.kind
    return "implicit" if kind == "depthwise" else "implicit_gemm", kind


def space_of(problem, hardware):
    """The parameters of ``implicit_gemm``'s candidates, or of ``implicit``'s."""
    found = space.space_of(problem, implicit(problem)[:1], hardware)
    return [candidate.parameters for candidate in found.candidates]


def views_of(kernel_map, kernel, problem, parameters):
    """The arrays that the kernel reads."""
    read = kernel.views_of(problem, parameters)
    return {name: kernel_map.view(name, view) for name, view in read.items()}
