"""Problems of tests, from all their fields at once."""

import dataclasses
import importlib.util

import pytest

from voxax.kernels import GridSizes, Layer, Problem, lookup, triton_call
from voxax.tuning import space

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
