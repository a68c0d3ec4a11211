"""Products as on SparseCores, gathered in plain JAX, on a sample of relations and layouts.

Each case is a convolution with the form ``sparse_core_128``: its result and its gradients against
loops in float64, with NaN in padding. One runs by default, all with ``-m slow``.
"""

import pytest

from conformance.cases import TOLERANCE, make_inputs, run
from conformance.convolution import Kernel, convolution, transposed
from conformance.layouts import BATCH_SIZE
from conformance.slopes import check_slopes
from oracle import check_sites

FORM = "sparse_core_128"
RELATIONS = {
    "submanifold": lambda size, c: convolution("s", Kernel(size), channels=c),
    "strided": lambda size, c: convolution("s", Kernel(size, 2), channels=c),
    "transposed": lambda size, c: transposed("s", Kernel(size, 2), channels=c),
}
SAMPLE = (
    ("submanifold", 3, 3, 64, "bfloat16", "random"),
    ("strided", 2, 3, 3, "float32", "random"),
    ("transposed", 3, 2, 40, "float32", "full"),
    ("submanifold", 5, 2, 130, "float32", "line"),
    ("transposed", 2, 3, 33, "bfloat16", "one_voxel"),
    ("strided", 3, 3, 20, "bfloat16", "no_voxel"),
)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id="-".join(map(str, case)), marks=[pytest.mark.slow] * (number > 0))
        for number, case in enumerate(SAMPLE)
    ],
)
@pytest.mark.usefixtures("forms")
@pytest.mark.filterwarnings("ignore:a kernel of extent")
def test_the_products_are_the_reference(case):
    relation, size, ndim, channels, dtype, layout = case
    operator = RELATIONS[relation](size, channels)
    inputs = make_inputs(operator, ndim, dtype, layout)
    voxels, params, sites, exact = inputs
    out = run(operator, voxels, params, FORM)
    expected = operator.reference(sites, exact, BATCH_SIZE)
    check_sites(out, expected, TOLERANCE[dtype])
    check_slopes(operator, inputs, expected, out, FORM)
