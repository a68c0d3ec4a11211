"""Dynamic products through the real TPU compiler, without a TPU.

Needs libtpu (`pip install .[tpu]`); run with `pytest -m tpu_compile`. Nothing is executed.
"""

import jax
import pytest
from benchmarks.tpu.program import TOPOLOGIES, compile_for

import problems
from problems import needs_libtpu
from voxax.kernels import lookup
from voxax.products.convolution import sized_spec

pytestmark = [pytest.mark.tpu_compile, needs_libtpu]


@pytest.mark.parametrize("method", ["masked", "grouped", "tiled", "selected"])
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_products_compile(topology, method):
    spec = sized_spec((3, 3), (1, 1), (1, 1))
    grid = (1, 16, 16)

    def three(x, dy, w, sizes):
        def one(product, a, b):
            problem = problems.make_problem(
                product, "dynamic", 256, 256, 9, 128, 128, 1, "float32", "highest", False, "tpu",
                spec, grid=grid,
            )  # fmt: skip
            algorithm = lookup(method, "dynamic")[-1]
            parameters = algorithm.heuristic(problem, None)
            return algorithm.apply(problem, parameters, a, b, {"sizes": sizes})

        return one("forward", x, w), one("dgrad", dy, w), one("wgrad", x, dy)

    rows = jax.ShapeDtypeStruct((256, 128), "float32")
    shapes = rows, rows, jax.ShapeDtypeStruct((9, 128, 128), "float32")
    assert compile_for(topology, three, *shapes, jax.ShapeDtypeStruct((256,), "int32"))
