"""That a pinned form is what runs: otherwise the cases of the suite would prove nothing."""

import jax
import jax.numpy as jnp
import pytest

import problems
from conformance.cases import as_function, make_inputs, run
from conformance.catalogue import OPERATORS
from conformance.forms import FORMS, SAMPLED
from voxax.hardware import HardwareInfo
from voxax.kernels import lookup, names
from voxax.tuning import record_choices

PRODUCTS = ("forward", "dgrad", "wgrad")
KINDS = ("dense", "grouped", "depthwise")


def make_problem(product, kind):
    return problems.make_problem(
        product, kind, 999, 999, 27, 8, 8, 1, "float32", "highest", True, "cpu"
    )


pytestmark = pytest.mark.usefixtures("forms")


@pytest.mark.parametrize("name", ["conv_even", "conv_grouped", "depthwise"])
@pytest.mark.parametrize("form", FORMS)
def test_every_product_is_lowered_with_the_form(form, name):
    operator = OPERATORS[name]
    voxels, params, *_ = make_inputs(operator, 2, "float32", "random")
    apply, features, weights = as_function(operator, voxels, params, form)

    def loss(features, weights):
        return jnp.sum(apply(features, weights) ** 2)

    with record_choices() as choices:
        jax.jit(jax.grad(loss, (0, 1))).lower(features, weights)
    assert {choice.problem.product for choice in choices} == {"forward", "dgrad", "wgrad"}
    for choice in choices:
        assert choice.kernel.apply is FORMS[form].apply
        assert choice.algorithm == form
        assert choice.parameters == FORMS[form].heuristic(choice.problem, None)


def test_no_eager_program_is_used_for_another_form():
    """Eager calls keep one compiled program for each product and layer."""
    operator = OPERATORS["conv_pointwise"]
    voxels, params, *_ = make_inputs(operator, 1, "float32", "random")
    for form in FORMS:
        with record_choices() as choices:
            run(operator, voxels, params, form)
        assert {choice.algorithm for choice in choices} <= {form}


def variant(parameters):
    """Return what an algorithm branches on: names of parameters, and values that are names."""
    return tuple((name, value if isinstance(value, str) else None) for name, value in parameters)


def test_every_variant_of_every_algorithm_has_a_form():
    """A new kernel is missing here until it has one."""
    problems = [make_problem(product, kind) for product in PRODUCTS for kind in KINDS]
    cpu, other = (HardwareInfo(platform=p, device_kind="some") for p in ("cpu", "any"))
    there = {variant(f.heuristic(p, cpu)) for f in FORMS.values() for p in problems}
    for problem in problems:
        kind = problem.layer.kind
        for kernel in (k for name in names(kind) for k in lookup(name, kind)):
            if kernel.name in (*FORMS, *SAMPLED) or kernel.refusal(problem, cpu) is not None:
                continue
            for hardware in (cpu, other):
                found = set(map(variant, kernel.space(problem, hardware)))
                assert found - there == set(), kernel.name
