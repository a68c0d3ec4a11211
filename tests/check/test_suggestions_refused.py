"""A wrong suggestion is worse than none: what looks mechanical and is not."""

import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import voxax as vx
from check.test_corpus import load
from check.test_suggestions import with_suggestions

pytestmark = pytest.mark.lax_promotion

X = np.arange(-6, 10, dtype=np.float32).reshape(4, 4)
MASK = np.array([True, False, True, True])
HEAD = "import jax\nimport jax.numpy as jnp\nimport numpy as np\n\n\ndef model("


def case(tmp_path, parameters, body):
    path = tmp_path / "case.py"
    path.write_text(f"{HEAD}{parameters}):\n{textwrap.indent(textwrap.dedent(body), '    ')}")
    return path


def eager(model, inputs, writes=False):
    return model(*(np.array(x) if writes else jnp.asarray(x) for x in inputs))


SAME = {
    "mask of rows": ("x, m", "return x[m].sum()\n", (X, MASK)),
    "mask of rows, mean": ("x, m", "return jnp.mean(x[m])\n", (X, MASK)),
    "mask by comparing": ("x, m", "return x[x > 0].sum()\n", (X, MASK)),
    "mask of rows by comparing": ("x, m", "return x[x[:, 0] > 0].sum()\n", (X, MASK)),
    "column assigned": ("x, m", "x[:, 0] = 1\nreturn x\n", (X, MASK)),
    "block added to": ("x, m", "x[1:3, ::2] += 2\nreturn x\n", (X, MASK)),
    "first rows summed": ("x, n", "return x[: int(n)].sum()\n", (X, np.int32(3))),
    "window past the end": ("x, i", "return x[i : i + 3].sum()\n", (X, np.int32(2))),
    "sum of an expression": ("x, m", "return (x + 1)[m].sum()\n", (X, MASK)),
    "slice of an expression": ("x, n", "return (x + 1)[: int(n)].sum()\n", (X, np.int32(3))),
    "from the end": ("x, k", "return x[-k:].sum()\n", (X, np.int32(2))),
    "all but the last": ("x, k", "return x[:-k].sum()\n", (X, np.int32(2))),
    "one less": ("x, k", "return x[: k - 1].sum()\n", (X, np.int32(2))),
    "negative bound": ("x, n", "return x[: int(n)].sum()\n", (X, np.int32(-1))),
    "bounds that cross": ("x, n", "return x[n : n - 3].sum()\n", (X, np.int32(2))),
    "window before row 0": ("x, i", "return x[i : i + 3].sum()\n", (X, np.int32(-2))),
    "window from the end": ("x, i", "return x[i : i + 2].sum()\n", (X, np.int32(-3))),
    "names that are taken": (
        "x, stop",
        "rows = x + 1\nreturn rows[: int(stop)].sum() + rows.sum()\n",
        (X, np.int32(-1)),
    ),
    "bound by choice": ("x, n", "return x[: n if True else 2].sum()\n", (X, np.int32(3))),
    "window by choice": (
        "x, n",
        "return x[(n if True else 2) : (n if True else 2) + 2].sum()\n",
        (X, np.int32(1)),
    ),
    "loop": (
        "x, n",
        "y = x\nfor i in range(int(n)):\n    y = y * 2 + i\nreturn y\n",
        (X, np.int32(3)),
    ),
    "and": (
        "x, n",
        "if x[0, 0] < 0 and not n > 5:\n    x = x * 2\nreturn x\n",
        (X, np.int32(3)),
    ),
    "or chooses a value": (
        "x, n",
        "if (None or x).sum() > 0:\n    x = x * 2\nreturn x\n",
        (X, np.int32(3)),
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_computes_the_same(name, tmp_path):
    parameters, body, inputs = SAME[name]
    path = case(tmp_path, parameters, body)
    model = load(path).model
    report = vx.check_static(model, *inputs)
    new = with_suggestions(path, report, tmp_path).model
    writes = "assigned" in name or "added" in name
    np.testing.assert_allclose(jax.jit(new)(*inputs), eager(model, inputs, writes), rtol=1e-6)


REFUSED = {
    "mask of columns": ("x, m", "return x[:, m].sum()\n", (X, MASK)),
    "a method called sum": ("x, m", "return np.sum(x[m])\n", (X, MASK)),
    "zeros in a mean": ("x, k", "return x[:k].mean()\n", (X, np.int32(2))),
    "zeros in a later mean": ("x, k", "y = x[:k]\nreturn y.mean()\n", (X, np.int32(2))),
    "elif": (
        "x, n",
        """\
        y = x
        if isinstance(n, str):
            y = x * 3
        elif x[0, 0] > 0:
            y = x * 2
        return y
        """,
        (X, np.int32(2)),
    ),
    "two statements in a line": ("x, m", "y = 1; x[0] = y\nreturn x\n", (X, MASK)),
    "a statement behind if": ("x, m", "if True: x[0] = 1\nreturn x\n", (X, MASK)),
    "guarded operand": (
        "x, m",
        "if m is not None and m.any():\n    x = x * 2\nreturn x\n",
        (X, MASK),
    ),
    "guarded choice": ("x, m", "return x * 2 if m is not None and m.any() else x\n", (X, MASK)),
    "guarded loop": (
        "x, m",
        "while m is not None and x.sum() < 100:\n    x = x * 2\nreturn x\n",
        (X, MASK),
    ),
    "another loop around": (
        "x, n",
        "s = x\nfor k in range(4):\n    s = s + len(list(range(int(n))))\nreturn s\n",
        (X, np.int32(3)),
    ),
    "backwards": (
        "x, n",
        "s = x\nfor i in reversed(range(n)):\n    s = s * 2 + i\nreturn s\n",
        (X, np.int32(3)),
    ),
    "index 0 many times": ("x, n", "return x[jnp.nonzero(x[:, 0])].sum()\n", (X, np.int32(3))),
    "more than one operand": ("x, y", "return jnp.union1d(x, y)\n", (X, X + 0.5)),
    "target of a call": ("x, m", "(lambda: x)()[0] = 1\nreturn x\n", (X, MASK)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_nothing_is_suggested(name, tmp_path):
    parameters, body, inputs = REFUSED[name]
    report = vx.check_static(load(case(tmp_path, parameters, body)).model, *inputs)
    assert report.counted
    assert not any(f.suggestion for f in report.counted), str(report)
    assert all(f.fix for f in report.counted)
