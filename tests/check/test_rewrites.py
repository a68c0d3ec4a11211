"""Suggested rewrites are static, and compute the same numbers."""

import importlib.util
import linecache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import voxax as vx
from check.test_corpus import CASES, load

pytestmark = pytest.mark.lax_promotion

BY_NAME = {path.stem: path for path in CASES}


def rewritten(path, report, tmp_path):
    """The case's file with every rewrite applied, last line first."""
    lines = path.read_text().splitlines()
    # Both operands of an `and` have the same one.
    rewrites = dict.fromkeys(f.rewrite for f in report.counted)
    assert all(rewrites), str(report)
    for rewrite in sorted(rewrites, key=lambda r: -r.first_line):
        lines[rewrite.first_line - 1 : rewrite.last_line] = rewrite.text.splitlines()
        body = next(i for i, line in enumerate(lines) if line.startswith("import"))
        lines[body:body] = [line for line in rewrite.imports if line not in lines]
    new = tmp_path / path.name
    new.write_text("\n".join(lines) + "\n")
    linecache.checkcache(str(new))
    spec = importlib.util.spec_from_file_location(f"rewritten.{path.stem}", new)
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
def test_rewrite_is_static_and_equal(name, tmp_path, rng):
    path = BY_NAME[name]
    case = load(path)
    report = vx.check_static(case.model, *case.inputs())
    new = rewritten(path, report, tmp_path)
    again = vx.check_static(new.model, *case.inputs(), verify=True)
    assert again.verdict == "static", str(again)
    assert again.verification.holds, str(again)
    for _ in range(4):
        x, *others = case.inputs()
        x = rng.normal(size=x.shape).astype(x.dtype)
        # Eagerly, as the original runs; in NumPy where it assigns in place.
        plain = case.model(x.copy() if name == "assigned_in_place" else jnp.asarray(x), *others)
        np.testing.assert_allclose(
            jax.jit(new.model)(x, *others), plain, rtol=1e-6, atol=1e-6, err_msg=name
        )


@pytest.mark.parametrize("factor", [jnp.float32(0.75), 0.75])
def test_slice_becomes_a_mask(factor, tmp_path, rng):
    kind = "scalar" if isinstance(factor, float) else "tensor"
    path = BY_NAME[f"slice_by_factor_{kind}"]
    case = load(path)
    report = vx.check_static(case.model, *case.inputs())
    new = rewritten(path, report, tmp_path)
    again = vx.check_static(new.model, case.inputs()[0], factor, verify=True)
    assert again.verdict == "static"
    assert again.verification.holds
    for value in (0.0, 0.3, 0.75, 1.0):
        x = rng.normal(size=(8, 3)).astype(np.float32)
        plain = case.model(x, value)
        out = jax.jit(new.model)(x, jnp.float32(value))
        np.testing.assert_array_equal(out[: len(plain)], plain)
        assert not out[len(plain) :].any()
