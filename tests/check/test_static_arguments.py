"""Arguments that jit takes as static, and values that outlive the trace."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from voxax.check import check_static

X = jnp.ones(6)


def parts(x, sizes):
    return [x[: int(n)] for n in np.ravel(list(sizes))]


by_position = jax.jit(parts, static_argnums=1)
named = jax.jit(parts, static_argnames="sizes")


class Layers:
    @functools.partial(jax.jit, static_argnums=(0, 2))
    def run(self, x, sizes):
        return parts(x, sizes)


@pytest.mark.parametrize(
    "target", [by_position, named, Layers().run], ids=["position", "name", "method"]
)
@pytest.mark.parametrize(
    "sizes", [[4, 2], {4: 2}, {3}, np.array([1, 2]), (4, [2]), []], ids=lambda v: str(v)
)
def test_static_arguments_without_a_hash(target, sizes):
    if isinstance(sizes, tuple):
        sizes = (4, np.array([2]))
    with pytest.raises((TypeError, ValueError), match="hashable"):
        target(X, sizes)
    report = check_static(target, X, sizes)
    (finding,) = [f for f in report.findings if f.code == "VX190"]
    assert report.verdict == "not static"
    assert finding.arguments == ("sizes",)
    assert "`sizes` is static" in finding.message
    assert "a tuple in place of a list" in finding.fix


@pytest.mark.parametrize("sizes", [(4, 2), range(1, 3), frozenset({3}), ()], ids=str)
def test_those_with_a_hash_are_one_program_each(sizes):
    named(X, sizes)
    report = check_static(named, X, sizes)
    assert (report.verdict, report.findings) == ("static per value", ())


STORE, TABLE = [], {}


class Box:
    def __init__(self, x):
        self.x = x


@functools.cache
def rows(box):
    return box.x.shape[0]


def keeps_an_argument(x, store=[]):  # noqa: B006
    store.append(x)
    return x


def keeps_a_result(x):
    STORE.append(x * 2)
    return x


def keeps_a_key(x):
    return x * rows(Box(x * 2))


def keeps_an_entry(x):
    TABLE["last"] = x.sum()
    return x


@pytest.mark.parametrize(
    "target",
    [keeps_an_argument, keeps_a_result, keeps_a_key, keeps_an_entry],
    ids=lambda target: target.__name__,
)
def test_what_is_kept_is_found(target):
    report = check_static(target, X)
    assert {f.code for f in report.findings} == {"VX301"}
    assert report.verdict == "static"


def keeps_nothing(x):
    own = [x]
    own.append(x * 2)
    return own


def test_what_is_returned_is_not_kept():
    assert check_static(keeps_nothing, X).findings == ()
