"""Products compiled for TPUs that are not present, by libtpu (`pip install .[tpu]`)."""

import functools
import hashlib
import importlib.metadata
from pathlib import Path

import jax
import numpy as np
from benchmarks.tpu.sources import code_of

from voxax import predict
from voxax.coords import lookup, ordering, tile_lookup, tile_sort, unique
from voxax.errors import AlgorithmError
from voxax.geometry import KernelSpec, kernel_maps
from voxax.hardware import describe
from voxax.kernels import Layer, Problem
from voxax.kernels.depthwise import tpu as depthwise_tpu
from voxax.kernels.implicit_gemm import items, tpu, tpu_items, windows
from voxax.kernels.implicit_gemm.windows import WINDOW_TILE, columns_of, find_windows
from voxax.predict import TOPOLOGIES as BY_CHIP
from voxax.predict import compile_for
from voxax.predict.candidates import steps

MAPS = tile_lookup, tile_sort, ordering, lookup, unique, kernel_maps
"""The modules whose programs kernel maps are."""
COUNT = "chip", "compiled_program", "hlo", "listing", "scalars"
"""The modules of voxax.predict that figures depend on."""
APART = "dgrad and wgrad run one after the other"
TOPOLOGIES = tuple(BY_CHIP.values())

facts = functools.cache(describe)  # a process of its own each time


@functools.cache
def digest(name="windows"):
    """Return a digest of the window kernels, maps or baselines, of the count, and of versions."""
    folder = Path(tpu.__file__).parent
    kernels = (folder / "tpu.py", folder / "tpu_kernel.py", Path(windows.__file__))
    of_lists = Path(items.__file__), Path(tpu_items.__file__), folder / "tpu_items_kernel.py"
    maps = tuple(Path(m.__file__) for m in MAPS)
    files = {
        "windows": kernels,
        "lists": of_lists,
        "maps": maps,
        "step": (*kernels, *maps),
        "baselines": (Path(__file__).parent / "baselines.py",),
    }
    counted = (Path(predict.__file__).parent / f"{name}.py" for name in COUNT)
    found = hashlib.sha256(b"".join(code_of(path) for path in (*files[name], *counted)))
    for package in ("jax", "libtpu"):
        found.update(f"{package} {importlib.metadata.version(package)}".encode())
    return found.hexdigest()[:12]


def make_problem(
    product, dtype, channels=64, rows=100_352, kernel_size=3, stride=1, ndim=3, precision="highest"
):
    """A dense product over as many rows on both sides."""
    spec = KernelSpec.make(ndim, kernel_size, stride)
    c_in, c_out = channels if isinstance(channels, tuple) else (channels, channels)
    layer = Layer(
        in_capacity=rows,
        out_capacity=rows,
        num_offsets=spec.num_offsets,
        symmetric=spec.keeps_coords and spec.symmetric,
        kind="dense",
        groups=1,
        precision=precision,
        spec=spec,
    )
    return Problem(product, layer, c_in, c_out, dtype, "tpu")


def compile_product(topology, problem, parameters):
    """``implicit_gemm`` with these parameters."""
    return compile_for(topology, *operands(problem, parameters))


def product(chip, product="forward", dtype="bfloat16", window=0, **options):
    """Return the program for ``voxax.predict``: the window kernels in their blocks for a chip.

    ``product="gradients"``: dgrad and wgrad at once.
    """
    problem, parameters = chosen(chip, product, dtype, window, **options)
    both = product == "gradients"
    if parameters is None:
        raise AlgorithmError(f"{APART}: their blocks do not fit together")
    return gradients(problem, parameters) if both else operands(problem, parameters)


def chosen(chip, product, dtype="bfloat16", window=0, **options):
    """Return a product and its blocks for a chip; of ``gradients`` dgrad."""
    both, hardware = product == "gradients", facts(BY_CHIP[chip])
    problem = make_problem("dgrad" if both else product, dtype, **options)
    parameters = tpu.space(problem, hardware)[window]
    if both:
        parameters = kernel_of(problem).fused.heuristic(problem, hardware, parameters)
    return problem, parameters


def gradients(problem, parameters):
    """Return dgrad and wgrad at once as a function of arrays, and their shapes."""
    fused = kernel_of(problem).fused
    _, dy, w, views = operands(problem, parameters)
    x = jax.ShapeDtypeStruct((problem.layer.in_capacity, problem.in_channels), problem.dtype)

    def run(dy, x, w, views):
        return fused.apply(problem, parameters, dy, x, w, views)

    return run, dy, x, w, views


def lists(chip, product="forward", density=1.0, **options):
    """Return the program of the kernel of lists, whatever the number of neighbors."""
    problem = make_problem(product, "bfloat16", **options).with_layer(density=density)
    (parameters,) = tpu_items.candidates(problem, facts(BY_CHIP[chip])) or (None,)
    if parameters is None:
        raise AlgorithmError("lists of items are no candidate on this chip")
    return operands(problem, parameters)


def visits(chip, neighbors, window=0, product="forward", **options):
    """Steps of the grid of a window kernel on one core, for a map ``int32[N, 27]``.

    Each tile is visited once for each window of its longest column.
    """
    rows, taps = neighbors.shape
    problem, parameters = chosen(chip, product, window=window, rows=rows, **options)
    columns = columns_of(problem.layer.spec, taps)
    return steps(problem, parameters, np.asarray(find_windows(neighbors, columns)))


def kernel_of(problem):
    """Return the window kernel of a problem's weights."""
    return depthwise_tpu.WINDOWED if problem.layer.kind == "depthwise" else tpu.WINDOWED


def operands(problem, parameters, kernel=None):
    """A product, that of ``implicit_gemm``, as a function of arrays, and their shapes."""

    def shape(*size, dtype=problem.dtype):
        return jax.ShapeDtypeStruct(size, dtype)

    x = shape(problem.layer.in_capacity, problem.in_channels)
    dy = shape(problem.layer.out_capacity, problem.out_channels)
    w = shape(*problem.weight_shape)
    a, b = {"forward": (x, w), "dgrad": (dy, w), "wgrad": (x, dy)}[problem.product]
    columns = len(columns_of(problem.layer.spec, problem.layer.num_offsets))

    def view(name):
        rows = (
            problem.layer.in_capacity
            if name.startswith("transposed")
            else problem.layer.out_capacity
        )
        if name == "items":
            return shape(*items.Shape.of(rows, problem.layer.num_offsets).array, dtype="int32")
        if name.endswith("windows"):
            return shape(2, -(-rows // WINDOW_TILE), columns, dtype="int32")
        return shape(rows, problem.layer.num_offsets, dtype="int32")

    kernel = kernel or kernel_of(problem)

    def run(a, b, views):
        return kernel.apply(problem, parameters, a, b, views)

    names = kernel.views_of(problem, parameters)
    return run, a, b, {name: view(name) for name in names}
