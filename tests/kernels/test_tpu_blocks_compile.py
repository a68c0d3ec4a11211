"""The block kernels of dynamic products through the real TPU compiler, without a TPU.

Needs libtpu (`pip install .[tpu]`); run with `pytest -m tpu_compile`. Nothing is executed.
"""

import jax
import pytest
from benchmarks.tpu.program import TOPOLOGIES, compile_for, facts

import problems
from problems import needs_libtpu
from samples import slow_unless
from voxax.kernels.dynamic import tpu
from voxax.products.convolution import sized_spec

pytestmark = [pytest.mark.tpu_compile, needs_libtpu]

PRODUCTS = ("forward", "dgrad", "wgrad")


def check(topology, product, dtype, channels=64, spatial=(16, 32), taps=3, stride=1, form=0):
    ndim = len(spatial)
    spec = sized_spec((taps,) * ndim, (stride,) * ndim, (1,) * ndim)
    outputs = [-(-n // stride) for n in spatial]
    rows, out = 1, 1
    for n, m in zip(spatial, outputs, strict=True):
        rows, out = rows * n, out * m
    problem = problems.make_problem(
        product, "dynamic", rows, out, spec.num_offsets, channels, channels, 1, dtype, "highest",
        False, "tpu", spec, grid=(1, *spatial),
    )  # fmt: skip
    hardware = facts(topology)
    assert tpu.supports(problem, hardware) is None
    parameters = tpu.space(problem, hardware)[form]

    def run(a, b, sizes):
        return tpu.apply(problem, parameters, a, b, {"sizes": sizes})

    shapes = [jax.ShapeDtypeStruct(shape, dtype) for shape in problem.operand_shapes]
    program = compile_for(topology, run, *shapes, jax.ShapeDtypeStruct((out,), "int32"))
    assert "tpu_custom_call" in program.as_text()
    return dict(parameters)["body"]


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_products_compile(topology, product):
    check(topology, product, "float32" if product == "wgrad" else "bfloat16")


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_planes_in_lanes_compile(topology, product):
    dtype = "float32" if product == "dgrad" else "bfloat16"
    assert check(topology, product, dtype, spatial=(20, 250)) == "lanes"


@pytest.mark.parametrize(
    ("product", "options"),
    [
        slow_unless(fast, product, options)
        for fast, product, options in (
            (True, "forward", {"dtype": "float32", "taps": 4}),
            (False, "dgrad", {"dtype": "float32", "taps": 4}),
            (False, "wgrad", {"dtype": "bfloat16", "taps": 4}),
            *(
                (False, product, {"dtype": dtype, **options})
                for product in PRODUCTS
                for dtype in ("float32", "bfloat16")
                for options in (
                    {"channels": 256},
                    {"channels": 3},
                    {"spatial": (1000,), "taps": 9},
                    {"spatial": (8, 10, 12), "taps": 3},
                    {"stride": 2},
                    {"form": 1},
                    {"spatial": (256, 256), "taps": 7},
                )
            ),
        )
    ],
    ids=str,
)
def test_other_relations_compile(product, options):
    check("v5e:2x2", product, **options)


@pytest.mark.slow
@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_the_case_of_the_table_compiles(topology, product):
    check(topology, product, "bfloat16", spatial=(256, 256), taps=7)


@pytest.mark.slow
@pytest.mark.parametrize("product", PRODUCTS)
def test_products_compile_where_integers_have_64_bits(product):
    with jax.enable_x64(True):
        check("v5e:2x2", product, "bfloat16")
