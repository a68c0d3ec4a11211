"""A kernel's epilogue is compared before it is used."""

import dataclasses
import logging

import jax.numpy as jnp
import pytest

import problems
from voxax.geometry import KernelSpec
from voxax.kernels.explicit_gemm import xla
from voxax.tuning import decide, epilogue
from voxax.tuning.epilogue import applies_epilogue


def right(problem, parameters, a, b, views, e):
    y = xla.apply(problem, parameters, a, b, views).astype("float32")
    factor = e.scale / jnp.sqrt(e.variance + e.epsilon)
    y = (y + e.bias[None] - e.mean[None]) * factor[None] + e.shift[None] + e.residual
    return jnp.where(e.valid[:, None], jnp.maximum(y, 0), 0).astype(a.dtype)


def without_shift(problem, parameters, a, b, views, e):
    return right(problem, parameters, a, b, views, dataclasses.replace(e, shift=0 * e.shift))


def failing(*arguments):
    raise RuntimeError("out of registers")


def leaving(*arguments):
    return None


@pytest.fixture
def choose(monkeypatch):
    monkeypatch.setattr(epilogue, "_objections", {})

    def chosen(with_epilogue):
        problem = problems.make_problem(
            "forward", "dense", 90, 80, 27, 6, 5, 1, "float32", "highest", False, "cpu",
            KernelSpec.make(3, 3),
        )  # fmt: skip
        kernel = dataclasses.replace(xla.EXPLICIT_GEMM, with_epilogue=with_epilogue)
        return decide.Choice(problem, kernel, xla.IM2COL, "pinned")

    return chosen


@pytest.mark.parametrize(
    ("function", "used"),
    [(right, True), (without_shift, False), (failing, False), (leaving, True), (None, False)],
)
def test_only_a_right_one_is_used(choose, monkeypatch, caplog, function, used):
    monkeypatch.setenv("VOXAX_AUTOTUNE", "on")
    with caplog.at_level(logging.WARNING, "voxax.tuning"):
        assert applies_epilogue(choose(function)) == used
    assert bool(caplog.records) == (function in (without_shift, failing))


def test_it_is_compared_once(choose, monkeypatch):
    monkeypatch.setenv("VOXAX_AUTOTUNE", "on")
    assert applies_epilogue(choose(right))
    assert applies_epilogue(choose(failing)), "known by now"


def test_nothing_is_compared_where_products_are_not(choose, monkeypatch):
    monkeypatch.setenv("VOXAX_AUTOTUNE", "off")
    assert applies_epilogue(choose(failing))
