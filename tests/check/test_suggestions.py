"""Suggested statements are static, and compute the same numbers."""

import ast
import importlib.util
import json
import linecache
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import voxax as vx
from check.corpus import cases_of, load
from voxax.check import static_report

pytestmark = pytest.mark.lax_promotion

CASES = cases_of("jax_cases.py")


def statements_of(tree, finding):
    """The statement that a finding is in, and what its suggestion replaces."""
    blocks = [
        block
        for node in ast.walk(tree)
        for field in ("body", "orelse")
        for block in [getattr(node, field, None)]
        if isinstance(block, list)
    ]
    block, at = max(
        (
            (block, i)
            for block in blocks
            for i, statement in enumerate(block)
            if statement.lineno <= finding.line <= statement.end_lineno
        ),
        key=lambda found: found[0][found[1]].lineno,
    )
    new = ast.parse(finding.suggestion).body
    more = isinstance(block[at], ast.If) and isinstance(new[0], ast.Return)
    more = more and not block[at].orelse
    more = more or (isinstance(block[at], ast.Assign) and isinstance(new[-1], ast.Return))
    return block[at], block[at + 1] if more else block[at]


def with_suggestions(path, report, folder, head="import jax\nimport jax.numpy as jnp\n"):
    """The case's file with every suggestion in place of its statement, last line first."""
    text = path.read_text()
    lines, tree = text.splitlines(), ast.parse(text)
    assert all(f.suggestion for f in report.counted), str(report)
    # Both operands of an `and` have the same one.
    for finding in {f.line: f for f in sorted(report.counted, key=lambda f: -f.line)}.values():
        first, last = statements_of(tree, finding)
        new = textwrap.indent(finding.suggestion, " " * first.col_offset)
        lines[first.lineno - 1 : last.end_lineno] = new.splitlines()
    imported = next((i for i, line in enumerate(lines) if line.startswith("import")), 0)
    lines[imported:imported] = head.splitlines()
    new = folder / f"{path.stem}_suggested.py"
    new.write_text("\n".join(lines) + "\n")
    linecache.checkcache(str(new))
    spec = importlib.util.spec_from_file_location(f"suggested.{path.stem}", new)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "name",
    [
        "branch_on_sum_tensor",
        "branch_on_sum_scalar",
        "loop_count_tensor",
        "loop_count_scalar",
        "while_until_converged",
        "assigned_in_place",
    ],
)
def test_suggestion_is_static_and_equal(name, tmp_path, rng):
    case, path = CASES[name], CASES[name].alone(tmp_path)
    model = load(path).model
    report = vx.check_static(model, *case.inputs())
    new = with_suggestions(path, report, tmp_path)
    again = vx.check_static(new.model, *case.inputs(), verify=True)
    assert again.verdict == "static", str(again)
    assert again.verification.holds, str(again)
    for _ in range(4):
        x, *others = case.inputs()
        x = rng.normal(size=x.shape).astype(x.dtype)
        # Eagerly, as the original runs; in NumPy where it assigns in place.
        plain = model(x.copy() if name == "assigned_in_place" else jnp.asarray(x), *others)
        np.testing.assert_allclose(
            jax.jit(new.model)(x, *others), plain, rtol=1e-6, atol=1e-6, err_msg=name
        )


@pytest.mark.parametrize("factor", [jnp.float32(0.75), 0.75])
def test_slice_becomes_a_mask(factor, tmp_path, rng):
    kind = "scalar" if isinstance(factor, float) else "tensor"
    case = CASES[f"slice_by_factor_{kind}"]
    path = case.alone(tmp_path)
    model = load(path).model
    report = vx.check_static(model, *case.inputs())
    new = with_suggestions(path, report, tmp_path)
    again = vx.check_static(new.model, case.inputs()[0], factor, verify=True)
    assert again.verdict == "static"
    assert again.verification.holds
    for value in (0.0, 0.3, 0.75, 1.0):
        x = rng.normal(size=(8, 3)).astype(np.float32)
        plain = model(x, value)
        out = jax.jit(new.model)(x, jnp.float32(value))
        np.testing.assert_array_equal(out[: len(plain)], plain)
        assert not out[len(plain) :].any()


def test_slice_by_a_number_of_another_line(tmp_path):
    path = tmp_path / "case.py"
    path.write_text(
        "import jax\n\n\ndef model(x, factor):\n    n = int(factor * 5)\n    return x[:n]\n"
    )
    case = load(path)
    x = np.arange(24, dtype=np.float32).reshape(8, 3)
    report = vx.check_static(case.model, x, jnp.float32(0.75))
    (finding,) = report.findings
    assert (finding.code, finding.line) == ("VX104", 5)
    assert finding.suggestion.splitlines() == [
        "n = jnp.asarray(factor * 5).astype(jnp.int32)",
        "rows = jnp.arange(x.shape[0])",
        "stop = n",
        "inside = rows < jnp.where(stop < 0, stop + x.shape[0], stop)",
        "return jnp.where(jnp.expand_dims(inside, tuple(range(1, x.ndim))), x, jnp.zeros_like(x))",
    ]
    new = with_suggestions(path, report, tmp_path)
    assert vx.check_static(new.model, x, jnp.float32(0.75)).verdict == "static"
    for factor in (0.0, 0.5, 1.7, -0.5):
        plain = case.model(x, factor)
        out = jax.jit(new.model)(x, jnp.float32(factor))
        np.testing.assert_array_equal(out[: len(plain)], plain)
        assert not out[len(plain) :].any()


def test_suggestion_stands_in_every_form_of_the_report():
    case = CASES["slice_by_factor_tensor"]
    report = vx.check_static(case.build(), *case.inputs())
    (finding,) = report.findings
    assert all(f"    {line}\n" in f"{report}\n" for line in finding.suggestion.splitlines())
    (told,) = json.loads(static_report.as_json([report]))[0]["findings"]
    assert told["suggestion"] == finding.suggestion
