"""A wrong suggestion is worse than none: each compiles, and what is not mechanical has none."""

import ast
import textwrap
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import voxax as vx
from check.corpus import load
from check.test_suggestions import with_suggestions
from voxax.check import classify, suggest

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
    "and": ("x, n", "if x[0, 0] < 0 and not n > 5:\n    x = x * 2\nreturn x\n", (X, np.int32(3))),
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


TWO = np.int32(2)
# Every function that makes text of a statement, with a program that it is made for.
MADE = {
    "suggested": ("x", "y = x if x.sum() > 0 else -x\nreturn y\n", (X,)),
    "suggested_later": ("x, n", "k = int(n)\nreturn x[:k]\n", (X, TWO)),
    "_branch": ("x", "y = x\nif x.sum() > 0:\n    x = -x\n    y = x + 1\nreturn x + y\n", (X,)),
    "_counted": ("x, n", "for i in range(n):\n    x = x * 2 + i\nreturn x\n", (X, TWO)),
    "_repeated": ("x", "while x.sum() > 1:\n    x = x / 2\nreturn x\n", (X,)),
    "_bounded_slice": ("x, n", "return x[:n].sum()\n", (X, TWO)),
    "_masked": ("x", "return x[x > 0].sum()\n", (X,)),
    "_assignment": ("x", "x[0] -= 1\nreturn x\n", (X,)),
    "_bounded_loop": ("x, n", "for _ in range(int(n)):\n    x = x * 2\nreturn x\n", (X, TWO)),
}
FOR_TORCH = ("_bounded_loop",)
FOR_JAX = ("_repeated", "_assignment")
# They make a part of a statement.
PARTS = {"_grouped", "_within", "_block", "_assigned_value"}
PARTS |= {"_choose", "_condition", "_as_integer", "_integer"}


def watch(monkeypatch, name):
    """The texts that a function of `suggest` returns from now on."""
    texts, make = [], getattr(suggest, name)

    def watched(*arguments):
        texts.append(make(*arguments))
        return texts[-1]

    for module in (suggest, classify):
        if hasattr(module, name):
            monkeypatch.setattr(module, name, watched)
    return texts


@pytest.mark.parametrize("name", [name for name in MADE if name not in FOR_TORCH])
def test_every_suggestion_compiles(name, tmp_path, monkeypatch):
    parameters, body, inputs = MADE[name]
    texts = watch(monkeypatch, name)
    path = case(tmp_path, parameters, body)
    report = vx.check_static(load(path).model, *inputs)
    assert report.counted
    assert {f.suggestion for f in report.counted} <= set(texts)
    new = with_suggestions(path, report, tmp_path).model
    assert vx.check_static(new, *inputs).verdict == "static"
    jax.jit(new)(*inputs)


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("name", [name for name in MADE if name not in FOR_JAX])
def test_every_suggestion_for_torch_is_static(name, tmp_path, monkeypatch):
    import torch

    parameters, body, inputs = MADE[name]
    if name == "_branch":
        body = "if x.sum() > 0:\n    x = -x\nreturn x\n"
    inputs = tuple(map(torch.as_tensor, inputs))
    texts = watch(monkeypatch, name)
    path = case(tmp_path, parameters, body)
    report = vx.check_static(load(path).model, *inputs)
    assert any(texts)
    new = with_suggestions(path, report, tmp_path, "import torch\nbound = 4\n").model
    assert vx.check_static(new, *inputs).verdict == "static"


def test_every_suggestion_has_a_program():
    tree = ast.parse(Path(suggest.__file__).read_text())
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    texts = {f.name for f in functions if f.returns and ast.unparse(f.returns) == "str"}
    assert texts == set(MADE) | PARTS
