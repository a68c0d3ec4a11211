"""Example inputs by name, and advice that names arguments which the function has."""

import functools
import inspect
import re

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

import voxax as vx
from voxax.cli.check import check as check_command

X = jnp.linspace(0.0, 1.0, 6)

pytestmark = pytest.mark.lax_promotion


def scaled(x, *, times, rows=None, mode="sum"):
    if times > 1:
        x = x + 1
    return (x[rows] if rows is not None else x) * times


def cut(x, *, sizes):
    return [x[:n] for n in sizes]


def of_any(x, *sizes, **options):
    return [x[:n] for n in sizes], x * options.get("scale", 1)


def by_position(x, n, /):
    return x[:n]


def of_a_dict(x, config):
    return x[: config["n"]] * config["scale"]


class Head(nnx.Module):
    def __init__(self, rngs):
        self.linear = nnx.Linear(6, 6, rngs=rngs)

    def __call__(self, x, count, *, scale):
        return self.linear(x)[:count] * scale


ROWS = jnp.array([1, 0])
CASES = [
    (scaled, (X,), {"times": 2.0}, "static per value", {"times"}),
    (scaled, (X,), {"times": jnp.float32(2)}, "not static", set()),
    (scaled, (), {"x": X, "times": 0.5, "rows": ROWS}, "static per value", {"times"}),
    (scaled, (X,), {"times": 0.5, "mode": "max"}, "static per value", {"mode", "times"}),
    (cut, (X,), {"sizes": (3, 2, 1)}, "static per value", {f"sizes[{i}]" for i in range(3)}),
    (of_any, (X, 3, 2), {"scale": 2.0}, "static per value", {"sizes[0]", "sizes[1]"}),
    (of_any, (X,), {"scale": X}, "static", set()),
    (Head(nnx.Rngs(0)), (X, 3), {"scale": 0.5}, "static per value", {"count"}),
    (jax.jit(scaled, static_argnames="times"), (X,), {"times": 2}, "static per value", {"times"}),
    (functools.partial(scaled, times=2.0), (X,), {"rows": ROWS}, "static", set()),
]


@pytest.mark.parametrize(("target", "inputs", "kwargs", "verdict", "static"), CASES)
def test_verdict(target, inputs, kwargs, verdict, static):
    report = vx.check_static(target, *inputs, kwargs=kwargs, verify=True)
    assert (report.verdict, set(report.static_arguments)) == (verdict, static), str(report)
    assert report.verification.holds, str(report)


def test_each_line_names_every_number_that_it_reads():
    report = vx.check_static(cut, X, kwargs={"sizes": (3, 2, 1)})
    (finding,) = report.findings
    assert (finding.code, report.programs) == ("VX201", 1)
    assert "`sizes[0]`, `sizes[1]`, `sizes[2]`" in finding.message


def test_further_examples():
    kwargs = {"times": 2.0, "rows": ROWS}
    also = [{"times": 3.0}, {"x": X[:4]}, (X[:5],), {"rows": None}]
    report = vx.check_static(scaled, X, kwargs=kwargs, also=also)
    by_code = {f.code: f for f in report.findings if f.code != "VX201"}
    assert set(by_code) == {"VX202", "VX204"}
    assert "(4,), (5,), (6,)" in by_code["VX202"].message
    assert "only the first has `rows`" in by_code["VX204"].message
    assert report.programs == 5


def test_missing_names_are_advised_and_the_advice_works():
    (finding,) = vx.check_static(scaled, X, kwargs={"rows": ROWS}).findings
    assert finding.code == "VX191"
    assert re.findall(r"'(\w+)': \.\.\.", finding.fix) == ["times"]
    report = vx.check_static(scaled, X, kwargs={"rows": ROWS, "times": 2.0})
    assert "VX191" not in {f.code for f in report.findings}


@pytest.mark.parametrize(
    ("target", "inputs", "kwargs"),
    [(scaled, (X,), {"time": 2.0}), (scaled, (X,), {"x": X, "times": 1.0}), (cut, (), {"y": X})],
)
def test_names_that_do_not_fit(target, inputs, kwargs):
    with pytest.raises(vx.errors.InputError, match="the arguments are `x`") as error:
        vx.check_static(target, *inputs, kwargs=kwargs)
    for name in inspect.signature(target).parameters:
        assert f"`{name}`" in str(error.value)


@pytest.mark.parametrize(
    ("target", "inputs", "kwargs", "options"),
    [
        (cut, (X,), {"sizes": 3}, {"static_argnames": ("sizes",)}),
        (of_any, (X, 3, 2), {}, {"static_argnums": (1, 2)}),
        (by_position, (X, 3), {}, {"static_argnums": (1,)}),
        (scaled, (X,), {"times": 2.0}, {"static_argnames": ("times",)}),
    ],
)
def test_advised_static_arguments_compile(target, inputs, kwargs, options):
    if target is cut:
        target = lambda x, *, sizes: x[:sizes]  # noqa: E731
    finding = vx.check_static(target, *inputs, kwargs=kwargs).findings[0]
    assert finding.code == "VX201"
    advised = re.search(r"jax\.jit\(f, (\w+)=(\([^)]*\))\)", finding.fix)
    assert {advised[1]: eval(advised[2])} == options
    jax.jit(target, **options)(*inputs, **kwargs)


def test_part_of_a_dict_is_advised_as_an_argument_of_its_own():
    finding = vx.check_static(of_a_dict, X, {"n": 3, "scale": 2.0}).findings[0]
    assert "make `config['n']` an argument of its own" in finding.fix
    assert "static_arg" not in finding.fix


SOURCE = """
import jax.numpy as jnp


def model(x, *, times, rows=None):
    return (x if rows is None else x[rows]) * times


def numbers():
    return jnp.array([0, 1])
"""


def test_command_line(tmp_path, capsys):
    file = tmp_path / "named.py"
    file.write_text(SOURCE)
    target = f"{file}:model"
    assert check_command(target, ("f32[4,8]",)) == 1
    assert "--inputs times=VALUE" in capsys.readouterr().out
    assert check_command(target, ("f32[4,8]", "times=0.5", "rows=@numbers"), verify=True) == 0
    assert "verified: 1 program" in capsys.readouterr().out
    also = (("f32[5,8]", "times=f32[]"),)
    assert check_command(target, ("f32[4,8]", "times=0.5"), also=also) == 0
    assert {"VX202", "VX203"} <= set(re.findall(r"VX\d+", capsys.readouterr().out))
    with pytest.raises(vx.errors.InputError, match="`x`, `times`, `rows`"):
        check_command(target, ("f32[4,8]", "tims=0.5"))
    with pytest.raises(vx.errors.InputError, match="given twice"):
        check_command(target, ("f32[4,8]", "times=0.5", "times=1"))
