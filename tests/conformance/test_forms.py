"""That a pinned form is what runs: otherwise the cases of the suite would prove nothing."""

import jax
import jax.numpy as jnp
import pytest

from conformance.cases import as_function, make_inputs, run
from conformance.catalogue import OPERATORS
from conformance.forms import FORMS
from voxax.algorithms import ALGORITHMS
from voxax.tuning import record_choices

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
        assert choice.implementation is FORMS[form]
        assert choice.parameters == FORMS[form].heuristic(choice.problem, None)


def test_no_eager_program_is_used_for_another_form():
    """Eager calls keep one compiled program for each product and layer."""
    operator = OPERATORS["conv_pointwise"]
    voxels, params, *_ = make_inputs(operator, 1, "float32", "random")
    for form in FORMS:
        with record_choices() as choices:
            run(operator, voxels, params, form)
        assert {choice.algorithm for choice in choices} <= {form}


def test_every_algorithm_has_forms():
    """A new algorithm is missing here until it has."""
    without_kernels = {"cutlass_implicit_gemm"}
    computes = {a.apply for a in ALGORITHMS if a.name not in without_kernels}
    assert {form.apply for form in FORMS.values()} == computes
