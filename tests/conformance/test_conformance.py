"""operator x D x dtype x layout x algorithm, each against the float64 reference.

Padding rows of the input always hold NaN, so every case also shows that padding is inert. float32
runs on every layout, other dtypes on half of them, taking turns. The
cases listed in ``fast_lane.txt`` run by default, all of them with ``-m slow``.

Where an operator takes an algorithm, every case runs with the one that is chosen unmeasured, and a
selection with each form of each (``forms.py``), which then also has its gradients compared.
"""

import itertools
from pathlib import Path

import jax.numpy as jnp
import pytest

import voxax as vx
from conformance.cases import TOLERANCE, make_inputs, run, wide_types
from conformance.catalogue import OPERATORS
from conformance.forms import FORMS, INTERPRETED
from conformance.layouts import BATCH_SIZE, LAYOUTS
from conformance.slopes import check_slopes
from oracle import check_sites, relative_error

FAST_LANE = frozenset((Path(__file__).parent / "fast_lane.txt").read_text().split())

pytestmark = [
    pytest.mark.filterwarnings("ignore:a kernel of extent"),
    pytest.mark.usefixtures("forms"),
]


def every_case():
    """``(id, (operator, ndim, dtype, layout, form or None))``."""
    forms, turn = form_cases(), itertools.count()
    for operator in OPERATORS.values():
        layouts = tuple(LAYOUTS if operator.layouts is None else operator.layouts)
        for ndim in operator.dims:
            for dtype in operator.dtypes:
                for layout in layouts if dtype == "float32" else some_of(layouts, next(turn)):
                    yield named(operator.name, ndim, dtype, layout, None)
            # Right behind: they share the programs that build the maps.
            for case in forms.get((operator.name, ndim), ()):
                yield named(operator.name, ndim, *case)


def some_of(layouts, turn):
    """The first, and every other one of the rest: a dtype is not likely to depend on the layout."""
    return (layouts[0], *layouts[1 + turn % 2 :: 2])


def named(name, ndim, *rest):
    words = (name, f"{ndim}D", *rest)
    return "-".join(filter(None, words)), (name, ndim, *rest)


def form_cases():
    """``{(operator, ndim): [(dtype, layout, form), ...]}``.

    Each operator runs in every form with one number of axes, which take turns, as dtypes do; each
    program is used for two layouts; forms that are interpreted run in float32 and for one.
    """
    cases = {}
    # Eight, so that a form does not always meet the same one.
    dtypes = itertools.cycle(
        ("float32", "bfloat16", "float32", "float64", "float32", "float16", "float64", "float32")
    )
    turn = itertools.count()
    taking = [operator for operator in OPERATORS.values() if operator.takes_algorithm]
    for number, operator in enumerate(taking):
        layouts = operator.layouts or tuple(LAYOUTS)
        ndim = operator.dims[number % len(operator.dims)]
        for form in FORMS:
            if form in INTERPRETED:
                cases.setdefault((operator.name, ndim), []).append(("float32", "random", form))
                continue
            dtype, other = next(dtypes), layouts[next(turn) % len(layouts)]
            for layout in dict.fromkeys(("random", other)):
                cases.setdefault((operator.name, ndim), []).append((dtype, layout, form))
    return cases


def parameters():
    for name, values in every_case():
        marks = () if name in FAST_LANE else pytest.mark.slow
        yield pytest.param(*values, id=name, marks=marks)


@pytest.mark.parametrize(("name", "ndim", "dtype", "layout", "form"), list(parameters()))
def test_operator_is_its_reference(name, ndim, dtype, layout, form):
    operator = OPERATORS[name]
    with wide_types(dtype):
        voxels, params, sites, exact = case = make_inputs(operator, ndim, dtype, layout)
        out = run(operator, voxels, params, form)
        expected = operator.reference(sites, exact, BATCH_SIZE)
        if isinstance(out, vx.Voxels):
            assert out.features.dtype == jnp.dtype(dtype)
            check_sites(out, expected, TOLERANCE[dtype])
        else:
            assert relative_error(out, expected) < TOLERANCE[dtype]
        if form is not None:
            check_slopes(operator, case, expected, out, form)


def test_the_fast_lane_names_cases_that_exist():
    assert FAST_LANE - {name for name, _ in every_case()} == set()
