"""Products compiled for TPUs that are not there, by libtpu (`pip install .[tpu]`)."""

import os

import jax

from voxax import _compat
from voxax.algorithms import Problem
from voxax.algorithms.implicit_gemm import bodies
from voxax.geometry import KernelSpec
from voxax.geometry.windows import WINDOW_TILE, columns_of

TOPOLOGIES = ("v4:2x2x1", "v5e:2x2", "v5p:2x2x1", "v6e:2x2", "tpu7x:2x2x1")


def make_problem(
    product, dtype, channels=64, rows=100_352, kernel_size=3, stride=1, ndim=3, precision="highest"
):
    """A dense product over as many rows on both sides."""
    spec = KernelSpec.make(ndim, kernel_size, stride)
    c_in, c_out = channels if isinstance(channels, tuple) else (channels, channels)
    return Problem(
        product, "dense", rows, rows, spec.num_offsets, c_in, c_out, 1, dtype, precision,
        spec.keeps_coords and spec.symmetric, "tpu", spec,
    )  # fmt: skip


def compile_for(topology, function, *shapes):
    """A function compiled for one device of a topology, with default layouts.

    Without a TPU: libtpu is kept from asking a metadata server about one, here and afterwards.
    """
    from jax.sharding import AbstractDevice, AbstractMesh, SingleDeviceSharding, use_abstract_mesh

    # Before libtpu is loaded: it would wait for the server, and allow one process at a time.
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    device = _compat.tpu_topology(topology)[0]
    kind, cores = device.device_kind, int(getattr(device, "num_cores", None) or 1)
    one = SingleDeviceSharding(device)
    abstract = AbstractDevice(device_kind=kind, num_cores=cores, platform="tpu")
    with use_abstract_mesh(AbstractMesh((), (), abstract_device=abstract)):
        lowered = jax.jit(function, in_shardings=one, out_shardings=one).lower(*shapes)
    return lowered.compile()


def compile_product(topology, problem, parameters):
    """``implicit_gemm`` with these parameters."""

    def shape(*size, dtype=problem.dtype):
        return jax.ShapeDtypeStruct(size, dtype)

    x = shape(problem.in_capacity, problem.in_channels)
    dy = shape(problem.out_capacity, problem.out_channels)
    w = shape(*problem.weight_shape)
    a, b = {"forward": (x, w), "dgrad": (dy, w), "wgrad": (x, dy)}[problem.product]
    columns = len(columns_of(problem.spec, problem.num_offsets))

    def view(name):
        rows = problem.in_capacity if name.startswith("transposed") else problem.out_capacity
        if name.endswith("windows"):
            return shape(2, -(-rows // WINDOW_TILE), columns, dtype="int32")
        return shape(rows, problem.num_offsets, dtype="int32")

    def run(a, b, views):
        return bodies.apply(problem, parameters, a, b, views)

    names = bodies.views(parameters, problem.product, problem.symmetric)
    return compile_for(topology, run, a, b, {name: view(name) for name in names})
