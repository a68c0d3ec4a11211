"""The TPU's kernels, interpreted, on a sample of kernels, axes, channels, relations and layouts.

Each case is a convolution with the form ``windows_128``: its result and its gradients against loops
in float64. One in twelve runs by default, all with ``-m slow``; the whole product of the values
below would take hours, so ``SAMPLE`` has every value, and pairs of them as they fall.
"""

import numpy as np
import pytest

from conformance.cases import TOLERANCE, make_inputs, run
from conformance.convolution import Kernel, convolution, depthwise, transposed
from conformance.layouts import BATCH_SIZE
from conformance.slopes import check_slopes
from oracle import check_sites

FORM = "windows_128"

RELATIONS = {
    "submanifold": lambda size, c: convolution("s", Kernel(size), channels=c),
    "strided": lambda size, c: convolution("s", Kernel(size, 2), channels=c),
    "dilated": lambda size, c: convolution("s", Kernel(size, dilation=2), channels=c),
    "transposed": lambda size, c: transposed("s", Kernel(size, 2), channels=c),
    "depthwise": lambda size, c: depthwise("s", Kernel(size), channels=c),
}
AXES = {
    "relation": tuple(RELATIONS),
    "size": (3, 5),
    "ndim": (2, 3),
    "channels": (1, 3, 64, 130, 512),
    "dtype": ("float32", "bfloat16"),
    "layout": ("random", "no_voxel", "one_voxel", "line", "full"),
}
NUMBER = 12


def sample():
    """Values of each axis in turn, shuffled: each as often as another, but for one.

    5 x 5 x 5 taps take the interpreter's compiler too long: those cases have two axes.
    """
    rng = np.random.default_rng(5)
    columns = [
        rng.permutation(np.resize(np.arange(len(values)), NUMBER)) for values in AXES.values()
    ]
    cases = []
    for places in zip(*columns, strict=True):
        case = {n: v[i] for (n, v), i in zip(AXES.items(), places, strict=True)}
        if case["size"] == 5:
            case["ndim"] = 2
        cases.append(case)
    return cases


SAMPLE = sample()


def test_the_sample_has_every_value():
    for name, values in AXES.items():
        assert {case[name] for case in SAMPLE} == set(values)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            case,
            id="-".join(map(str, case.values())),
            marks=() if number % 12 == 0 else pytest.mark.slow,
        )
        for number, case in enumerate(SAMPLE)
    ],
)
@pytest.mark.usefixtures("forms")
@pytest.mark.filterwarnings("ignore:a kernel of extent")
def test_the_kernels_are_the_reference(case):
    operator = RELATIONS[case["relation"]](case["size"], case["channels"])
    inputs = make_inputs(operator, case["ndim"], case["dtype"], case["layout"])
    voxels, params, sites, exact = inputs
    out = run(operator, voxels, params, FORM)
    expected = operator.reference(sites, exact, BATCH_SIZE)
    check_sites(out, expected, TOLERANCE[case["dtype"]])
    check_slopes(operator, inputs, expected, out, FORM)
