"""A Python number, and then an array of its dtype: two programs, found and cured."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import voxax as vx

pytestmark = pytest.mark.lax_promotion

X = jnp.linspace(0.0, 1.0, 6)
TRACES = []


@jax.jit
def mean_of(average, x):
    TRACES.append(1)
    return 0.9 * average + 0.1 * x.mean()


@functools.partial(jax.jit, static_argnames="power")
def scaled(x, factor, *, power=1):
    TRACES.append(1)
    return x * factor**power


def in_a_loop(x):
    average = 0.0
    for _ in range(3):
        average = mean_of(average, x)
    return average


def in_a_loop_cured(x):
    average = jnp.asarray(0.0, "float32")
    for _ in range(3):
        average = mean_of(average, x)
    return average


def twice(x):
    first = scaled(x, 2.0)
    return scaled(first, x.max())


def twice_cured(x):
    first = scaled(x, jnp.asarray(2.0, "float32"))
    return scaled(first, x.max())


def array_first(x):
    first = mean_of(x.min(), x)
    return first + mean_of(0, x)


def array_first_cured(x):
    first = mean_of(x.min(), x)
    return first + mean_of(jnp.asarray(0, "float32"), x)


def in_a_scan(x):
    def body(total, row):
        total = scaled(total, 0.5) + scaled(total, row)
        return total, row

    return jax.lax.scan(body, jnp.zeros(()), x)


@pytest.mark.parametrize(
    ("target", "cured", "cure"),
    [
        (in_a_loop, in_a_loop_cured, "jnp.asarray(0.0, 'float32')"),
        (twice, twice_cured, "jnp.asarray(2.0, 'float32')"),
        (array_first, array_first_cured, "jnp.asarray(0, 'float32')"),
        (in_a_scan, None, "jnp.asarray(0.5, 'float32')"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_compiled_function_called_with_both(target, cured, cure):
    source = target.__code__.co_firstlineno
    jax.clear_caches()
    TRACES.clear()
    jax.jit(target)(X)
    assert len(TRACES) == 2
    report = vx.check_static(target, X)
    (finding,) = report.findings
    assert (finding.code, report.verdict) == ("VX203", "static")
    assert source < finding.line < source + 6
    assert "mean_of" in finding.excerpt() or "scaled" in finding.excerpt()
    assert cure in finding.fix
    if cured is not None:
        jax.clear_caches()
        TRACES.clear()
        jax.jit(cured)(X)
        assert len(TRACES) == 1
        assert vx.check_static(cured, X).findings == ()


def other_shapes(x):
    return scaled(x, 2.0), scaled(x[:2], x.max())


def other_dtypes(x):
    return scaled(x, x.max()), scaled(x.astype("float16"), x.max().astype("float16"))


def of_the_library(x):
    return jnp.where(x > 0, x, 0.0), jnp.where(x > 0, x, x.max()), jnp.clip(x, 0, x.max())


@pytest.mark.parametrize("target", [other_shapes, other_dtypes, of_the_library])
def test_no_finding_where_two_programs_are_meant(target):
    assert vx.check_static(target, X).findings == ()


def running(average, x):
    average = 0.9 * average + 0.1 * x.mean()
    return average, x / (average + 1)


def returned_second(x, count):
    count = count + (x > 0).mean()
    return x * count, count


def tree(state, x):
    return {"mean": 0.9 * state["mean"] + x.mean(), "count": state["count"] + 1}, x.sum()


@pytest.mark.parametrize(
    ("target", "inputs", "names"),
    [
        (running, (0.0, X), ["average"]),
        (returned_second, (X, 0), ["count"]),
        (tree, ({"mean": 0.0, "count": 0}, X), ["state['mean']"]),
        (running, (jnp.asarray(0.0), X), ["average"]),  # of weak type too
    ],
    ids=["first", "second", "tree", "weak array"],
)
def test_state_that_begins_as_a_number(target, inputs, names):
    assert compiled_for_itself(target, inputs) == 2
    report = vx.check_static(target, *inputs)
    assert [(f.code, *f.arguments) for f in report.findings] == [("VX203", n) for n in names]
    assert report.verdict == "static"
    (finding,) = report.findings
    assert finding.line == target.__code__.co_firstlineno
    assert finding.fix.startswith("begin with an array: jnp.asarray(")
    cured = jax.tree.map(
        lambda leaf: jnp.asarray(leaf, "float32") if np.ndim(leaf) == 0 else leaf, inputs
    )
    if target is tree:
        cured[0]["count"] = 0  # stays a weak integer
    assert compiled_for_itself(target, cured) == 1
    assert vx.check_static(target, *cured).findings == ()


def compiled_for_itself(target, inputs):
    """Count the programs for the inputs, and for them with the state that comes back."""
    traces = []

    def counted(*values):
        traces.append(1)
        return target(*values)

    call = jax.jit(counted)
    position = 1 if target is returned_second else 0
    for _ in range(3):
        state = call(*inputs)[position]
        inputs = tuple(state if i == position else value for i, value in enumerate(inputs))
    return len(traces)


def loss(rate, x):
    return rate * x.sum(), x


def kept_weak(count, x):
    count = count + 1
    return count, x * count


def of_other_meaning(scale, x):
    shift = scale + x
    return shift, scale


@pytest.mark.parametrize(
    ("target", "inputs"),
    [
        (loss, (0.1, X)),
        (kept_weak, (0, X)),
        (of_other_meaning, (0.5, X)),
        (running, (jnp.float32(0), X)),
    ],
)
def test_no_finding_for_numbers_that_are_no_state(target, inputs):
    assert vx.check_static(target, *inputs).findings == ()


def test_examples_with_number_and_array():
    also = [(jnp.float32(0), X), (jnp.asarray(0.0), X), (np.float32(0), X)]
    report = vx.check_static(of_other_meaning, 0.5, X, also=also)
    (finding,) = report.findings
    assert (finding.code, finding.arguments, report.programs) == ("VX203", ("scale",), 2)
    cured = [(jnp.asarray(value, jnp.float32), x) for value, x in [(0.5, X), *also]]
    report = vx.check_static(of_other_meaning, *cured[0], also=cured[1:])
    assert (report.findings, report.programs) == ((), 1)
