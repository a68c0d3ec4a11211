"""The GPU's kernels, in Triton's interpreter, on kernels, axes, channels, relations and layouts.

Each case is a convolution with the form ``triton_16``: its result, of some all gradients, against
loops in float64, with NaN in padding. Two run by default, all with ``-m slow``.
"""

import pytest

import problems
from conformance.cases import TOLERANCE, make_inputs, run
from conformance.convolution import Kernel, convolution, depthwise, transposed
from conformance.layouts import BATCH_SIZE
from conformance.slopes import check_slopes
from oracle import check_sites

FORM = "triton_16"
RELATIONS = {
    "submanifold": lambda size, c: convolution("s", Kernel(size), channels=c),
    "strided": lambda size, c: convolution("s", Kernel(size, 2), channels=c),
    "transposed": lambda size, c: transposed("s", Kernel(size, 2), channels=c),
    "depthwise": lambda size, c: depthwise("s", Kernel(size), channels=c),
}
# Every value of each axis, and pairs of them as they fall.
SAMPLE = (
    ("submanifold", 2, 1, 64, "float16", "full"),
    ("strided", 2, 2, 3, "bfloat16", "random"),
    ("transposed", 3, 3, 1, "float32", "random"),
    ("depthwise", 3, 3, 33, "float16", "full"),
    ("strided", 5, 2, 40, "float32", "line"),
    ("submanifold", 3, 3, 17, "bfloat16", "random"),
    ("submanifold", 3, 4, 2, "float32", "line"),
    ("transposed", 2, 3, 16, "bfloat16", "one_voxel"),
    ("depthwise", 2, 2, 16, "bfloat16", "no_voxel"),
    ("submanifold", 3, 2, 5, "float32", "no_voxel"),
    ("strided", 3, 3, 20, "float16", "one_voxel"),
)
# Those whose gradients are checked too, of all orders: the compilers' time.
SLOPES = (2, 3, 5)


@problems.needs_triton
@pytest.mark.parametrize(
    ("case", "slopes"),
    [
        pytest.param(
            case,
            number in SLOPES,
            id="-".join(map(str, case)),
            marks=[pytest.mark.slow] * (number > 1),
        )
        for number, case in enumerate(SAMPLE)
    ],
)
@pytest.mark.usefixtures("forms")
@pytest.mark.filterwarnings("ignore:a kernel of extent")
def test_the_kernels_are_the_reference(case, slopes):
    relation, size, ndim, channels, dtype, layout = case
    operator = RELATIONS[relation](size, channels)
    inputs = make_inputs(operator, ndim, dtype, layout)
    voxels, params, sites, exact = inputs
    out = run(operator, voxels, params, FORM)
    expected = operator.reference(sites, exact, BATCH_SIZE)
    check_sites(out, expected, TOLERANCE[dtype])
    if slopes:
        check_slopes(operator, inputs, expected, out, FORM)


def test_the_sample_has_every_value_of_each_axis():
    values = [set(column) for column in zip(*SAMPLE, strict=True)]
    wanted = [
        set(RELATIONS),
        {2, 3, 5},
        {1, 2, 3, 4},
        {1, 2, 3, 5, 16, 17, 20, 33, 40, 64},
        {"float32", "float16", "bfloat16"},
        {"random", "no_voxel", "one_voxel", "line", "full"},
    ]
    assert values == wanted
